"""Base class of the likelihoods over classes."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..gaussian import Gaussian
from . import Likelihood
from .links import Link, entropy
from .reliability import Reliability, by_confidence

ECE_BINS = 15


@dataclass(frozen=True)
class ClassLikelihood(Likelihood):
    """A likelihood of labels 0, 1, … with `log_probabilities`."""

    link: Link = "integral"
    calibration_axes: ClassVar[tuple[str, str]] = ("mean probability of the top class, bins of equal mass", "accuracy")
    calibration_counts: ClassVar[str] = "rows"
    risk_label: ClassVar[str] = "error rate"

    def with_link(self, link: Link) -> Self:
        return replace(self, link=link)

    def log_probabilities(self, outputs: Gaussian) -> Tensor:
        return outputs.once(self, lambda: self.integrated(outputs).clamp(max=0))  # above 0 by rounding alone

    @abstractmethod
    def integrated(self, outputs: Gaussian) -> Tensor:
        """Log-probabilities of the classes (M, classes), by the link."""

    @abstractmethod
    def expected_entropy(self, outputs: Gaussian) -> Tensor:
        """E H(p) over the Gaussian of the logits (M,), whatever the link."""

    def mutual_information(self, outputs: Gaussian) -> Tensor:
        """H(E p) − E H(p) of each row (M,), in nats: the part of the entropy that is the posterior's.

        Both terms are integrals, whatever the link: with a closed form of E p the difference could be negative.
        """
        whole = entropy(self.with_link("integral").log_probabilities(outputs))
        return (whole - self.expected_entropy(outputs)).clamp(min=0)  # below 0 by rounding alone

    def fit_terms(self, f: Tensor, targets: Tensor) -> tuple[None, float]:
        return None, -float(self.nll(Gaussian.certain(f), targets).sum())

    def nll(self, outputs: Gaussian, targets: Tensor) -> Tensor:
        return -self.log_probabilities(outputs).gather(1, targets.unsqueeze(1)).squeeze(1)  # (M,)

    def calibration(self, outputs: Gaussian, targets: Tensor) -> Reliability:
        """Mean confidence and accuracy of bins of equal mass."""
        confidence, predicted = self.log_probabilities(outputs).exp().max(1)
        return by_confidence(confidence, (predicted == targets).double())

    def uncertainty(self, outputs: Gaussian) -> Tensor:
        """1 − the top class' probability, as the sum of the others: a difference to 1 would lose its digits."""
        log_p = self.log_probabilities(outputs)
        return log_p.scatter(1, log_p.argmax(1, keepdim=True), -torch.inf).exp().sum(1)

    def risk(self, outputs: Gaussian, targets: Tensor) -> Tensor:
        """1 where the most probable class is not the true one, else 0."""
        return (self.log_probabilities(outputs).argmax(1) != targets).double()

    def row_columns(self, outputs: Gaussian) -> dict[str, Tensor]:
        log_p = self.log_probabilities(outputs)
        information = self.mutual_information(outputs)
        return {"entropy": entropy(log_p), "mutual_information": information, "confidence": log_p.exp().amax(1)}


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
