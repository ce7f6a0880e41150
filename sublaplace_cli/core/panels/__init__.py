"""Products of rows that are written out: panels of columns, strips of rows, and how large they are on a device."""
