"""Numbers behind the pictures: calibration, risk by coverage, σ against σ_full, the layers of each sub-network."""

import math
from collections.abc import Sequence

from torch import Tensor

from ...core.network.layout import Layout
from ...core.prediction import Comparison, Prediction
from ...core.ranks import risk_coverage
from ...results.result import Figures, LayerShare, Series
from ..evaluate import Evaluation
from ..select import layer_counts
from .ood import ood_scores

MOST_POINTS = 2000  # per method in a scatter plot: more would only overlap
LINE_POINTS = 400  # of a line, at most


def figures_of(evaluation: Evaluation, layout: Layout) -> Figures:
    """The numbers behind all pictures of one evaluation."""
    known, predictions = evaluation.known, evaluation.predictions
    calibration, risks, scatter, missing = list[Series](), list[Series](), list[Series](), dict[str, str]()
    if known.targets is None:
        missing |= dict.fromkeys(("calibration", "risk-coverage"), known.absent.targets)
    else:
        points, targets = known.likelihood.calibration, known.targets
        calibration = [Series(each.name, *points(each.outputs, targets)) for each in predictions]
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
    told_apart = ood_scores(predictions, evaluation.rivals, known)
    if not told_apart:
        missing["ood"] = "no method of this evaluation has a variance" if known.ood else known.absent.ood
    return Figures(
        calibration_axes=known.likelihood.calibration_axes,
        calibration=calibration,
        risk_label=known.likelihood.risk_label,
        risk_coverage=risks,
        scatter=scatter,
        layers=_layers(layout, subnets),
        missing=missing,
        ood=told_apart,
    )


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
