"""Several processes share the rows: rank 0 leads and prints, the others run its collective calls on their own rows."""
