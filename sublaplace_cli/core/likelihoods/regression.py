"""Regression with Gaussian noise."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import UserError
from ..gaussian import Gaussian
from . import Likelihood

LEVELS = (*(0.05 * i for i in range(1, 20)), 0.99)  # nominal coverages of a calibration plot


@dataclass(frozen=True)
class Regression(Likelihood):
    """y ~ N(f, σ₀² I)."""

    noise_variance: float = 1.0
    calibration_axes: ClassVar[tuple[str, str]] = ("nominal coverage of the targets", "empirical coverage")
    risk_label: ClassVar[str] = "mean squared error"

    def with_noise(self, sigma2: float) -> Self:
        return replace(self, noise_variance=sigma2)

    def root(self, f: Tensor) -> Tensor:
        """H = I/σ₀²."""
        eye = torch.eye(f.shape[1], dtype=torch.float64, device=f.device)
        return (eye / self.noise_variance**0.5).expand(f.shape[0], -1, -1)  # (N, C, C)

    def kernel_root(self, f: Tensor) -> None:
        return None

    def check_outputs(self, n_outputs: int) -> None: ...

    def check_targets(self, targets: np.ndarray, rows: np.ndarray, n_outputs: int, split: str) -> None:
        if targets.shape[1] != n_outputs:
            found = f"the {split} rows have {targets.shape[1]} target columns"
            raise UserError(f"{found}, the model has {n_outputs} outputs")

    def fit_terms(self, f: Tensor, targets: Tensor) -> tuple[float, float]:
        return float((targets - f).square().sum()), 0.0

    def loss(self) -> tuple[nn.Module, float]:
        return nn.MSELoss(reduction="sum"), 0.5 / self.noise_variance

    def loss_targets(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        return targets.to(dtype)

    def total_std(self, std: Tensor) -> Tensor:
        """√(σ² + σ₀²): the standard deviation of a new observation."""
        return torch.sqrt(std.square() + self.noise_variance)

    def nll(self, outputs: Gaussian, targets: Tensor) -> Tensor:
        total = self.total_std(outputs.std)
        z = (targets - outputs.mean) / total
        return (0.5 * z.square() + total.log() + 0.5 * math.log(2 * math.pi)).mean(1)

    def brier(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        raise TypeError("regression has no class probabilities")

    def calibration(self, outputs: Gaussian, targets: Tensor) -> tuple[list[float], list[float]]:
        """Nominal and empirical coverage of central intervals."""
        z = ((targets - outputs.mean) / self.total_std(outputs.std)).abs().flatten()
        limits = [math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64))) for level in LEVELS]
        return list(LEVELS), [float((z <= limit).double().mean()) for limit in limits]

    def uncertainty(self, outputs: Gaussian) -> Tensor:
        """√(σ² + σ₀²) − σ₀, mean over outputs: the order of the total std, where a small σ keeps its digits."""
        noise = math.sqrt(self.noise_variance)
        return (outputs.std.square() / (self.total_std(outputs.std) + noise)).mean(1)

    def risk(self, outputs: Gaussian, targets: Tensor) -> Tensor:
        """(y − f)², mean over outputs."""
        return (targets - outputs.mean).square().mean(1)
