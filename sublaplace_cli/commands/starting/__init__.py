"""Parts of `init`: what a checkpoint and a data file are, which settings fit, and the spec as text."""
