"""Linear layers with one position per row, a few of them transformed together: one operation for all their sides.

So a thread spends most of its time inside operations. Between them it is in Python, where one thread runs at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .spectra import Transformed, TransformedLayer

MOST_STACKED = 3  # layers: more would not stay in the CPU cache


@dataclass(frozen=True)
class Stack:
    """Layers none of whose sums has more than one entry of a side."""

    layers: tuple[TransformedLayer, ...]
    positions = 1

    @property
    def lane_bytes(self) -> int:
        C, k, sides = self._shape
        return 12 * len(self._factor) + 16 * (sides + C) * (k + 2)

    @cached_property
    def _shape(self) -> tuple[int, int, int]:
        """(C, k, sides): each layer has its inputs, and C output gradients."""
        C = self.layers[0].deltas.shape[1]
        return C, self.layers[0].sketches.by_input.k, len(self.layers) * (1 + C)

    @cached_property
    def _factor(self) -> Tensor:
        """Of every entry: the inputs of all layers, their output gradients, the constant inputs."""
        sketches, C = [layer.sketches for layer in self.layers], self._shape[0]
        inputs, deltas = [one.by_input.factor for one in sketches], [one.by_output.factor.repeat(C) for one in sketches]
        constants = [layer.constant for layer in self.layers if layer.constant is not None]
        return torch.cat([*inputs, *deltas, inputs[0].new_tensor(constants)])

    @cached_property
    def _places(self) -> Tensor:
        """The sum of every entry, all sides in a row."""
        (C, k, _), count = self._shape, len(self.layers)
        inputs = [k * i + layer.sketches.by_input.bins for i, layer in enumerate(self.layers)]
        deltas = [
            k * (count + C * i + c) + layer.sketches.by_output.bins
            for i, layer in enumerate(self.layers)
            for c in range(C)
        ]
        own = enumerate(self.layers)
        constants = [k * i + layer.sketches.constant for i, layer in own if layer.constant is not None]
        return torch.cat([*inputs, *deltas, inputs[0].new_tensor(constants)])

    def prepare(self) -> None:
        """What all threads use, made once."""
        assert len(self._factor) == len(self._places), "every entry has a sum"

    def spectrum(self, some: slice, count: int) -> Tensor:
        """Σ over layers of rfft(sketch of δ) ∘ rfft(sketch of a) for some rows, then zeros (count, C, k//2 + 1)."""
        C, k, sides = self._shape
        x = self._entries(some) * self._factor  # float64, as the factor is
        sketches = x.new_zeros(count, sides * k)
        sketches[: len(x)].scatter_(1, self._places.expand_as(x), x)
        found, inputs = torch.fft.rfft(sketches.view(count, sides, k)), len(self.layers)
        total: Tensor | None = None
        for i in range(inputs):
            # No loop runs over several vectors, because there are others between them: all are rounded in the same way.
            own = found[:, inputs + C * i : inputs + C * (i + 1)].mul_(found[:, i : i + 1])
            total = own if total is None else total.add_(own)
        assert total is not None, "a stack has layers"
        return total

    def _entries(self, some: slice) -> Tensor:
        inputs = [layer.inputs[some, 0] for layer in self.layers]
        deltas = [layer.deltas[some, :, 0].flatten(1) for layer in self.layers]
        constants = len(self._factor) - sum(part.shape[1] for part in (*inputs, *deltas))
        return torch.cat([*inputs, *deltas, inputs[0].new_ones(1, 1).expand(len(inputs[0]), constants)], 1)


def stacked(layers: Sequence[TransformedLayer]) -> list[Transformed]:
    """The same layers, those together that can be."""
    alone = [layer for layer in layers if not _fits(layer)]
    fit = [layer for layer in layers if _fits(layer)]
    stacks = [Stack(tuple(fit[i : i + MOST_STACKED])) for i in range(0, len(fit), MOST_STACKED)]
    for stack in stacks:
        stack.prepare()
    return [*stacks, *alone]


def _fits(layer: TransformedLayer) -> bool:
    k = layer.sketches.by_input.k
    return layer.positions == 1 and layer.inputs.shape[2] < k and layer.deltas.shape[3] <= k
