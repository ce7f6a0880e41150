"""A convolution's weight, stored as (inputs, output gradients): their convolution is the gradient of a row."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from .blocks import Block, DenseBlock

# One entry of a single column costs about as much as this many entries of a full row (measured: 64 channels).
SINGLE_COLUMN_COST = 128
FEW_COLUMNS = 64  # columns that are computed at a time: each temporarily needs all its positions


@dataclass(frozen=True)
class Geometry:
    """The settings of a convolution."""

    weight_shape: tuple[int, ...]  # (C_out, C_in / groups, kernel…)
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def weight_gradients(self, inputs: Tensor, deltas: Tensor) -> Tensor:
        """Gradients of each row (m, C_out, C_in / groups, kernel…) from inputs (m, C_in, …) and δ (m, C_out, …)."""
        m = len(inputs)
        like = inputs.new_empty(m * self.weight_shape[0], *self.weight_shape[1:])
        a = inputs.reshape(1, -1, *inputs.shape[2:])  # the whole batch as one grouped convolution
        delta = deltas.reshape(1, -1, *deltas.shape[2:])
        settings = (self.stride, self.padding, self.dilation, False, [0] * len(self.stride), m * self.groups)
        wanted = [False, True, False]
        gradients = torch.ops.aten.convolution_backward(delta, a, like, None, *settings, wanted)[1]
        return gradients.reshape(m, *self.weight_shape)

    def inputs_at(self, inputs: Tensor, tap: Sequence[int], positions: Sequence[int]) -> Tensor:
        """The inputs that one kernel tap is multiplied with, for all output positions (m, C_in, positions…)."""
        margins = [side for p in reversed(self.padding) for side in (p, p)]
        padded = torch.nn.functional.pad(inputs, margins)
        cuts = zip(tap, self.stride, self.dilation, positions, strict=True)
        within = [slice(at * wide, at * wide + (count - 1) * step + 1, step) for at, step, wide, count in cuts]
        return padded[(slice(None), slice(None), *within)]


@dataclass(frozen=True)
class ConvBlock(Block):
    """Weight of a convolution, stored as the factors of its gradient."""

    geometry: Geometry
    inputs: Tensor  # (m, C_in, …)
    deltas: Tensor  # (m, C, C_out, …)
    factors: ClassVar[tuple[str, ...]] = ("inputs", "deltas")

    @property
    def width(self) -> int:
        return math.prod(self.geometry.weight_shape)

    @cached_property
    def row_bytes(self) -> int:
        factors = self.inputs[:1].numel() + self.deltas[:1].numel()
        return self.inputs.element_size() * factors + 8 * self.deltas.shape[1] * self.width

    def dense(self) -> DenseBlock:
        return self._written_out(torch.float64)  # so that the numbers do not depend on how the rows are cut

    def expanded(self) -> DenseBlock:
        return self._written_out(self.inputs.dtype)  # faster in the dtype of the passes

    def _written_out(self, dtype: torch.dtype) -> DenseBlock:
        a = self.inputs.to(dtype)
        each = [self.geometry.weight_gradients(a, delta.to(dtype)) for delta in self.deltas.unbind(1)]
        return DenseBlock(self.start, torch.stack(each, dim=1).flatten(2))

    def put_columns(self, local: Tensor, out: Tensor) -> None:
        if SINGLE_COLUMN_COST * len(local) <= self.width:
            for few, part in zip(local.split(FEW_COLUMNS), out.split(FEW_COLUMNS), strict=True):
                self._put_few_columns(few, part)
        else:
            super().put_columns(local, out)

    def _put_few_columns(self, local: Tensor, out: Tensor) -> None:
        """Σ over positions of δ times the input of this one weight, without writing out the others."""
        d_out, d_in, *kernel = self.geometry.weight_shape
        taps = math.prod(kernel)
        target, into, tap_of = local // (taps * d_in), local // taps % d_in, local % taps
        channel = target // (d_out // self.geometry.groups) * d_in + into
        for number, tap in enumerate(itertools.product(*map(range, kernel))):
            chosen = (tap_of == number).nonzero().squeeze(1)
            if len(chosen) == 0:
                continue
            inputs = self.geometry.inputs_at(self.inputs, tap, self.deltas.shape[3:])
            a = inputs.index_select(1, channel[chosen]).flatten(2).double().unsqueeze(1)  # (m, 1, k, positions)
            delta = self.deltas.index_select(2, target[chosen]).flatten(3)  # (m, C, k, positions)
            out[chosen] = (delta * a).sum(3).permute(2, 0, 1).flatten(1)
