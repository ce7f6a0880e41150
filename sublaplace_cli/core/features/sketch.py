"""Random signed sums: every parameter goes, with a random sign, into one of k sums, so E[ΦᵀΦ] = I over the seeds.

The bin and the sign of a parameter depend on the seed, k and the layout alone, never on the form in which the rows are
held: so rows held written out, recomputed or stored have the same features. A matrix W (d_out × d_in) has the bin
(h₁(o) + h₂(i)) mod k and the sign s₁(o) s₂(i), by which δ ⊗ a need not be written out. A vector of d_out after it, such
as its bias, is its column for one more input, a constant 1. Any other tensor has bins and signs of its own entries.
"""

from collections.abc import Sequence
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
from .block_sums import BlockSums, DenseSums, LinearSums, TableSums
from .groups import Groups, random_bins
from .pieces import cut, for_each, thread_count
from .spectra import (
    FactorSketches,
    TransformedLayer,
    bytes_at_once,
    lanes,
    put_transformed,
    rows_at_once,
    transform_is_cheaper,
)
from .stacks import stacked

VERSION = 1  # of the map that a seed stands for: a posterior of another version cannot be read
PIECES = 4  # of the rows for each thread, where they are many


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
        (m, C), device = (blocks[0].n_rows, blocks[0].n_outputs), self.parts[0].prior.device
        # Bins and signs are made here, once for all threads.
        held = [(block, self._parts_of(block)) for block in blocks]
        layers = stacked([layer for block, parts in held if (layer := _transformed(block, parts)) is not None])
        others = [(block, sums) for block, parts in held if (sums := _sums(block, parts)) is not None]
        total = torch.empty(m, C, self.k, dtype=torch.float64, device=device)

        def put(some: slice) -> None:
            if layers:
                put_transformed(layers, some, total)
            else:
                total[some] = 0
            for block, sums in others:
                sums.add(block, some, total)

        if device.type == "cpu":
            threads = _threads(bytes_at_once(layers, self.k, C) if layers else 1, others)
            step = rows_at_once(layers, self.k, C) if layers else 1
            for_each(put, cut(m, step, lanes(self.k, C), PIECES * threads), threads)
        else:
            put(slice(0, m))
        return total

    def _parts_of(self, block: Block) -> list[SketchedTensor]:
        """The parameters that a block holds, in flat order."""
        inside = [part for part in self.parts if block.span.start <= part.parameter.offset < block.span.stop]
        assert sum(part.parameter.size for part in inside) == block.width, "a block holds whole parameters"
        return inside


def _is_column(parameter: Parameter, before: Parameter) -> bool:
    return len(before.shape) == 2 and parameter.shape == before.shape[:1]


def _transformed(block: Block, parts: Sequence[SketchedTensor]) -> TransformedLayer | None:
    """A layer whose weight is sketched from its factors, and its bias with it if it can be."""
    if not isinstance(block, LinearBlock) or not parts[0].transforms(block):
        return None
    return TransformedLayer(block.inputs, block.deltas, parts[0].factors, _constant(parts))


def _constant(parts: Sequence[SketchedTensor]) -> float | None:
    return parts[1].constant if len(parts) > 1 else None


def _sums(block: Block, parts: Sequence[SketchedTensor]) -> BlockSums | None:
    """What a block adds beside its transformed layer; None: nothing."""
    first = parts[0]
    if isinstance(block, EmbeddingBlock):
        return TableSums(first.scale, first.axes[0], first.by_input)
    if not isinstance(block, LinearBlock):
        return DenseSums([(part.parameter.offset - block.start, part.groups) for part in parts])
    whole = not first.transforms(block)
    bias = parts[1].groups if len(parts) > 1 and (whole or _constant(parts) is None) else None
    if whole:
        return LinearSums(first.groups, None, bias)
    left_out = (first.without, first.left_out) if len(first.without) else None
    return None if left_out is bias is None else LinearSums(None, left_out, bias)


def _threads(transformed_bytes: int, others: Sequence[tuple[Block, BlockSums]]) -> int:
    """One for convolutions: their products use the other threads."""
    if any(isinstance(block, ConvBlock) for block, _ in others):
        return 1
    return thread_count(max([transformed_bytes, *(sums.row_bytes(block) for block, sums in others)]))
