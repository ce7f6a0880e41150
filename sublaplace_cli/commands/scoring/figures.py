"""Numbers behind the pictures: calibration, σ against σ_full, and the layers of each sub-network."""

import math
from collections.abc import Sequence

from ...core.network.layout import Layout
from ...core.prediction import Prediction
from ...results.result import Figures, LayerShare, Series
from ..evaluate import Evaluation
from ..select import layer_counts

MOST_POINTS = 2000  # per method in a scatter plot: more would only overlap


def figures_of(evaluation: Evaluation, layout: Layout) -> Figures:
    """The numbers behind all pictures of one evaluation."""
    known, predictions = evaluation.known, evaluation.predictions
    calibration, scatter, missing = list[Series](), list[Series](), {}
    if known.targets is None:
        missing["calibration"] = known.absent.targets
    else:
        points, targets = known.likelihood.calibration, known.targets
        calibration = [Series(each.name, *points(each.outputs, targets)) for each in predictions]
    if known.std_full is None:
        missing["scatter"] = f"there is no full posterior to compare with ({known.absent.full})"
    else:
        step = math.ceil(known.std_full.numel() / MOST_POINTS)
        full = known.std_full.flatten()[::step].tolist()
        scatter = [Series(each.name, full, each.std.flatten()[::step].tolist()) for each in predictions]
    subnets = [prediction for prediction in predictions if prediction.indices is not None]
    if not subnets:
        missing["map"] = "no method of this evaluation chooses a sub-network"
    return Figures(known.likelihood.calibration_axes, calibration, scatter, _layers(layout, subnets), missing)


def _layers(layout: Layout, subnets: Sequence[Prediction]) -> list[LayerShare]:
    counts = {each.name: layer_counts(layout, each.indices) for each in subnets if each.indices is not None}
    return [
        LayerShare(parameter.name, parameter.size, {label: own[parameter.name] for label, own in counts.items()})
        for parameter in layout.parameters
    ]
