"""In which arithmetic the rows of a Gram matrix are multiplied; their sums are float64."""

from enum import IntEnum
from typing import Self

import torch
from torch import Tensor

from .choice import takes_digits
from .digits import DigitRows, Digits
from .launch import level_gram

Rows = Tensor | DigitRows  # made ready for products
LEAST_DIGITS = 4


class Arithmetic(IntEnum):
    """Of the products, not of their sums; a number, so that it can be sent to other workers."""

    FLOAT64 = 0
    FLOAT32 = 1
    SPLIT_4 = 4  # digits of 8 bits per value: see `digits`
    SPLIT_5 = 5

    @classmethod
    def named(cls, name: str) -> Self:
        """float64, float32 or split: with few digits, to which more are added where they are not enough."""
        return cls[{"float64": "FLOAT64", "float32": "FLOAT32", "split": "SPLIT_4"}[name]]

    @property
    def digits(self) -> int:
        """Of every value, or 0: values are not split."""
        return int(self) if self >= LEAST_DIGITS else 0

    @property
    def dtype(self) -> torch.dtype:
        """Of the values that are not split."""
        return torch.float32 if self is Arithmetic.FLOAT32 else torch.float64

    @property
    def finer(self) -> "Arithmetic | None":
        """What to try where these products are not accurate enough."""
        return Arithmetic.SPLIT_5 if self is Arithmetic.SPLIT_4 else None

    @property
    def products(self) -> str:
        """In words."""
        return f"products of {self.digits} digits" if self.digits else f"{self.name.lower()} products"

    def rows(self, X: Tensor) -> Rows:
        """Rows (r, columns) for products in this arithmetic."""
        return DigitRows.of(X, self.digits) if self.digits else X.to(self.dtype)


def add_row_products(total: Tensor, A: Rows, B: Rows, factor: float = 1.0, upper: bool = False) -> None:
    """total += factor·A Bᵀ; with `upper`, what lies below the diagonal does not count."""
    if isinstance(A, DigitRows) and isinstance(B, DigitRows):
        for own, others in zip(A.panels, B.panels, strict=True):
            add_digit_products(total, own, others, factor, upper)
    elif isinstance(A, Tensor) and isinstance(B, Tensor):
        add_product(total, A, B.T, factor)
    else:
        raise TypeError("rows of two kinds of arithmetic have no product")


def add_digit_products(total: Tensor, A: Digits, B: Digits, factor: float, upper: bool) -> None:
    """total += factor·A Bᵀ; every operation rounds once, so that all devices give the same bits."""
    if takes_digits(total.device, A.s):
        level_gram(total, A, B, factor, upper)
        return
    found = A.products(B)
    total.add_(found if factor == 1.0 else found.mul_(factor))


def digit_products(A: DigitRows, B: DigitRows) -> Tensor:
    """A Bᵀ."""
    total = torch.zeros(len(A), len(B), dtype=torch.float64, device=A.panels[0].scale.device)
    add_row_products(total, A, B)
    return total


def add_product(total: Tensor, A: Tensor, B: Tensor, factor: float = 1.0) -> None:
    """total += factor·A B, the product in the type of A and B."""
    if A.dtype == total.dtype:
        total.addmm_(A, B, alpha=factor)
    else:
        total.add_(A @ B, alpha=factor)
