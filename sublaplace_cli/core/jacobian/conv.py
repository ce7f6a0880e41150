"""A convolution's weight: (inputs, output gradients) for keeping, written out for every question.

Row n's gradient is the convolution of its own inputs with its own output gradients: one grouped convolution
with a group a row gives a whole batch, in less time than unfolding would take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .blocks import FLOAT64, Block, DenseBlock, Strips, dense_pieces, put_columns_of_pieces, squares_of_pieces

# One number of a column made alone costs about as much as this many of a whole row written out (measured: 64 channels).
SINGLE_COLUMN_COST = 128
FEW_COLUMNS = 64  # columns that are put together at a time, because each takes all its places for a moment


@dataclass(frozen=True)
class Geometry:
    """What a convolution does, apart from its weight."""

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

    def places_of(self, local: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output channel, input channel within its group, and place in the kernel (counted row by row) of weights."""
        taps = math.prod(self.weight_shape[2:])
        return local // (taps * self.weight_shape[1]), local // taps % self.weight_shape[1], local % taps

    def seen_by(self, inputs: Tensor, tap: Sequence[int], places: Sequence[int]) -> Tensor:
        """What one place of the kernel sees of the inputs, for every output place (m, C_in, places…)."""
        margins = [side for p in reversed(self.padding) for side in (p, p)]
        padded = torch.nn.functional.pad(inputs, margins)
        for axis, (at, step, wide, count) in enumerate(
            zip(tap, self.stride, self.dilation, places, strict=True), start=2
        ):
            first = at * wide
            padded = padded.narrow(axis, first, (count - 1) * step + 1)
            padded = padded[(slice(None),) * axis + (slice(None, None, step),)]
        return padded


@dataclass(frozen=True)
class ConvBlock:
    """Weight of a convolution, kept as what its gradient is made of."""

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

    @property
    def row_bytes(self) -> int:
        kept = self.inputs[:1].numel() + self.deltas[:1].numel()
        return self.inputs.element_size() * kept + 8 * self.deltas.shape[1] * self.width

    def dense(self) -> DenseBlock:
        a = self.inputs.double()  # so that every reading gives the same numbers, however the rows are cut
        each = [self.geometry.weight_gradients(a, delta.double()) for delta in self.deltas.unbind(1)]
        return DenseBlock(self.start, torch.stack(each, dim=1).flatten(2))

    def written_out(self) -> DenseBlock:
        """The same in the dtype of the passes, as quick as they are."""
        each = [self.geometry.weight_gradients(self.inputs, delta) for delta in self.deltas.unbind(1)]
        return DenseBlock(self.start, torch.stack(each, dim=1).flatten(2))

    def squares(self, W: Tensor | None = None) -> Tensor:
        return squares_of_pieces(self, self.deltas.shape[1], W)

    def put_columns(self, local: Tensor, out: Tensor) -> None:
        if SINGLE_COLUMN_COST * len(local) <= self.width:
            for few, place in zip(local.split(FEW_COLUMNS), out.split(FEW_COLUMNS), strict=True):
                self._put_few_columns(few, place)
        else:
            put_columns_of_pieces(self, self.deltas.shape[1], local, out)

    def _put_few_columns(self, local: Tensor, out: Tensor) -> None:
        """Σ over places of δ times the input that this one weight sees there, without writing out the others."""
        target, into, tap_of = self.geometry.places_of(local)
        per_group = self.geometry.weight_shape[0] // self.geometry.groups
        channel = target // per_group * self.geometry.weight_shape[1] + into
        for number, tap in enumerate(itertools.product(*map(range, self.geometry.weight_shape[2:]))):
            chosen = (tap_of == number).nonzero().squeeze(1)
            if len(chosen) == 0:
                continue
            seen = self.geometry.seen_by(self.inputs, tap, self.deltas.shape[3:])
            a = seen.index_select(1, channel[chosen]).flatten(2).double().unsqueeze(1)  # (m, 1, k, places)
            delta = self.deltas.index_select(2, target[chosen]).flatten(3)  # (m, C, k, places)
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

    def rows(self, start: int, stop: int) -> ConvBlock:
        return ConvBlock(self.start, self.geometry, self.inputs[start:stop], self.deltas[start:stop])

    def expanded(self) -> Block:
        return self.written_out()

    def tensors(self) -> dict[str, Tensor]:
        return {"inputs": self.inputs, "deltas": self.deltas}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> ConvBlock:
        return ConvBlock(self.start, self.geometry, tensors["inputs"], tensors["deltas"])
