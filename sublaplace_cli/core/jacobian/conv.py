"""A convolution's weight: stored as (inputs, output gradients), written out for most results.

Row n's gradient is the convolution of its own inputs with its own output gradients: one grouped convolution with one
group per row gives a whole batch, in less time than unfolding would take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from .blocks import (
    FLOAT64,
    Block,
    DenseBlock,
    Strips,
    dense_pieces,
    push_of_pieces,
    put_columns_of_pieces,
    squares_of_pieces,
)

# One number of a column computed alone costs about as much as this many of a row written out (measured: 64 channels).
SINGLE_COLUMN_COST = 128
FEW_COLUMNS = 64  # columns that are computed at a time, because each needs all its positions for a moment


@dataclass(frozen=True)
class Geometry:
    """The settings of a convolution."""

    weight_shape: tuple[int, ...]  # (C_out, C_in / groups, kernel…)
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, layer: nn.Conv1d | nn.Conv2d) -> Geometry:
        padding = tuple(int(p) for p in layer.padding)
        return cls(tuple(layer.weight.shape), layer.stride, padding, layer.dilation, layer.groups)

    def weight_gradients(self, inputs: Tensor, deltas: Tensor) -> Tensor:
        """Gradients of each row (m, C_out, C_in / groups, kernel…) from inputs (m, C_in, …) and δ (m, C_out, …)."""
        m = len(inputs)
        like = inputs.new_empty(m * self.weight_shape[0], *self.weight_shape[1:])
        a = inputs.reshape(1, -1, *inputs.shape[2:])
        delta = deltas.reshape(1, -1, *deltas.shape[2:])
        wanted = [False, True, False]
        none = [0] * len(self.stride)
        backward = torch.ops.aten.convolution_backward
        gradients = backward(
            delta, a, like, None, self.stride, self.padding, self.dilation, False, none, m * self.groups, wanted
        )[1]
        return gradients.reshape(m, *self.weight_shape)

    def axes_of(self, local: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output channel, input channel within its group, and kernel tap (row by row) of some weights."""
        taps = math.prod(self.weight_shape[2:])
        return local // (taps * self.weight_shape[1]), local // taps % self.weight_shape[1], local % taps

    def inputs_at(self, inputs: Tensor, tap: Sequence[int], positions: Sequence[int]) -> Tensor:
        """The inputs that one kernel tap is multiplied with, for all output positions (m, C_in, positions…)."""
        margins = [side for p in reversed(self.padding) for side in (p, p)]
        padded = torch.nn.functional.pad(inputs, margins)
        for axis, (at, step, wide, count) in enumerate(
            zip(tap, self.stride, self.dilation, positions, strict=True), start=2
        ):
            first = at * wide
            padded = padded.narrow(axis, first, (count - 1) * step + 1)
            padded = padded[(slice(None),) * axis + (slice(None, None, step),)]
        return padded


@dataclass(frozen=True)
class ConvBlock:
    """Weight of a convolution, stored as the factors of its gradient."""

    start: int
    geometry: Geometry
    inputs: Tensor  # (m, C_in, …)
    deltas: Tensor  # (m, C, C_out, …)

    @property
    def n_rows(self) -> int:
        return self.inputs.shape[0]

    @property
    def width(self) -> int:
        return torch.Size(self.geometry.weight_shape).numel()

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.width)

    @cached_property
    def row_bytes(self) -> int:
        factors = self.inputs[:1].numel() + self.deltas[:1].numel()
        return self.inputs.element_size() * factors + 8 * self.deltas.shape[1] * self.width

    def dense(self) -> DenseBlock:
        a = self.inputs.double()  # so that the numbers do not depend on how the rows are cut
        each = [self.geometry.weight_gradients(a, delta.double()) for delta in self.deltas.unbind(1)]
        return DenseBlock(self.start, torch.stack(each, dim=1).flatten(2))

    def written_out(self) -> DenseBlock:
        """The same in the dtype of the passes, which is faster."""
        each = [self.geometry.weight_gradients(self.inputs, delta) for delta in self.deltas.unbind(1)]
        return DenseBlock(self.start, torch.stack(each, dim=1).flatten(2))

    def squares(self, W: Tensor | None = None) -> Tensor:
        return squares_of_pieces(self, self.deltas.shape[1], W)

    def put_columns(self, local: Tensor, out: Tensor) -> None:
        if SINGLE_COLUMN_COST * len(local) <= self.width:
            for few, part in zip(local.split(FEW_COLUMNS), out.split(FEW_COLUMNS), strict=True):
                self._put_few_columns(few, part)
        else:
            put_columns_of_pieces(self, self.deltas.shape[1], local, out)

    def _put_few_columns(self, local: Tensor, out: Tensor) -> None:
        """Σ over positions of δ times the input of this one weight, without writing out the others."""
        target, into, tap_of = self.geometry.axes_of(local)
        per_group = self.geometry.weight_shape[0] // self.geometry.groups
        channel = target // per_group * self.geometry.weight_shape[1] + into
        for number, tap in enumerate(itertools.product(*map(range, self.geometry.weight_shape[2:]))):
            chosen = (tap_of == number).nonzero().squeeze(1)
            if len(chosen) == 0:
                continue
            inputs = self.geometry.inputs_at(self.inputs, tap, self.deltas.shape[3:])
            a = inputs.index_select(1, channel[chosen]).flatten(2).double().unsqueeze(1)  # (m, 1, k, positions)
            delta = self.deltas.index_select(2, target[chosen]).flatten(3)  # (m, C, k, positions)
            out[chosen] = (delta * a).sum(3).permute(2, 0, 1).flatten(1)

    def add_gram(
        self, other: Block, prior: Tensor, total: Tensor, strips: Strips | None = None, dtype: torch.dtype = FLOAT64
    ) -> None:
        left = self.dense()
        left.add_gram(left if other is self else other, prior, total, strips, dtype)

    def norms(self, prior: Tensor) -> Tensor:
        return torch.cat([piece.norms(prior) for piece in dense_pieces(self, self.deltas.shape[1])])

    def pull(self, u: Tensor) -> Tensor:
        return self.dense().pull(u)

    def push(self, x: Tensor) -> Tensor:
        return push_of_pieces(self, self.deltas.shape[1], x)

    def rows(self, start: int, stop: int) -> ConvBlock:
        return ConvBlock(self.start, self.geometry, self.inputs[start:stop], self.deltas[start:stop])

    def expanded(self) -> Block:
        return self.written_out()

    def tensors(self) -> dict[str, Tensor]:
        return {"inputs": self.inputs, "deltas": self.deltas}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> ConvBlock:
        return ConvBlock(self.start, self.geometry, tensors["inputs"], tensors["deltas"])
