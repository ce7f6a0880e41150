"""`sublaplace.yaml` → typed, frozen records, with every problem of the file reported at once.

`loading` finds and loads the file, `yaml_marks` parses the YAML and marks the line and column of every value, `models`
lists the keys (`data` those of the data section). They are built from `part`, the base of all models and the problems
that it finds, and `values`, the checks of single values.
No torch and no numpy here: a wrong spec is refused before they are imported.
"""
