"""Section 5 of the contract: from means, deviations and targets to the numbers of one result row.

A metric is a number for each row of data; its mean and the standard error of that mean come from one place,
by row, because outputs of one row are not independent. What does not apply is None, with the reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

Z95 = 1.96
ECE_BINS = 15


@dataclass(frozen=True)
class Predictive:
    """What is known of the test rows, whatever the method; all (M, C) but the targets."""

    task: str
    f: Tensor
    sigma2: float | None  # noise variance, None for classification
    targets: Tensor | None  # regression (M, C); classification (M,) int64
    oracle: Tensor | None
    std_full: Tensor | None
    std_bounds: tuple[Tensor, Tensor] | None = None  # of the full posterior, where only bounds are known
    no_targets: str = "the test rows have no targets"
    no_full: str = "no full posterior was computed"
    no_oracle: str = "no oracle in the spec"


def distance_bounds(std: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest |σ_full − σ| for any σ_full between the bounds; for a sub-network's σ, L − σ and U − σ."""
    nearest = torch.maximum(low - std, std - high).clamp(min=0.0)
    return nearest, torch.maximum((high - std).abs(), (low - std).abs())


@dataclass
class Scores:
    """Numbers and the reasons for those that are missing."""

    values: dict[str, float | None] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: float, why: str = "not a finite number") -> None:
        if math.isfinite(value):
            self.values[name] = value
        else:
            self.miss(name, why)

    def miss(self, name: str, why: str) -> None:
        self.values[name] = None
        self.why[name] = why

    def mean(self, name: str, rows: Tensor) -> None:
        """Mean over rows (M,) and, as `name_se`, its standard error (ddof 1)."""
        self.put(name, float(rows.mean()))
        if len(rows) < 2:
            self.miss(f"{name}_se", "one row has no standard error")
        else:
            self.put(f"{name}_se", float(rows.std(correction=1)) / math.sqrt(len(rows)))

    def miss_mean(self, name: str, why: str) -> None:
        self.miss(name, why)
        self.miss(f"{name}_se", why)


def score(std: Tensor, known: Predictive) -> Scores:
    """All metrics of one method from its epistemic standard deviations (M, C)."""
    scores = Scores()
    scores.put("mean_std", float(std.mean()))
    _closeness(scores, std, known)
    _oracle_coverage(scores, std, known)
    if known.task == "regression":
        _regression(scores, std, known)
    else:
        _classification(scores, std, known)
    return scores


def _closeness(scores: Scores, std: Tensor, known: Predictive) -> None:
    if known.std_full is None:
        scores.miss_mean("w2", known.no_full)
        scores.miss("w2_relative", known.no_full)
        scores.miss("w2_total", known.no_full)
        if known.std_bounds is not None:
            least, most = distance_bounds(std, *known.std_bounds)
            scores.put("w2_low", float(least.mean(1).mean()))
            scores.put("w2_high", float(most.mean(1).mean()))
        return
    w2 = (known.std_full - std).abs().mean(1)
    scores.mean("w2", w2)
    scale = float(known.std_full.mean())
    if scale > 0:
        scores.put("w2_relative", float(w2.mean()) / scale)
    else:
        scores.miss("w2_relative", "the full posterior has no spread on the test rows")
    if known.sigma2 is None:
        scores.miss("w2_total", "there is no noise variance in classification")
    else:
        total = _with_noise(known.std_full, known.sigma2) - _with_noise(std, known.sigma2)
        scores.put("w2_total", float(total.abs().mean(1).mean()))


def _oracle_coverage(scores: Scores, std: Tensor, known: Predictive) -> None:
    if known.oracle is None:
        scores.miss_mean("coverage95", known.no_oracle)
    else:
        scores.mean("coverage95", _covered(known.oracle - known.f, std))


def _regression(scores: Scores, std: Tensor, known: Predictive) -> None:
    for name in ("accuracy", "brier"):
        scores.miss_mean(name, "a metric of classification")
    scores.miss("ece", "a metric of classification")
    if known.targets is None:
        for name in ("coverage95_total", "nll", "crps"):
            scores.miss_mean(name, known.no_targets)
        scores.miss("rmse", known.no_targets)
        return
    assert known.sigma2 is not None, "regression has a noise variance"
    total = _with_noise(std, known.sigma2)
    error = known.targets - known.f
    z = error / total
    scores.mean("coverage95_total", _covered(error, total))
    scores.mean("nll", (0.5 * z.square() + total.log() + 0.5 * math.log(2 * math.pi)).mean(1))
    scores.put("rmse", math.sqrt(float(error.square().mean())))
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    crps = total * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    scores.mean("crps", crps.mean(1))


def _classification(scores: Scores, std: Tensor, known: Predictive) -> None:
    for name in ("coverage95_total", "crps"):
        scores.miss_mean(name, "a metric of regression")
    scores.miss("rmse", "a metric of regression")
    if known.targets is None:
        for name in ("nll", "accuracy", "brier"):
            scores.miss_mean(name, known.no_targets)
        scores.miss("ece", known.no_targets)
        return
    log_p = log_probabilities(known.f, std)  # (M, classes)
    p, y = log_p.exp(), known.targets
    scores.mean("nll", -log_p.gather(1, y.unsqueeze(1)).squeeze(1))
    confidence, predicted = p.max(1)
    correct = (predicted == y).double()
    scores.mean("accuracy", correct)
    onehot = torch.nn.functional.one_hot(y, p.shape[1]).double()
    squared = (p - onehot).square()
    scores.mean("brier", squared[:, 1] if known.task == "binary" else squared.sum(1))
    scores.put("ece", calibration_error(confidence, correct))


def log_probabilities(f: Tensor, std: Tensor) -> Tensor:
    """Probit-corrected log-probabilities (M, classes); one logit gives two classes."""
    z = f / torch.sqrt(1 + math.pi * std.square() / 8)
    if z.shape[1] == 1:
        return torch.nn.functional.logsigmoid(torch.cat([-z, z], dim=1))
    return torch.log_softmax(z, dim=1)


def calibration_error(confidence: Tensor, correct: Tensor) -> float:
    """ECE over 15 equal-width bins (left-open, as is usual) of the top class' probability."""
    bins = (confidence * ECE_BINS).ceil().long().clamp(1, ECE_BINS) - 1
    gap = torch.zeros(ECE_BINS, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, bins, correct - confidence)
    return float(gap.abs().sum()) / len(confidence)


def _covered(error: Tensor, std: Tensor) -> Tensor:
    return (error.abs() <= Z95 * std).double().mean(1)


def _with_noise(std: Tensor, sigma2: float) -> Tensor:
    return torch.sqrt(std.square() + sigma2)
