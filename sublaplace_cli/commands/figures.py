"""Numbers behind the pictures: calibration, σ against σ_full, and the layers of each sub-network."""

import math
from collections.abc import Sequence

from ..core.network.layout import Layout
from ..core.prediction import Comparison, Prediction
from ..results.result import Figures, LayerShare, Series
from .evaluate import Evaluation
from .select import layer_counts

MOST_POINTS = 2000  # per method in a scatter plot: more would only overlap


def figures_of(evaluation: Evaluation, layout: Layout) -> Figures:
    """The numbers behind all pictures of one evaluation."""
    known, predictions = evaluation.known, evaluation.predictions
    missing = {}
    if known.targets is None:
        missing["calibration"] = known.absent.targets
    if known.std_full is None:
        missing["scatter"] = f"there is no full posterior to compare with ({known.absent.full})"
    subnets = [prediction for prediction in predictions if prediction.indices is not None]
    if not subnets:
        missing["map"] = "no method of this evaluation chooses a sub-network"
    return Figures(
        calibration_axes=known.likelihood.calibration_axes,
        calibration=[] if "calibration" in missing else [_calibration(each, known) for each in predictions],
        scatter=[] if "scatter" in missing else [_scatter(each, known) for each in predictions],
        layers=_layers(layout, subnets),
        missing=missing,
    )


def _calibration(prediction: Prediction, known: Comparison) -> Series:
    assert known.targets is not None, "the caller has checked it"
    return Series(prediction.name, *known.likelihood.calibration(prediction.mean, prediction.std, known.targets))


def _scatter(prediction: Prediction, known: Comparison) -> Series:
    assert known.std_full is not None, "the caller has checked it"
    full, own = known.std_full.flatten(), prediction.std.flatten()
    step = math.ceil(len(full) / MOST_POINTS)
    return Series(prediction.name, full[::step].tolist(), own[::step].tolist())


def _layers(layout: Layout, subnets: Sequence[Prediction]) -> list[LayerShare]:
    counts = {each.name: layer_counts(layout, each.indices) for each in subnets if each.indices is not None}
    return [
        LayerShare(parameter.name, parameter.size, {label: own[parameter.name] for label, own in counts.items()})
        for parameter in layout.parameters
    ]
