"""What the likelihoods over classes have in common."""

import math

import torch
from torch import Tensor

ECE_BINS = 15
RELIABILITY_AXES = ("mean probability of the top class", "accuracy")


def probit_logits(f: Tensor, std: Tensor) -> Tensor:
    """Logits f/√(1 + πσ²/8): the probit correction, each output on its own."""
    return f / torch.sqrt(1 + math.pi * std.square() / 8)


def chosen_log_probability(log_p: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of the true class of each row (M,)."""
    return log_p.gather(1, targets.unsqueeze(1)).squeeze(1)


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


def reliability(log_p: Tensor, targets: Tensor) -> tuple[list[float], list[float]]:
    """Mean confidence and accuracy of every bin that holds a row."""
    confidence, predicted = log_p.exp().max(1)
    correct, bins = (predicted == targets).double(), ece_bins(confidence)
    filled = bins.unique().tolist()
    x = [float(confidence[bins == number].mean()) for number in filled]
    return x, [float(correct[bins == number].mean()) for number in filled]
