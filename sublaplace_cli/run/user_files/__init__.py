"""Files that the command line or the spec names: the oracle, a selection, and everything that is written on request."""
