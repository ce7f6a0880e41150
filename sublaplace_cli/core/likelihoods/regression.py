"""Regression with the same Gaussian noise at every row."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ..gaussian import Gaussian
from .gaussian_noise import GaussianNoise


@dataclass(frozen=True)
class Regression(GaussianNoise):
    """y ~ N(f, σ₀² I)."""

    noise_variance: float = 1.0

    def with_noise(self, sigma2: float) -> Self:
        return replace(self, noise_variance=sigma2)

    def root(self, f: Tensor) -> Tensor:
        """H = I/σ₀²."""
        eye = torch.eye(f.shape[1], dtype=torch.float64, device=f.device)
        return (eye / self.noise_variance**0.5).expand(f.shape[0], -1, -1)  # (N, C, C)

    def kernel_root(self, f: Tensor) -> None:
        return None

    def check_outputs(self, n_outputs: int) -> None: ...

    def fit_terms(self, f: Tensor, targets: Tensor) -> tuple[float, float]:
        return float((targets - f).square().sum()), 0.0

    def noise(self, outputs: Gaussian) -> Tensor:
        return torch.full_like(outputs.mean, self.noise_variance) * outputs.noise_factor
