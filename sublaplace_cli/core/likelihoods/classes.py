"""Base class of the likelihoods over classes."""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from . import Likelihood

ECE_BINS = 15


class ClassLikelihood(Likelihood):
    """A likelihood of labels 0, 1, … with `log_probabilities`."""

    calibration_axes: ClassVar[tuple[str, str]] = ("mean probability of the top class", "accuracy")

    @abstractmethod
    def log_probabilities(self, f: Tensor, std: Tensor) -> Tensor: ...

    def fit_terms(self, f: Tensor, targets: Tensor) -> tuple[None, float]:
        return None, float(self._log_likelihood(f, torch.zeros_like(f), targets).sum())

    def nll(self, f: Tensor, std: Tensor, targets: Tensor) -> Tensor:
        return -self._log_likelihood(f, std, targets)

    def _log_likelihood(self, f: Tensor, std: Tensor, targets: Tensor) -> Tensor:
        return self.log_probabilities(f, std).gather(1, targets.unsqueeze(1)).squeeze(1)  # (M,)

    def calibration(self, f: Tensor, std: Tensor, targets: Tensor) -> tuple[list[float], list[float]]:
        """Mean confidence and accuracy of every bin that holds a row."""
        confidence, predicted = self.log_probabilities(f, std).exp().max(1)
        correct, bins = (predicted == targets).double(), ece_bins(confidence)
        filled = bins.unique().tolist()
        x = [float(confidence[bins == number].mean()) for number in filled]
        return x, [float(correct[bins == number].mean()) for number in filled]


def probit_logits(f: Tensor, std: Tensor) -> Tensor:
    """Logits f/√(1 + πσ²/8): the probit correction, per output."""
    return f / torch.sqrt(1 + math.pi * std.square() / 8)


def squared_errors(probabilities: Tensor, targets: Tensor) -> Tensor:
    """(p − onehot)² for each row and class (M, classes)."""
    onehot = torch.nn.functional.one_hot(targets, probabilities.shape[1]).double()
    return (probabilities - onehot).square()


def ece_bins(confidence: Tensor) -> Tensor:
    """The equal-width bin of each probability, 1 to 15, left-open as is usual."""
    return (confidence * ECE_BINS).ceil().long().clamp(1, ECE_BINS)


def calibration_error(confidence: Tensor, correct: Tensor) -> float:
    """Expected calibration error of the top class' probability."""
    gap = torch.zeros(ECE_BINS, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, ece_bins(confidence) - 1, correct - confidence)
    return float(gap.abs().sum()) / len(confidence)
