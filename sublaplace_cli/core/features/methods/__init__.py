"""Methods that make features, one file each: a function of k and the seed that returns a feature map.

To add one:
1. write `name(k: int, seed: int, subset: Tensor | None) -> FeatureMap` in a file here; where some k cannot work, add
   `check(facts: SelectorFacts, k: int | None) -> None`, as selectors have it,
2. add one line to `catalog.METHODS`. With `subset="gradient"` the function is given the k // 2 parameters that
   `gradient` chooses.
"""
