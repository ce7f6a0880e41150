"""Random signed sums: every parameter goes, with a random sign, into one of k sums, so E[ΦᵀΦ] = I over the seeds.

The bin and the sign of a parameter depend on the seed, k and the layout alone, never on the form in which the rows are
held: so rows held written out, recomputed or stored have the same features. A matrix W (d_out × d_in) has the bin
(h₁(o) + h₂(i)) mod k and the sign s₁(o) s₂(i), by which δ ⊗ a need not be written out. A vector of d_out after it, such
as its bias, is its column for one more input, a constant 1. Any other tensor has bins and signs of its own entries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..jacobian.blocks import Block
from ..jacobian.conv import ConvBlock
from ..jacobian.embedding import EmbeddingBlock
from ..jacobian.linear import LinearBlock
from ..network.layout import Layout, Parameter
from . import Features
from .groups import Groups, folded, random_bins
from .spectra import FactorSketches, TransformedLayer, put_transformed, transform_is_cheaper

VERSION = 1  # of the map that a seed stands for: a posterior of another version cannot be read
WRITTEN_BYTES = 16 * 2**20  # of a block's entries that are gathered at a time


@dataclass(frozen=True)
class Sketch:
    """k sums; the map itself is never stored."""

    k: int
    seed: int = 0

    def on(self, layout: Layout, prior: Tensor, without: Tensor | None = None) -> Features:
        """`without`: flat indices of parameters that are left out."""
        none = torch.zeros(0, dtype=torch.int64, device=prior.device)
        left_out = none if without is None else without
        parts: list[SketchedTensor] = []
        for number, parameter in enumerate(layout.parameters):
            span = parameter.span
            own = left_out[(span.start <= left_out) & (span.stop > left_out)] - span.start
            before = parts[-1] if parts and _is_column(parameter, parts[-1].parameter) else None
            parts.append(SketchedTensor(parameter, self.k, (self.seed, number), prior[span], own, before))
        return SketchFeatures(self.k, tuple(parts))


@dataclass(frozen=True, eq=False)
class SketchedTensor:
    """Bins, signs and scale of one parameter tensor; each is made when it is first used."""

    parameter: Parameter
    k: int
    seed: tuple[int, int]
    prior: Tensor  # its part of v (n,)
    without: Tensor  # positions that are left out
    matrix: "SketchedTensor | None" = None  # of which it is one more column

    @cached_property
    def scale(self) -> Tensor:
        """v^(−½), 0 where an entry is left out (n,)."""
        return self.prior.rsqrt().index_fill(0, self.without, 0.0)

    @cached_property
    def common_scale(self) -> float | None:
        """v^(−½) if all entries have the same."""
        return float(self.prior[0].rsqrt()) if bool((self.prior == self.prior[0]).all()) else None

    @cached_property
    def axes(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """(h₁, s₁) of the outputs of a matrix and (h₂, s₂) of its inputs, the last a constant."""
        (d_out, d_in), device = self.parameter.shape, self.prior.device
        first, second = random_bins(d_out, self.k, *self.seed, 0), random_bins(d_in + 1, self.k, *self.seed, 1)
        return (first[0].to(device), first[1].to(device)), (second[0].to(device), second[1].to(device))

    @cached_property
    def by_output(self) -> Groups:
        return Groups.of(*self.axes[0], self.k)

    @cached_property
    def by_input(self) -> Groups:
        h2, s2 = self.axes[1]
        return Groups.of(h2[:-1], s2[:-1], self.k)

    @cached_property
    def bins(self) -> tuple[Tensor, Tensor]:
        """(bin, sign) of every entry, in flat order (n,)."""
        if len(self.parameter.shape) == 2:
            (h1, s1), (h2, s2) = self.axes
            return ((h1.unsqueeze(1) + h2[:-1]) % self.k).flatten(), (s1.unsqueeze(1) * s2[:-1]).flatten()
        if self.matrix is not None:
            (h1, s1), (h2, s2) = self.matrix.axes
            return (h1 + h2[-1]) % self.k, s1 * s2[-1]
        found, signs = random_bins(self.parameter.size, self.k, *self.seed)
        return found.to(self.prior.device), signs.to(self.prior.device)

    @cached_property
    def groups(self) -> Groups:
        return Groups.of(self.bins[0], self.bins[1] * self.scale, self.k)

    @cached_property
    def left_out(self) -> Groups:
        """The sums of the entries that are left out."""
        (h1, s1), (h2, s2) = self.axes
        d_in = self.parameter.shape[1]
        o, i = self.without // d_in, self.without % d_in
        return Groups.of((h1[o] + h2[i]) % self.k, s1[o] * s2[i] * self.prior[self.without].rsqrt(), self.k)

    @cached_property
    def factors(self) -> FactorSketches:
        assert self.common_scale is not None, "the transform needs one prior for all weights"
        h2, s2 = self.axes[1]
        by_input = Groups.of(h2[:-1], s2[:-1] * self.common_scale, self.k)
        return FactorSketches(self.by_output, by_input, int(h2[-1]))

    @cached_property
    def constant(self) -> float | None:
        """The factor of the constant input, if a transform can include it: one prior, and nothing left out."""
        if self.matrix is None or self.common_scale is None or len(self.without):
            return None
        return float(self.matrix.axes[1][1][-1]) * self.common_scale

    def transforms(self, block: LinearBlock) -> bool:
        """Whether the weight is sketched from its factors: one prior, and fewer multiplications."""
        return self.common_scale is not None and transform_is_cheaper(block, self.k)


@dataclass(frozen=True)
class SketchFeatures:
    k: int
    parts: tuple[SketchedTensor, ...]

    def rows(self, blocks: Sequence[Block]) -> Tensor:
        held = [(block, self._parts_of(block)) for block in blocks]
        transformed = [_side(block, parts) for block, parts in held if _is_transformed(block, parts)]
        shape = blocks[0].n_rows, blocks[0].n_outputs, self.k
        total = torch.empty(shape, dtype=torch.float64, device=self.parts[0].prior.device)
        if transformed:
            put_transformed(transformed, total)
        else:
            total.zero_()
        for block, parts in held:
            if isinstance(block, LinearBlock):
                _add_linear(block, parts, total)
            elif isinstance(block, EmbeddingBlock):
                total += _table_sums(block, parts[0])
            else:
                _add_dense(block, parts, total)
        return total

    def _parts_of(self, block: Block) -> list[SketchedTensor]:
        """The parameters that a block holds, in flat order."""
        inside = [part for part in self.parts if block.span.start <= part.parameter.offset < block.span.stop]
        assert sum(part.parameter.size for part in inside) == block.width, "a block holds whole parameters"
        return inside


def _is_column(parameter: Parameter, before: Parameter) -> bool:
    return len(before.shape) == 2 and parameter.shape == before.shape[:1]


def _is_transformed(block: Block, parts: Sequence[SketchedTensor]) -> bool:
    return isinstance(block, LinearBlock) and parts[0].transforms(block)


def _side(block: Block, parts: Sequence[SketchedTensor]) -> TransformedLayer:
    assert isinstance(block, LinearBlock), "only a linear layer has two factors"
    return TransformedLayer(block.inputs, block.deltas, parts[0].factors, _constant(parts))


def _constant(parts: Sequence[SketchedTensor]) -> float | None:
    return parts[1].constant if len(parts) > 1 else None


def _add_linear(block: LinearBlock, parts: Sequence[SketchedTensor], total: Tensor) -> None:
    """All but what is transformed: the weight written out, or the entries to leave out of it; the bias."""
    C, T, d_out = block.deltas.shape[1:]
    weight, whole = parts[0], not _is_transformed(block, parts)
    width = block.width if whole else len(weight.without)
    biases = parts[1:] if whole or _constant(parts) is None else []
    for some in _pieces(block, 8 * C * (width + T * d_out)):
        few, part = block.rows(some.start, some.stop), total[some]
        if whole:
            weight.groups.add_to(part, _written_out(few))
        elif width:
            part -= weight.left_out.sums(_entries(few, weight.without))
        for bias in biases:
            bias.groups.add_to(part, _summed(few.deltas))


def _add_dense(block: Block, parts: Sequence[SketchedTensor], total: Tensor) -> None:
    """Written out: for the weight of a convolution, that is positions · n products in GEMM for its n entries, against
    5 k log₂ k per position for transforms: fewer up to n = 50,000 for k = 1000. Convolutions go row by row, which is
    about as fast: then the numbers of a row do not depend on the others.
    """
    one_by_one = isinstance(block, ConvBlock)
    for some in _pieces(block, WRITTEN_BYTES if one_by_one else 8 * block.n_outputs * block.width):
        values = block.rows(some.start, some.stop).dense().values
        for part in parts:
            left = part.parameter.offset - block.start
            part.groups.add_to(total[some], values[:, :, left : left + part.parameter.size])


def _pieces(block: Block, row_bytes: int) -> Iterator[slice]:
    """A few rows at a time, so that what is written out stays small."""
    step = max(1, WRITTEN_BYTES // row_bytes)
    return (slice(first, min(first + step, block.n_rows)) for first in range(0, block.n_rows, step))


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


def _written_out(block: LinearBlock) -> Tensor:
    """The weight's gradient (m, C, d_out·d_in), one position after the other: always the same order of the sum."""
    delta, a = block.deltas.double(), block.inputs.double()
    total = delta[:, :, 0].unsqueeze(3) * a[:, 0].unsqueeze(1).unsqueeze(1)
    for t in range(1, block.inputs.shape[1]):
        total += delta[:, :, t].unsqueeze(3) * a[:, t].unsqueeze(1).unsqueeze(1)
    return total.flatten(2)


def _table_sums(block: EmbeddingBlock, table: SketchedTensor) -> Tensor:
    """The sketch of each position's δ, moved by h₁ of its token: only the entries that a row uses."""
    (h1, s1), _ = table.axes
    scale = table.scale.view(block.n_entries, -1)
    total: Tensor | None = None
    for t in range(block.tokens.shape[1]):
        token = block.tokens[:, t]
        delta = block.deltas[:, :, t].double() * (scale[token] * s1[token].unsqueeze(1)).unsqueeze(1)  # (m, C, d)
        sums = table.by_input.sums(delta)
        place = (torch.arange(table.k, device=token.device) - h1[token].unsqueeze(1)) % table.k  # (m, k)
        moved = sums.gather(2, place.unsqueeze(1).expand_as(sums))
        total = moved if total is None else total.add_(moved)
    assert total is not None, "a row has at least one position"
    return total
