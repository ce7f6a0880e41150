"""Parts of the greedy search: a cache of columns, Schur complements, pivots on a device."""
