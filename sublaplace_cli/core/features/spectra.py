"""The sketch of δ ⊗ a without writing it out: a circular convolution of the sketches of δ and of a (TensorSketch).

Sums over positions and layers stay in the frequency domain; one inverse transform per row and output ends them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..jacobian.linear import ELEMENTWISE, LinearBlock
from .groups import Groups, folded

# Numbers in one elementwise operation: below this, PyTorch does not divide it among threads, whose parts could be
# rounded differently at their ends.
UNDIVIDED = 2**15 - 1


@dataclass(frozen=True)
class FactorSketches:
    """The sketches of the two sides."""

    by_output: Groups
    by_input: Groups  # times the common scale of all weights
    constant: int  # the sum of the constant input


@dataclass(frozen=True)
class TransformedLayer:
    """A linear layer and how its factors are sketched."""

    inputs: Tensor  # a (m, T, d_in)
    deltas: Tensor  # δ (m, C, T, d_out)
    sketches: FactorSketches
    constant: float | None  # the input of the bias in the prior's metric, with its sign; None: without a bias

    @property
    def positions(self) -> int:
        return self.inputs.shape[1]

    @property
    def lane_bytes(self) -> int:
        C, d_out = self.deltas.shape[1], self.deltas.shape[3]
        return 12 * (self.inputs.shape[2] + C * d_out) + 48 * (1 + C) * (self.sketches.by_input.k // 2 + 1)

    def spectrum(self, some: slice, count: int) -> Tensor:
        """Σ over positions of rfft(sketch of δ) ∘ rfft(sketch of a) for some rows, then zeros (count, C, k//2 + 1)."""
        inputs, deltas = _padded(self.inputs[some], count), _padded(self.deltas[some], count)
        at_once = max(1, lanes(self.sketches.by_input.k, deltas.shape[1]) // count)
        total: Tensor | None = None
        for first in range(0, self.positions, at_once):
            few = slice(first, first + at_once)
            a, delta = self.sketches.by_input.sums(inputs[:, few]), self.sketches.by_output.sums(deltas[:, :, few])
            if self.constant is not None:
                a[..., self.sketches.constant] += self.constant
            # (count, C, t, frequencies)
            summed = folded(_multiplied(torch.fft.rfft(delta), torch.fft.rfft(a).unsqueeze(1)), 2)
            total = summed if total is None else total.add_(summed)
        assert total is not None, "a row has at least one position"
        return total


def lanes(k: int, C: int) -> int:
    """Rows or positions that are transformed at a time."""
    return max(1, UNDIVIDED // (C * (k // 2 + 1)))


def transform_is_cheaper(block: LinearBlock, k: int) -> bool:
    """Multiplications of one row, by shapes alone, so that all rows go the same way.

    Transforms: at each position one of a and C of δ, 2.5 k log₂ k each, and C complex products of k/2 numbers with
    their sum: 4k. Written out: C products and sums of each entry per position, and one gathered entry each, with its
    padding up to k; elementwise work that runs at memory speed counts ELEMENTWISE times.
    """
    (T, d_in), (C, d_out) = block.inputs.shape[1:], (block.n_outputs, block.deltas.shape[3])
    transformed = T * ((1 + C) * 2.5 * k * math.log2(max(k, 2)) + 4 * C * k)
    written_out = C * d_in * d_out * (T + ELEMENTWISE) + ELEMENTWISE * C * k
    return transformed < written_out


class Transformed(Protocol):
    """Some layers, whose sums over positions and layers are taken in the frequency domain."""

    @property
    def positions(self) -> int: ...
    @property
    def lane_bytes(self) -> int:
        """About what one row at one position takes: factors that are gathered, their sketches and spectra."""

    def spectrum(self, some: slice, count: int) -> Tensor: ...


def rows_at_once(layers: Sequence[Transformed], k: int, C: int) -> int:
    return max(1, lanes(k, C) // max(layer.positions for layer in layers))


def bytes_at_once(layers: Sequence[Transformed], k: int, C: int) -> int:
    return lanes(k, C) * max(layer.lane_bytes for layer in layers)


def put_transformed(layers: Sequence[Transformed], some: slice, total: Tensor) -> None:
    """The sketches of these layers for some rows into `total` (all, C, k); always the same number of rows at a time."""
    C, k = total.shape[1:]
    step = rows_at_once(layers, k, C)
    for first in range(some.start, some.stop, step):
        few = slice(first, min(first + step, some.stop))
        spectrum = layers[0].spectrum(few, step)
        for other in layers[1:]:
            spectrum.add_(other.spectrum(few, step))
        total[few] = torch.fft.irfft(spectrum, n=k)[: few.stop - first]


def _multiplied(x: Tensor, y: Tensor) -> Tensor:
    """x ∘ y in x. The last number apart: so no loop runs over several vectors, and all are rounded in the same way."""
    x[..., :-1].mul_(y[..., :-1])
    x[..., -1].mul_(y[..., -1])
    return x


def _padded(x: Tensor, rows: int) -> Tensor:
    return x if len(x) == rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])
