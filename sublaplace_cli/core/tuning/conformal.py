"""Split-conformal prediction: intervals, and sets of classes, that hold the target of a new row at a chosen rate.

Every held-out row gets a score: how badly its target fits the prediction. Among n of them and a new row, all
exchangeable, the new score is no larger than the ⌈(n + 1)·level⌉-th smallest of the n with probability ≥ level. The
region of a row is everything whose score is no larger than that.

Vovk, Gammerman and Shafer 2005; Lei et al. 2018 (errors in units of a standard deviation); Romano, Sesia and Candès
2020 (adaptive sets of classes).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from ..gaussian import Gaussian
from ..likelihoods import Likelihood


def quantile_rank(n_rows: int, level: float) -> int:
    """⌈(n + 1)·level⌉ for the level as it is written: in floating point 100·0.55 is more than 55."""
    return math.ceil((n_rows + 1) * Fraction(repr(level)))


def least_rows(level: float) -> int:
    """The fewest rows whose quantile is finite: ⌈(n + 1)·level⌉ ≤ n."""
    exact = Fraction(repr(level))
    return math.ceil(exact / (1 - exact))


def upper_quantile(scores: Tensor, level: float) -> Tensor:
    """The ⌈(n + 1)·level⌉-th smallest of n scores in each column (n, D) → (D,); infinite if there are too few."""
    rank = quantile_rank(len(scores), level)
    if rank > len(scores):
        return torch.full_like(scores.sum(0), math.inf)
    return scores.kthvalue(rank, dim=0).values


@dataclass(frozen=True)
class Intervals:
    """An interval for each row and target (M, D)."""

    lower: Tensor
    upper: Tensor
    std: Tensor  # of a Gaussian whose central interval at the level is this one

    def covered(self, targets: Tensor) -> Tensor:
        """The share of each row's targets within their intervals (M,)."""
        return ((self.lower <= targets) & (targets <= self.upper)).double().mean(1)

    @property
    def size(self) -> Tensor:
        """Width, mean over the targets of a row (M,)."""
        return (self.upper - self.lower).mean(1)


@dataclass(frozen=True)
class Sets:
    """A set of classes for each row, never empty."""

    members: Tensor  # (M, classes) bool

    def covered(self, targets: Tensor) -> Tensor:
        """1 if the set holds the row's class, otherwise 0 (M,)."""
        return self.members.gather(1, targets.unsqueeze(1)).squeeze(1).double()

    @property
    def size(self) -> Tensor:
        """Number of classes (M,)."""
        return self.members.sum(1).double()


Region = Intervals | Sets


@dataclass(frozen=True)
class ConformalRule:
    """What region to compute, and from which likelihood."""

    likelihood: Likelihood
    level: float
    by_class: bool = False  # mondrian: a quantile for each class, so that the level holds for rows of each

    def fit(self, outputs: Gaussian, targets: Tensor) -> Tensor:
        """Quantiles of the scores of held-out rows: one per target (D,), one for all classes (1,) or one per class."""
        log_p = self.likelihood.log_probabilities(outputs)
        if log_p is None:
            mean, total = self._observations(outputs)
            return upper_quantile((targets - mean).abs() / total, self.level)
        own = class_scores(log_p).gather(1, targets.unsqueeze(1))  # (n, 1)
        if not self.by_class:
            return upper_quantile(own, self.level)
        return torch.cat([upper_quantile(own[targets == c], self.level) for c in range(log_p.shape[1])])

    def region(self, outputs: Gaussian, quantiles: Tensor) -> Region:
        """The targets whose scores are no larger than their quantile."""
        log_p = self.likelihood.log_probabilities(outputs)
        if log_p is not None:
            return Sets(class_scores(log_p) <= quantiles)
        mean, total = self._observations(outputs)
        half = quantiles * total
        return Intervals(mean - half, mean + half, half / self._normal_quantile)

    @property
    def _normal_quantile(self) -> float:
        """z with P(|N(0, 1)| ≤ z) = level."""
        return math.sqrt(2) * float(torch.erfinv(torch.tensor(self.level, dtype=torch.float64)))

    def _observations(self, outputs: Gaussian) -> tuple[Tensor, Tensor]:
        """Mean and √(σ² + noise) of the targets (M, D); σ alone may be 0, and then has no multiple that covers."""
        own, noise = outputs.some(self.likelihood.means(outputs.mean.shape[1])), self.likelihood.noise(outputs)
        assert noise is not None, "targets without classes are measurements"
        return own.mean, torch.sqrt(own.std.square() + noise)


def class_scores(log_p: Tensor) -> Tensor:
    """Probability of the classes that rank higher, minus 1 (M, classes); of equal ones the lower number ranks first.

    The set of all classes with a score ≤ τ − 1 is the shortest list from the top whose probability exceeds τ. Counting
    the class itself would give the last one the score of 1 in every row: with two classes, all sets would be full as
    soon as the network is wrong more often than the level permits. The most probable class has the least score that
    there is, so no set is empty.

    Computed from below, as minus the probability of the class and all that rank lower: near 1, sums from the top would
    be the same number for all but the first class of a confident row.
    """
    ranked, order = log_p.sort(dim=1, descending=True, stable=True)
    scores = -ranked.exp().flip(1).cumsum(1).flip(1)
    scores[:, 0] = -1.0  # without rounding
    return torch.empty_like(scores).scatter(1, order, scores)


@dataclass(frozen=True)
class Conformal:
    """A rule with the quantiles of several predictions."""

    rule: ConformalRule
    n_rows: int  # held-out rows that they come from
    quantiles: Mapping[Gaussian, Tensor]  # by the outputs at the rows to predict

    def region(self, outputs: Gaussian) -> Region | None:
        """The regions of one of the predictions; None if it was not fitted."""
        own = self.quantiles.get(outputs)
        return None if own is None else self.rule.region(outputs, own)

    def numbers(self, outputs: Gaussian) -> list[float]:
        """The quantiles of a prediction: in standard deviations, or as probabilities of the classes above."""
        has_classes = self.rule.likelihood.log_probabilities(outputs) is not None
        return [value + 1 if has_classes else value for value in self.quantiles[outputs].tolist()]
