"""Numbers behind the pictures: calibration, risk by coverage, σ against σ_full, the layers of each sub-network."""

import math
from collections.abc import Sequence

from torch import Tensor

from ...core.network.layout import Layout
from ...core.prediction import Comparison, Prediction
from ...core.ranks import risk_coverage
from ...results.figures import CalibrationLine, Figures, LayerShare, Series
from ...run.posteriors.calibration import MAP
from ..select import layer_counts
from .ood import ood_scores
from .outcome import Evaluation, ScoredSet

MOST_POINTS = 2000  # per method in a scatter plot: more would only overlap
LINE_POINTS = 400  # of a line, at most
MOST_LINES = 5  # of a calibration picture


def figures_of(evaluation: Evaluation, layout: Layout) -> Figures:
    """The numbers behind all pictures of one evaluation."""
    known, predictions = evaluation.first.known, evaluation.first.predictions
    drawn, left_out = _drawn_in_calibration(evaluation.first)
    calibration, risks, scatter, missing = list[CalibrationLine](), list[Series](), list[Series](), dict[str, str]()
    if known.targets is None:
        missing |= dict.fromkeys(("calibration", "risk-coverage"), known.absent.targets)
    else:
        targets = known.targets
        calibration = [_calibration_line(each, known, targets) for each in drawn]
        risks = [_risks(each, known, targets) for each in predictions]
    if known.std_full is None:
        missing["scatter"] = f"there is no full posterior to compare with ({known.absent.full})"
    else:
        step = math.ceil(known.std_full.numel() / MOST_POINTS)
        full = known.std_full.flatten()[::step].tolist()
        scatter = [Series(each.name, full, each.std.flatten()[::step].tolist()) for each in predictions]
    subnets = [prediction for prediction in predictions if prediction.indices is not None]
    if not subnets:
        missing["map"] = "no method of this evaluation chooses a sub-network"
    told_apart = ood_scores(predictions, evaluation.first.rivals, known)
    if not told_apart:
        missing["ood"] = "no method of this evaluation has a variance" if known.ood else known.absent.ood
    return Figures(
        calibration_axes=(*known.likelihood.calibration_axes, known.likelihood.calibration_counts),
        calibration=calibration,
        risk_label=known.likelihood.risk_label,
        risk_coverage=risks,
        scatter=scatter,
        layers=_layers(layout, subnets),
        missing=missing,
        ood=told_apart,
        calibration_left_out=left_out,
        test_set=evaluation.first.test.name if len(evaluation.sets) > 1 else None,
    )


def _drawn_in_calibration(scored: ScoredSet) -> tuple[list[Prediction], int]:
    """The network alone, the methods that were asked for and the full posterior; how many there is no room for.

    Every method with its largest k comes before smaller k.
    """
    asked = {each.name: each for each in scored.predictions}
    beside = [each for each in scored.rivals if each.method == MAP]
    beside += [] if scored.full is None else [scored.full]
    beside = [each for each in beside if each.name not in asked]
    largest = {each.method: each.name for each in sorted(asked.values(), key=lambda each: each.k or 0)}
    first = set(largest.values())
    by_rank = sorted(asked.values(), key=lambda each: each.name not in first)  # stable: as asked otherwise
    chosen = {each.name for each in by_rank[: MOST_LINES - len(beside)]}
    return [*(each for each in asked.values() if each.name in chosen), *beside], len(asked) - len(chosen)


def _calibration_line(prediction: Prediction, known: Comparison, targets: Tensor) -> CalibrationLine:
    found = known.likelihood.calibration(prediction.outputs, targets)
    return CalibrationLine(prediction.name, found.predicted, found.found, found.low, found.high, found.counts)


def _risks(prediction: Prediction, known: Comparison, targets: Tensor) -> Series:
    """Mean risk by the share of the rows that are kept; the label has its mean, the metric aurc."""
    risk = known.likelihood.risk(prediction.outputs, targets)
    risks = risk_coverage(known.likelihood.uncertainty(prediction.comparable), risk).tolist()
    M = len(risks)
    kept = sorted({math.ceil(M * i / LINE_POINTS) for i in range(1, LINE_POINTS + 1)})
    label = f"{prediction.name}, aurc {sum(risks) / M:.4g}"
    return Series(label, [i / M for i in kept], [risks[i - 1] for i in kept])


def _layers(layout: Layout, subnets: Sequence[Prediction]) -> list[LayerShare]:
    counts = {each.name: layer_counts(layout, each.indices) for each in subnets if each.indices is not None}
    return [
        LayerShare(parameter.name, parameter.size, {label: own[parameter.name] for label, own in counts.items()})
        for parameter in layout.parameters
    ]
