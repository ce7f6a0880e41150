"""Products of a linear layer's rows from their factors, split into digits: (a·a′/v_W + 1/v_b)(δ·δ′) over positions."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from .arithmetic import digit_products
from .digits import DigitRows


@dataclass(frozen=True)
class SplitFactors:
    """Rows Σₜ δₙₜ ⊗ [aₙₜ, 1], the factors of all positions one below the other."""

    inputs: DigitRows  # (m·T, d_in)
    deltas: DigitRows  # (m·C·T, d_out)
    C: int
    T: int

    @classmethod
    def of(cls, inputs: Tensor, deltas: Tensor, digits: int) -> Self:
        """From a (m, T, d_in) and δ (m, C, T, d_out)."""
        a, delta = DigitRows.of(inputs.flatten(0, 1), digits), DigitRows.of(deltas.flatten(0, 2), digits)
        return cls(a, delta, *deltas.shape[1:3])

    def rows(self, first: int, last: int | None) -> "SplitFactors":
        inputs, deltas = (
            X[slice(first * step, None if last is None else last * step)]
            for X, step in ((self.inputs, self.T), (self.deltas, self.C * self.T))
        )
        return SplitFactors(inputs, deltas, self.C, self.T)

    def add_products(self, other: "SplitFactors", v_weight: float, v_bias: float | None, total: Tensor) -> None:
        """total += the products of all rows with the other rows (m·C, n·C′)."""
        kernel = digit_products(self.inputs, other.inputs).div_(v_weight)  # (m·T, n·T′)
        if v_bias is not None:
            kernel.add_(1 / v_bias)
        gradient = digit_products(self.deltas, other.deltas)  # (m·C·T, n·C′·T′)
        pairs = gradient.view(-1, self.C, self.T, len(other.inputs) // other.T, other.C, other.T)
        pairs *= kernel.view(-1, 1, self.T, pairs.shape[3], 1, other.T)
        total += gradient if self.T == other.T == 1 else pairs.sum(dim=(2, 5)).reshape(total.shape)
