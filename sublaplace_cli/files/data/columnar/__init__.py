"""Formats that pyarrow reads: parquet, and Arrow files, streams and saved data sets.

`values` turns columns into arrays; the other files open and check what a format has.
"""
