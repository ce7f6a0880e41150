"""The features of a Jacobian's rows as a Jacobian themselves: k parameters with prior precision 1.

So all that is computed from a sub-network's columns is computed from features by the same code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..jacobian.blocks import Block, DenseBlock
from ..jacobian.rows import Jacobian, Which, n_outputs, row_tiles
from ..network.layout import Layout
from . import Features


@dataclass(frozen=True)
class FeatureJacobian:
    """Rows Φ V^(−½) Jᵀ: held, or made from those of the source when they are read, a few at a time."""

    source: Jacobian
    features: Features
    k: int
    memory: int
    held: Tensor | None = None  # of all rows (N, C, k)

    @cached_property
    def layout(self) -> Layout:
        return Layout.from_shapes([("features", (self.k,))])

    @property
    def outputs(self) -> Tensor:
        return self.source.outputs

    @cached_property
    def templates(self) -> Sequence[DenseBlock]:
        shape = 1, n_outputs(self.source), self.k
        return (DenseBlock(0, torch.zeros(shape, dtype=torch.float64, device=self.outputs.device)),)

    @property
    def by_block(self) -> bool:
        return False

    @property
    def is_held(self) -> bool:
        return self.held is not None

    @property
    def rows_per_read(self) -> int:
        return self.source.rows_per_read

    def load(self, start: int, stop: int, which: Which = None) -> list[Block]:
        if which is not None and not len(which):
            return []
        if self.held is not None:
            return [DenseBlock(0, self.held[start:stop])]
        values = self.templates[0].values.new_empty(stop - start, n_outputs(self.source), self.k)
        for a, b in self._tiles:
            first, last = max(a, start), min(b, stop)
            if first < last:
                values[first - start : last - start] = self.features.rows(self.source.load(first, last))
        return [DenseBlock(0, values)]

    @cached_property
    def _tiles(self) -> list[tuple[int, int]]:
        return row_tiles(self.source, self.memory, extra=16 * n_outputs(self.source) * self.k)
