"""Points of a calibration plot: what was predicted, what was found and how sure that is, and where the rows lie."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ranks import mean_ranks

MOST_BINS, LEAST_IN_BIN = 15, 10  # bins of equal mass: at most so many, each with at least so many rows
HISTOGRAM_BINS = 20
LEVELS = (*(0.05 * i for i in range(1, 20)), 0.99)  # nominal coverages of central intervals


@dataclass(frozen=True)
class Reliability:
    """One line of a calibration plot. A perfect prediction has predicted = found, within low and high."""

    predicted: list[float]
    found: list[float]
    low: list[float]  # one standard error below `found`, and above it
    high: list[float]
    counts: list[int]  # rows (or targets) in HISTOGRAM_BINS equal parts of 0 to 1


def by_confidence(confidence: Tensor, correct: Tensor) -> Reliability:
    """Mean confidence and accuracy in bins of equally many rows; rows whose confidence ties share a bin."""
    M = len(confidence)
    n_bins = max(1, min(MOST_BINS, M // LEAST_IN_BIN))
    bins = ((mean_ranks(confidence) - 0.5) * n_bins / M).long()
    parts = [(confidence[bins == number], correct[bins == number]) for number in bins.unique().tolist()]
    predicted = [float(own.mean()) for own, _ in parts]
    found = [(float(hits.mean()), len(hits)) for _, hits in parts]
    return _with_errors(predicted, found, _histogram(confidence))


def by_level(z: Tensor) -> Reliability:
    """Nominal and empirical coverage of central intervals; z = |error| / standard deviation (M, D).

    The targets of one row are not independent: the errors count rows.
    """
    limits = [math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64))) for level in LEVELS]
    found = [(float((z <= limit).double().mean()), len(z)) for limit in limits]
    return _with_errors(list(LEVELS), found, _histogram(torch.erf(z / math.sqrt(2))))


def _with_errors(predicted: list[float], found: list[tuple[float, int]], counts: list[int]) -> Reliability:
    low, high = zip(*(_interval(share, n) for share, n in found), strict=True)
    return Reliability(predicted, [share for share, _ in found], list(low), list(high), counts)


def _interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval of one standard error: not empty where all of few rows are right."""
    centre, half = share + 0.5 / n, math.sqrt(share * (1 - share) / n + 0.25 / n**2)
    return (centre - half) / (1 + 1 / n), (centre + half) / (1 + 1 / n)


def _histogram(values: Tensor) -> list[int]:
    places = (values.flatten() * HISTOGRAM_BINS).long().clamp(0, HISTOGRAM_BINS - 1)
    return torch.bincount(places, minlength=HISTOGRAM_BINS).tolist()
