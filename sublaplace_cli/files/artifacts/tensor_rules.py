"""What a tensor of an artifact must be: type, axes, and the range of its numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class TensorRule:
    """What a tensor must be. All numbers must be finite; `problem` finds what else is wrong with them."""

    dtype: str
    axes: tuple[str, ...]
    problem: Callable[[Tensor], str | None] = lambda values: None


def negative(values: Tensor) -> str | None:
    """For what cannot be below 0."""
    return "holds negative numbers" if bool((values < 0).any()) else None


def not_positive(values: Tensor) -> str | None:
    """For what must be above 0."""
    return None if bool((values > 0).all()) else "holds numbers that are not positive"


def no_factor(values: Tensor) -> str | None:
    """For Cholesky factors."""
    return None if bool((values.diagonal() > 0).all()) else "is no Cholesky factor: its diagonal must be positive"


def not_finite(values: Tensor) -> str | None:
    """A finite sum is the fast proof that all numbers are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        is_finite = math.isfinite(values.numpy().sum()) or bool(np.isfinite(values.numpy()).all())
    return None if is_finite else "holds numbers that are not finite"
