"""What a block of rows adds to their sums where no transform does it: its entries, written out in float64.

Every operation is one multiplication or addition per number, always in the same order. So the numbers of a row depend
neither on the other rows nor on how many threads there are; only a convolution is a product of matrices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..jacobian.blocks import Block
from ..jacobian.conv import ConvBlock
from ..jacobian.embedding import EmbeddingBlock
from ..jacobian.linear import LinearBlock
from .groups import Groups, folded
from .spectra import lanes

WRITTEN_BYTES = 16 * 2**20  # of a block's entries that are gathered at a time
CACHED_BYTES = 2**20  # the same on a CPU, where they stay in its cache


@dataclass(frozen=True)
class LinearSums:
    """Of a linear layer: its weight or some entries of it, and its bias."""

    weight: Groups | None  # of all its entries
    left_out: tuple[Tensor, Groups] | None  # entries that a transform has counted, and their sums
    bias: Groups | None

    def row_bytes(self, block: Block) -> int:
        assert isinstance(block, LinearBlock), "only a linear layer has two factors"
        C, T, d_out = block.deltas.shape[1:]
        some = 0 if self.left_out is None else len(self.left_out[0])
        return 8 * C * ((some if self.weight is None else block.width) + T * d_out)

    def add(self, block: Block, some: slice, total: Tensor) -> None:
        assert isinstance(block, LinearBlock), "only a linear layer has two factors"
        for rows in _few_rows(some, self.row_bytes(block), total.device):
            few, part = block.rows(rows.start, rows.stop), total[rows]
            if self.weight is not None:
                self.weight.add_to(part, _weight_gradient(few))
            if self.left_out is not None:
                part -= self.left_out[1].sums(_entries(few, self.left_out[0]))
            if self.bias is not None:
                self.bias.add_to(part, _summed(few.deltas))


@dataclass(frozen=True)
class TableSums:
    """Of an embedding's table: only the entries that a row uses."""

    scale: Tensor  # (n,)
    by_entry: tuple[Tensor, Tensor]  # (h₁, s₁)
    by_axis: Groups

    def row_bytes(self, block: Block) -> int:
        return 8 * block.n_outputs * self.by_axis.k

    def add(self, block: Block, some: slice, total: Tensor) -> None:
        """The sketch of each position's δ, moved by h₁ of its token."""
        assert isinstance(block, EmbeddingBlock), "only a table has tokens"
        few, part, (h1, s1), k = block.rows(some.start, some.stop), total[some], self.by_entry, self.by_axis.k
        scale, places = self.scale.view(block.n_entries, -1), torch.arange(k, device=total.device)
        found, at_once = torch.zeros_like(part), max(1, lanes(k, block.n_outputs) // few.n_rows)
        for first in range(0, few.tokens.shape[1], at_once):
            token = few.tokens[:, first : first + at_once]  # (m, t)
            own = (scale[token] * s1[token].unsqueeze(2)).unsqueeze(1)
            sums = self.by_axis.sums(few.deltas[:, :, first : first + at_once].double() * own)  # (m, C, t, k)
            place = ((places - h1[token].unsqueeze(2)) % k).unsqueeze(1)
            for moved in sums.gather(3, place.expand_as(sums)).unbind(2):  # one position after the other
                found += moved
        part += found


@dataclass(frozen=True)
class DenseSums:
    """Of any other block.

    For the weight of a convolution, that is positions · n products in GEMM for its n entries, against 5 k log₂ k per
    position for transforms: fewer up to n = 50,000 for k = 1000. Convolutions go row by row, which is about as fast:
    then the numbers of a row do not depend on the others.
    """

    parts: Sequence[tuple[int, Groups]]  # its parameters, and where each begins

    def row_bytes(self, block: Block) -> int:
        return 8 * block.n_outputs * block.width

    def add(self, block: Block, some: slice, total: Tensor) -> None:
        one_by_one = isinstance(block, ConvBlock)
        for rows in _few_rows(some, WRITTEN_BYTES if one_by_one else self.row_bytes(block), total.device):
            values = block.rows(rows.start, rows.stop).dense().values
            for start, groups in self.parts:
                groups.add_to(total[rows], values[:, :, start : start + groups.n])


BlockSums = LinearSums | TableSums | DenseSums


def _few_rows(some: slice, row_bytes: int, device: torch.device) -> Iterator[slice]:
    """A few rows at a time, so that what is written out stays small."""
    step = max(1, (CACHED_BYTES if device.type == "cpu" else WRITTEN_BYTES) // row_bytes)
    return (slice(first, min(first + step, some.stop)) for first in range(some.start, some.stop, step))


def _summed(deltas: Tensor) -> Tensor:
    """Σ over positions of δ (m, C, d_out)."""
    return deltas[:, :, 0].double() if deltas.shape[2] == 1 else folded(deltas.double().clone(), 2)


def _entries(block: LinearBlock, local: Tensor) -> Tensor:
    """Some entries of the weight's gradient (m, C, entries)."""
    d_in = block.inputs.shape[2]
    target, into = local // d_in, local % d_in
    total = block.deltas.new_zeros(*block.deltas.shape[:2], len(local), dtype=torch.float64)
    for t in range(block.inputs.shape[1]):
        a = block.inputs[:, t].index_select(1, into).double().unsqueeze(1)
        total += block.deltas[:, :, t].index_select(2, target).double() * a
    return total


def _weight_gradient(block: LinearBlock) -> Tensor:
    """All of them (m, C, d_out·d_in), one position after the other."""
    delta, a = block.deltas.double(), block.inputs.double()
    total = delta[:, :, 0].unsqueeze(3) * a[:, 0].unsqueeze(1).unsqueeze(1)
    for t in range(1, block.inputs.shape[1]):
        total += delta[:, :, t].unsqueeze(3) * a[:, t].unsqueeze(1).unsqueeze(1)
    return total.flatten(2)
