"""Some of the gradient's entries: the features of a sub-network."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..jacobian.blocks import Block
from ..network.layout import Layout
from . import Features


@dataclass(frozen=True)
class Subset:
    """The entries at flat indices S, in their order."""

    indices: Tensor  # S (k,)

    @property
    def k(self) -> int:
        return len(self.indices)

    def on(self, layout: Layout, prior: Tensor) -> Features:
        return SubsetFeatures(self.indices, prior[self.indices].rsqrt())


@dataclass(frozen=True)
class SubsetFeatures:
    """g_S times `scale` = v_S^(−½)."""

    indices: Tensor
    scale: Tensor  # (k,)

    def rows(self, blocks: Sequence[Block]) -> Tensor:
        m, C = blocks[0].n_rows, blocks[0].n_outputs
        found = torch.zeros(len(self.indices), m * C, dtype=torch.float64, device=self.scale.device)
        for block in blocks:
            own = ((block.span.start <= self.indices) & (block.span.stop > self.indices)).nonzero().squeeze(1)
            if len(own):
                columns = found.new_empty(len(own), m * C)
                block.put_columns(self.indices[own] - block.start, columns)
                found[own] = columns * self.scale[own].unsqueeze(1)
        return found.view(-1, m, C).permute(1, 2, 0)
