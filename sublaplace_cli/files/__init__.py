"""Bytes on disk ↔ records.

`spec` reads `sublaplace.yaml`, `networks` loads networks and their weights, `data` reads the rows of the splits, and
`artifacts` writes and reads the files of a run folder. A reader trusts no file: it checks sizes before allocation and
runs no code that the user has not allowed.
"""
