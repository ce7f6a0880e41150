"""Files that the command line or the spec names: the oracle, a selection, and the output files."""
