"""Rows as 8-bit digits (Ozaki's scheme): their products are sums of integers, exact and the same on every device.

A row x of at most PANEL columns becomes the integers q = round(x·2⁸ˢ⁻ᵉ), with one exponent e per row, and these their s
digits: x ≈ 2ᵉ Σᵢ dᵢ·256⁻ⁱ, i = 1…s, −128 ≤ dᵢ ≤ 127. The exponent leaves room for the digits: 2ᵉ < 4.04·max|x|.
So the product of two rows is the sum of the levels l = 2, 3, …: 2ᵉ⁺ᵉ′ 256⁻ˡ Σ dᵢ·d′ⱼ over i + j = l. Those up to s + 1
are taken, s(s + 1)/2 products of digits; each is a sum of integers below 2³¹, and exact. They are added up in float64,
from the last to the first.

What is lost, for rows of n columns (`error_bound`): values are off by at most half a unit, 2ᵉ⁻⁸ˢ⁻¹, and at most by
2ᵉ⁻¹ in size; of the levels beyond s + 1, the first has s − 1 products of at most 2¹⁴. Together
|error| ≤ n·2ᵉ⁺ᵉ′⁻⁸ˢ·(1/2 + (s − 1)/4·256/255), and the rounding of s sums, and of those of the panels, in float64.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from .integers import MULTIPLE, integer_products

PANEL = 2048  # columns that share an exponent per row; s·PANEL·2¹⁴ stays below 2³¹
BITS = 8
# Of a row's largest value: beyond, its square overflows; below, a product with itself is nothing beside 1.
LARGEST_EXPONENT = 500


@dataclass(frozen=True)
class Digits:
    """The digits of some rows over one panel of columns."""

    values: Tensor  # (r, s, columns) int8, the most significant first
    scale: Tensor  # 2ᵉ (r,) float64; NaN where the row is not finite, or too large

    @classmethod
    def of(cls, X: Tensor, s: int) -> Self:
        """X (r, columns), float32 or float64."""
        x = X.double()
        exponent, scale = _exponents(x)
        unit = _power_of_two(BITS * s - exponent)
        whole = (x * unit.unsqueeze(1)).round_().to(torch.int64)
        whole += sum(128 << (BITS * i) for i in range(s))  # so that every digit is a byte, which is 128 too large
        columns = x.shape[1]
        values = torch.zeros(len(x), s, -(-columns // MULTIPLE) * MULTIPLE, dtype=torch.int8, device=x.device)
        each = whole.view(torch.int8).view(
            len(x), columns, 8
        )  # the lowest first, on every processor that torch runs on
        for i in range(s):
            torch.bitwise_xor(each[:, :, s - 1 - i], -128, out=values[:, i, :columns])
        return cls(values, scale)

    @property
    def s(self) -> int:
        return self.values.shape[1]

    def rows(self, which: slice) -> "Digits":
        return Digits(self.values[which], self.scale[which])

    @cached_property
    def backwards(self) -> Tensor:
        """The least significant digits first."""
        return self.values.flip(1)

    def products(self, other: "Digits") -> Tensor:
        """The products of all rows with the other rows (r, r′), from the levels."""
        s, columns = self.values.shape[1:]
        mine, theirs = self.values.flatten(1), other.backwards.flatten(1)
        total = torch.zeros(len(mine), len(theirs), dtype=torch.float64, device=mine.device)
        for digits in range(s, 0, -1):  # the digits 1…l with the digits l…1
            level = integer_products(mine[:, : digits * columns], theirs[:, (s - digits) * columns :])
            total.mul_(2.0**-BITS).add_(level)
        return total.mul_(self.scale.mul(2.0 ** (-2 * BITS)).unsqueeze(1)).mul_(other.scale)


@dataclass(frozen=True)
class DigitRows:
    """Rows over all columns, panel by panel."""

    panels: tuple[Digits, ...]

    @classmethod
    def of(cls, X: Tensor, s: int) -> Self:
        return cls(tuple(Digits.of(panel, s) for panel in X.split(PANEL, dim=1)))

    def __len__(self) -> int:
        return len(self.panels[0].scale)

    def __getitem__(self, rows: slice) -> "DigitRows":
        return DigitRows(tuple(panel.rows(rows) for panel in self.panels))


def error_bound(x: Tensor, y: Tensor, s: int) -> float:
    """Bound of |x·y − what the digits give| for two rows (n,)."""
    pairs = list(zip(x.unsqueeze(0).split(PANEL, dim=1), y.unsqueeze(0).split(PANEL, dim=1), strict=True))
    size = sum(a.shape[1] * float(_exponents(a.double())[1]) * float(_exponents(b.double())[1]) for a, b in pairs)
    lost = 2.0 ** (-BITS * s) * (0.5 + (s - 1) / 4 * 256 / 255)
    return size * (lost + (s + len(pairs)) * 2.0**-54)  # sums are about a quarter of the size at most


def _exponents(x: Tensor) -> tuple[Tensor, Tensor]:
    """(e, 2ᵉ) of each row (r,): |x|/2ᵉ ≤ 127/256, which the digits can hold."""
    largest = x.abs().amax(1) if x.shape[1] else x.new_zeros(len(x))  # NaN where one value is
    fits = largest < 2.0**LARGEST_EXPONENT
    # 2^(exponent−1) ≤ value < 2^exponent, from the bits: the same on every device.
    value = torch.where(fits, largest, 1.0) * (256 / 254)
    exponent = ((value.view(torch.int64) >> 52) - 1022).clamp_(min=-LARGEST_EXPONENT) + 1
    return exponent, torch.where(fits, _power_of_two(exponent), torch.nan)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2ᵉ exactly, of normal numbers."""
    return ((exponent + 1023) << 52).view(torch.float64)
