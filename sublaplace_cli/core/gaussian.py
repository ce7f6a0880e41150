"""The distribution of the outputs at some rows: what a posterior predicts and a likelihood integrates over."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Outputs of M rows: N(mean, covariance) for each row; the outputs of one row are not independent."""

    mean: Tensor  # (M, C)
    covariance: Tensor  # (M, C, C)
    noise_factor: float | Tensor = 1.0  # on the noise variance of a likelihood that has one: for all rows, or (M, 1)
    variance_bounds: tuple[Tensor, Tensor] | None = None  # (M, C) each, where the variances are not known exactly
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def certain(cls, mean: Tensor) -> Self:
        """Without any variance."""
        return cls(mean, mean.new_zeros(*mean.shape, mean.shape[1]))

    @cached_property
    def variance(self) -> Tensor:
        return self.covariance.diagonal(dim1=1, dim2=2)  # (M, C)

    @property
    def least_variance(self) -> Tensor:
        """What the variance is at least (M, C)."""
        return self.variance if self.variance_bounds is None else self.variance_bounds[0]

    @property
    def most_variance(self) -> Tensor:
        """What the variance is at most (M, C)."""
        return self.variance if self.variance_bounds is None else self.variance_bounds[1]

    @cached_property
    def std(self) -> Tensor:
        return self.variance.clamp(min=0).sqrt()

    def rows(self, which: Tensor) -> Self:
        noise = self.noise_factor
        return type(self)(
            self.mean[which], self.covariance[which], noise[which] if isinstance(noise, Tensor) else noise
        )

    def some(self, which: slice) -> Self:
        """Some of the outputs."""
        return type(self)(self.mean[:, which], self.covariance[:, which, which], self.noise_factor)

    def with_noise(self, factor: float | Tensor) -> Self:
        """With another factor on the noise variance: one, or one per row (M,)."""
        t = factor if isinstance(factor, (int, float)) else factor.reshape(-1, 1)
        return type(self)(self.mean, self.covariance, t)

    def scaled(self, factor: float | Tensor) -> Self:
        """With the covariance times one factor, or one per row (M,)."""
        c = factor if isinstance(factor, (int, float)) else factor.reshape(-1, 1, 1)
        return type(self)(self.mean, self.covariance * c, self.noise_factor)

    def once(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """`compute()`, kept for the next call: class probabilities are integrals, and many metrics need them."""
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]


def diagonal_covariance(variance: Tensor) -> Tensor:
    """Independent outputs: (M, C) → (M, C, C)."""
    return torch.diag_embed(variance)
