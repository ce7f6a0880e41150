"""The metrics of a prediction, one function each, named as in `results/metric_table.py`.

Each returns one number, or one per test row (M,), because the outputs of a row are not independent.
"""

import math
from typing import TypeVar

import torch
from torch import Tensor

from .calibration import normalised_calibration_error, smooth_calibration_error
from .likelihoods.classes import calibration_error
from .prediction import Comparison, Prediction
from .ranks import rank_correlation, risk_coverage
from .tuning.conformal import Region

Z95 = 1.96
Known = TypeVar("Known")


class NotApplicable(Exception):
    """A metric has no value here; the argument says why."""


def rescale(prediction: Prediction, known: Comparison) -> float:
    """c of the rescaled variance."""
    return _required(prediction.rescale.c, "the sub-network's variance is 0 on all training rows")


def remainder(prediction: Prediction, known: Comparison) -> float:
    """b of the rescaled variance."""
    return prediction.rescale.b


def mean_std(prediction: Prediction, known: Comparison) -> float:
    """Mean epistemic standard deviation."""
    return float(prediction.common_std.mean())


def w2(prediction: Prediction, known: Comparison) -> Tensor:
    """|σ_full − σ|, the 2-Wasserstein distance of two Gaussians with one mean."""
    return (_std_full(known) - prediction.common_std).abs().mean(1)


def w2_relative(prediction: Prediction, known: Comparison) -> float:
    """w2 / mean σ_full."""
    scale = float(_std_full(known).mean())
    if scale <= 0:
        raise NotApplicable("the full posterior has no spread on the test rows")
    return float(w2(prediction, known).mean()) / scale


def w2_total(prediction: Prediction, known: Comparison) -> float:
    """w2 with the noise variance in both standard deviations."""
    full = _std_full(known)
    noise = _required(known.likelihood.noise(prediction.outputs), "there is no noise variance in classification")
    return float((_with_noise(full, noise) - _with_noise(prediction.common_std, noise)).abs().mean(1).mean())


def rank(prediction: Prediction, known: Comparison) -> float:
    """Spearman's correlation of σ with σ_full over the rows; mean over outputs. It compares orders, w2 sizes."""
    why_absent = "the standard deviations are the same on all test rows: they have no order"
    pairs = zip(prediction.common_std.unbind(1), _std_full(known).unbind(1), strict=True)
    found = [_required(rank_correlation(own, full), why_absent) for own, full in pairs]
    return sum(found) / len(found)


def w2_low(prediction: Prediction, known: Comparison) -> float:
    """The least w2 for any full posterior within the bounds."""
    return w2_bounds(prediction.common_std, *_bounds(known))[0]


def w2_high(prediction: Prediction, known: Comparison) -> float:
    """The largest w2 for any full posterior within the bounds."""
    return w2_bounds(prediction.common_std, *_bounds(known))[1]


def w2_bounds(std: Tensor, low: Tensor, high: Tensor) -> tuple[float, float]:
    """The least and the largest mean |σ_full − σ| for any σ_full between the bounds; all are (M, D)."""
    least = torch.maximum(low - std, std - high).clamp(min=0.0)
    most = torch.maximum((high - std).abs(), (low - std).abs())
    return float(least.mean(1).mean()), float(most.mean(1).mean())


def coverage95(prediction: Prediction, known: Comparison) -> Tensor:
    """Share of |f_oracle − f| ≤ 1.96 σ."""
    return _covered(_required(known.oracle, known.absent.oracle) - prediction.mean, prediction.std)


def coverage95_total(prediction: Prediction, known: Comparison) -> Tensor:
    """Share of |y − f| ≤ 1.96 √(σ² + σ₀²)."""
    return _covered(*_errors(prediction, known))


def ipv(prediction: Prediction, known: Comparison) -> float:
    """Mean over the training rows of the (Hessian-weighted) variance, summed over outputs."""
    return known.ipv(_required(prediction.freedom, f"{prediction.method} has no posterior"))


def discrepancy(prediction: Prediction, known: Comparison) -> float:
    """ipv of the full network − ipv."""
    own = ipv(prediction, known)
    return _required(known.of_full.ipv, known.absent.full) - own


def retained(prediction: Prediction, known: Comparison) -> float:
    """ipv / ipv of the full network."""
    own, full = ipv(prediction, known), _required(known.of_full.ipv, known.absent.full)
    if full <= 0:
        raise NotApplicable("the full network's ipv is 0")
    return own / full


def nll(prediction: Prediction, known: Comparison) -> Tensor:
    """Negative log-likelihood of the targets."""
    return known.likelihood.nll(prediction.outputs, _targets(known))


def rmse(prediction: Prediction, known: Comparison) -> float:
    """Root mean squared error of the mean."""
    error, _ = _errors(prediction, known)
    return math.sqrt(float(error.square().mean()))


