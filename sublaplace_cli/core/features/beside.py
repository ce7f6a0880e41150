"""Some entries of the gradient, and a sketch of all the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..jacobian.blocks import Block
from ..network.layout import Layout
from . import Features
from .sketch import Sketch
from .subset import Subset


@dataclass(frozen=True)
class Beside:
    """The entries first. The sketch leaves them out: counted in both, the kernel would be too large."""

    subset: Subset
    sketch: Sketch

    @property
    def k(self) -> int:
        return self.subset.k + self.sketch.k

    def on(self, layout: Layout, prior: Tensor) -> Features:
        sketch = self.sketch.on(layout, prior, without=self.subset.indices)
        return BesideFeatures(self.subset.on(layout, prior), sketch)


@dataclass(frozen=True)
class BesideFeatures:
    first: Features
    second: Features

    def rows(self, blocks: Sequence[Block]) -> Tensor:
        return torch.cat([self.first.rows(blocks), self.second.rows(blocks)], dim=2)
