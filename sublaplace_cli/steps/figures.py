"""What the pictures show, as plain numbers: calibration, σ against σ_full, and where in the network S sits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.metrics import ECE_BINS, Predictive, log_probabilities
from .evaluate import Evaluation
from .session import Session
from .spreads import Spread

LEVELS = (*(0.05 * i for i in range(1, 20)), 0.99)  # nominal coverages
MOST_POINTS = 2000  # of a scatter, for each method: more would only be ink


@dataclass(frozen=True)
class Series:
    """One line or cloud of a picture."""

    label: str
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class LayerShare:
    """How many of a layer's parameters each sub-network holds."""

    name: str
    size: int
    chosen: dict[str, int]  # by label of the sub-network


@dataclass(frozen=True)
class Figures:
    """Everything that is drawn besides the result's own rows."""

    task: str
    calibration: list[Series]  # regression: nominal and empirical coverage; else: confidence and accuracy
    scatter: list[Series]  # σ_full and σ
    layers: list[LayerShare]
    missing: dict[str, str]  # why a picture cannot be drawn, by its kind


def figures_of(session: Session, evaluation: Evaluation) -> Figures:
    """The numbers behind all pictures of one evaluation."""
    known, spreads = evaluation.known, evaluation.spreads
    missing = {}
    if known.targets is None:
        missing["calibration"] = known.no_targets
    if known.std_full is None:
        missing["scatter"] = f"there is no full posterior to compare with ({known.no_full})"
    subnets = [spread for spread in spreads if spread.chosen is not None]
    if not subnets:
        missing["map"] = "no method of this evaluation chooses a sub-network"
    return Figures(
        task=session.task,
        calibration=[] if "calibration" in missing else [_calibration(spread, known) for spread in spreads],
        scatter=[] if "scatter" in missing else [_scatter(spread, known) for spread in spreads],
        layers=_layers(session, subnets),
        missing=missing,
    )


def _calibration(spread: Spread, known: Predictive) -> Series:
    std = spread.variance.clamp(min=0).sqrt()
    mean = known.f if spread.mean is None else spread.mean
    assert known.targets is not None, "the caller has looked"
    if known.task == "regression":
        z = ((known.targets - mean) / torch.sqrt(std.square() + (known.sigma2 or 0.0))).abs().flatten()
        limits = [math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64))) for level in LEVELS]
        return Series(spread.name, list(LEVELS), [float((z <= limit).double().mean()) for limit in limits])
    confidence, predicted = log_probabilities(mean, std).exp().max(1)
    return Series(spread.name, *_reliability(confidence, (predicted == known.targets).double()))


def _reliability(confidence: Tensor, correct: Tensor) -> tuple[list[float], list[float]]:
    """Mean confidence and accuracy of every bin that holds a row: the bins of the ECE."""
    bins = (confidence * ECE_BINS).ceil().long().clamp(1, ECE_BINS)
    filled = bins.unique().tolist()
    x = [float(confidence[bins == number].mean()) for number in filled]
    return x, [float(correct[bins == number].mean()) for number in filled]


def _scatter(spread: Spread, known: Predictive) -> Series:
    assert known.std_full is not None, "the caller has looked"
    full, own = known.std_full.flatten(), spread.variance.clamp(min=0).sqrt().flatten()
    step = math.ceil(len(full) / MOST_POINTS)
    return Series(spread.name, full[::step].tolist(), own[::step].tolist())


def _layers(session: Session, subnets: Sequence[Spread]) -> list[LayerShare]:
    masks = {}
    for spread in subnets:
        assert spread.chosen is not None, "the caller has looked"
        mask = torch.zeros(session.layout.size, dtype=torch.bool)
        mask[spread.chosen.indices.cpu()] = True
        masks[spread.name] = mask
    return [
        LayerShare(q.name, q.size, {label: int(mask[q.span].sum()) for label, mask in masks.items()})
        for q in session.layout.parameters
    ]
