"""Base class of the likelihoods of measurements with Gaussian noise."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ..gaussian import Gaussian
from . import Likelihood
from .reliability import Reliability, by_level


@dataclass(frozen=True)
class GaussianNoise(Likelihood):
    """y ~ N(mean, noise variance), independent for each target."""

    calibration_axes: ClassVar[tuple[str, str]] = ("nominal coverage of the targets", "empirical coverage")
    calibration_counts: ClassVar[str] = "targets"
    risk_label: ClassVar[str] = "mean squared error"

    @abstractmethod
    def noise(self, outputs: Gaussian) -> Tensor:
        """Variance of the targets around their means (M, D)."""

    def check_targets(self, targets: np.ndarray, rows: np.ndarray, n_outputs: int, split: str) -> None:
        n_means = len(range(n_outputs)[self.means(n_outputs)])
        if targets.shape[1] != n_means:
            found = f"the {split} rows have {targets.shape[1]} target columns, the model has {n_outputs} outputs"
            raise UserError(found if n_means == n_outputs else f"{found}: {n_means} means")

    def errors(self, outputs: Gaussian, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(y − mean, √(σ² + noise)): the second is the standard deviation of a new observation (M, D)."""
        own = outputs.some(self.means(outputs.mean.shape[1]))
        return targets - own.mean, torch.sqrt(own.std.square() + self.noise(outputs))

    def nll(self, outputs: Gaussian, targets: Tensor) -> Tensor:
        error, total = self.errors(outputs, targets)
        return (0.5 * (error / total).square() + total.log() + 0.5 * math.log(2 * math.pi)).mean(1)

    def brier(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        raise TypeError("regression has no class probabilities")

    def calibration(self, outputs: Gaussian, targets: Tensor) -> Reliability:
        """Nominal and empirical coverage of central intervals."""
        error, total = self.errors(outputs, targets)
        return by_level((error / total).abs())

    def uncertainty(self, outputs: Gaussian) -> Tensor:
        """√(σ² + noise), mean over targets, less the least noise: so a small σ keeps its digits."""
        variance, noise = outputs.some(self.means(outputs.mean.shape[1])).std.square(), self.noise(outputs)
        least = noise.min()
        return ((variance + (noise - least)) / ((variance + noise).sqrt() + least.sqrt())).mean(1)

    def risk(self, outputs: Gaussian, targets: Tensor) -> Tensor:
        """(y − mean)², mean over targets."""
        return self.errors(outputs, targets)[0].square().mean(1)
