"""The metrics of a prediction, one function each, named as in `results/metric_table.py`.

Each returns one number, or one per test row (M,), because the outputs of a row are not independent.
"""

import math
from typing import TypeVar

import torch
from torch import Tensor

from .likelihoods.classes import calibration_error
from .prediction import Comparison, Prediction
from .selectors import rounded
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
    own, full = _centred_ranks(prediction.common_std), _centred_ranks(_std_full(known))  # (M, C)
    scale = own.norm(dim=0) * full.norm(dim=0)
    if bool((scale == 0).any()):
        raise NotApplicable("the standard deviations are the same on all test rows: they have no order")
    return float(((own * full).sum(0) / scale).mean())


def w2_low(prediction: Prediction, known: Comparison) -> float:
    """The least w2 for any full posterior within the bounds."""
    low, high = _bounds(known)
    return float(torch.maximum(low - prediction.common_std, prediction.common_std - high).clamp(min=0.0).mean(1).mean())


def w2_high(prediction: Prediction, known: Comparison) -> float:
    """The largest w2 for any full posterior within the bounds."""
    low, high = _bounds(known)
    return float(
        torch.maximum((high - prediction.common_std).abs(), (low - prediction.common_std).abs()).mean(1).mean()
    )


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
    return _required(known.full_ipv, known.absent.full) - own


def retained(prediction: Prediction, known: Comparison) -> float:
    """ipv / ipv of the full network."""
    own, full = ipv(prediction, known), _required(known.full_ipv, known.absent.full)
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
    return (_probabilities(prediction, known).max(1).indices == _targets(known)).double()


def ece(prediction: Prediction, known: Comparison) -> float:
    """Expected calibration error over 15 equal-width bins of the top class' probability."""
    confidence, predicted = _probabilities(prediction, known).max(1)
    return calibration_error(confidence, (predicted == _targets(known)).double())


def brier(prediction: Prediction, known: Comparison) -> Tensor:
    """Σ over classes (p − onehot)²; binary: (p − y)²."""
    return known.likelihood.brier(_probabilities(prediction, known), _targets(known))


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


def _covered(error: Tensor, std: Tensor) -> Tensor:
    return (error.abs() <= Z95 * std).double().mean(1)


def _centred_ranks(std: Tensor) -> Tensor:
    """Ranks in each column minus their mean; equal values share the mean of their ranks."""
    columns = []
    for values in rounded(std).unbind(1):
        _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
        columns.append((count.cumsum(0) - 0.5 * (count - 1).double())[place])
    return torch.stack(columns, 1) - 0.5 * (len(std) + 1)


def _with_noise(std: Tensor, noise: Tensor) -> Tensor:
    return torch.sqrt(std.square() + noise)