def crps(prediction: Prediction, known: Comparison) -> Tensor:
    """Continuous ranked probability score of N(f, σ² + σ₀²)."""
    error, total = _errors(prediction, known)
    z = error / total
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return (total * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))).mean(1)


def accuracy(prediction: Prediction, known: Comparison) -> Tensor:
    """Share of rows whose most probable class is the true one."""
    return _top_class(prediction, known)[1]


def ece(prediction: Prediction, known: Comparison) -> float:
    """Expected calibration error over 15 equal-width bins of the top class' probability."""
    return calibration_error(*_top_class(prediction, known))


def brier(prediction: Prediction, known: Comparison) -> Tensor:
    """Σ over classes (p − onehot)²; binary: (p − y)²."""
    return known.likelihood.brier(_probabilities(prediction, known), _targets(known))


def smooth_ece(prediction: Prediction, known: Comparison) -> float:
    """Calibration error of the top class' probability, smoothed by a kernel instead of bins."""
    return smooth_calibration_error(*_top_class(prediction, known))


def signed_ece(prediction: Prediction, known: Comparison) -> Tensor:
    """Probability of the top class − 1[it is right]: positive on average if the probabilities are too high."""
    confidence, correct = _top_class(prediction, known)
    return confidence - correct


def ence(prediction: Prediction, known: Comparison) -> float:
    """|RMV − RMSE|/RMV in bins of √(σ² + σ₀²); each row and output is one pair."""
    error, total = _errors(prediction, known)
    return normalised_calibration_error(error.flatten(), total.flatten())


def aurc(prediction: Prediction, known: Comparison) -> float:
    """Mean over i of the risk of the i most certain rows."""
    return float(risk_coverage(*_uncertainty_and_risk(prediction, known)).mean())


def error_rank(prediction: Prediction, known: Comparison) -> float:
    """Spearman's correlation of a row's risk with its uncertainty, both as in `aurc`."""
    uncertainty, risk = _uncertainty_and_risk(prediction, known)
    if not bool(risk.isfinite().all()):
        return math.inf  # it has no rank
    why_absent = "the errors or the uncertainties are the same on all test rows: they have no order"
    return _required(rank_correlation(uncertainty, risk), why_absent)


def conformal_coverage(prediction: Prediction, known: Comparison) -> Tensor:
    """Share of the targets in their conformal intervals or sets."""
    return _region(prediction, known).covered(_targets(known))


def conformal_size(prediction: Prediction, known: Comparison) -> Tensor:
    """Width of the conformal interval, or number of classes in the set."""
    return _region(prediction, known).size


def _required(value: Known | None, why_absent: str) -> Known:
    if value is None:
        raise NotApplicable(why_absent)
    return value


def _std_full(known: Comparison) -> Tensor:
    return _required(known.std_full, known.absent.full)


def _bounds(known: Comparison) -> tuple[Tensor, Tensor]:
    return _required(known.std_bounds, "there are no bounds of the full posterior")


def _targets(known: Comparison) -> Tensor:
    return _required(known.targets, known.absent.targets)


def _errors(prediction: Prediction, known: Comparison) -> tuple[Tensor, Tensor]:
    """(y − f, √(σ² + σ₀²)) of regression."""
    noise = _required(known.likelihood.noise(prediction.outputs), "a metric of regression")
    return _targets(known) - prediction.mean, _with_noise(prediction.std, noise)


def _region(prediction: Prediction, known: Comparison) -> Region:
    conformal = _required(known.conformal, known.absent.conformal)
    region = conformal.region(prediction.outputs)
    if region is None:
        raise NotApplicable("it was not predicted at the held-out rows")
    return region


def _probabilities(prediction: Prediction, known: Comparison) -> Tensor:
    log_p = known.likelihood.log_probabilities(prediction.outputs)
    p = _required(log_p, "a metric of classification").exp()
    _targets(known)
    return p


def _top_class(prediction: Prediction, known: Comparison) -> tuple[Tensor, Tensor]:
    """(its probability, 1 where it is the true class) of each row."""
    confidence, predicted = _probabilities(prediction, known).max(1)
    return confidence, (predicted == _targets(known)).double()


def _uncertainty_and_risk(prediction: Prediction, known: Comparison) -> tuple[Tensor, Tensor]:
    """Of each row (M,), as the likelihood defines them."""
    likelihood, targets = known.likelihood, _targets(known)
    return likelihood.uncertainty(prediction.comparable), likelihood.risk(prediction.outputs, targets)


def _covered(error: Tensor, std: Tensor) -> Tensor:
    return (error.abs() <= Z95 * std).double().mean(1)


def _with_noise(std: Tensor, noise: Tensor) -> Tensor:
    return torch.sqrt(std.square() + noise)
