"""A convolution's weight: (inputs, output gradients) for keeping, written out for every question.

Row n's gradient is the convolution of its own inputs with its own output gradients: one grouped convolution
with a group a row gives a whole batch, in less time than unfolding would take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .blocks import Block, DenseBlock, dense_pieces, squares_of_pieces


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

    def columns(self, local: Tensor) -> Tensor:
        return torch.cat([piece.columns(local) for piece in dense_pieces(self, self.deltas.shape[1])], dim=1)

    def gram(self, other: Block, prior: Tensor) -> Tensor:
        left = self.dense()
        return left.gram(left if other is self else other, prior)

    def norms(self, prior: Tensor) -> Tensor:
        return torch.cat([piece.norms(prior) for piece in dense_pieces(self, self.deltas.shape[1])])

    def pull(self, u: Tensor) -> Tensor:
        return self.dense().pull(u)

    def rows(self, start: int, stop: int) -> ConvBlock:
        return ConvBlock(self.start, self.geometry, self.inputs[start:stop], self.deltas[start:stop])

    def settled(self) -> Block:
        return self.written_out()

    def tensors(self) -> dict[str, Tensor]:
        return {"inputs": self.inputs, "deltas": self.deltas}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> ConvBlock:
        return ConvBlock(self.start, self.geometry, tensors["inputs"], tensors["deltas"])
