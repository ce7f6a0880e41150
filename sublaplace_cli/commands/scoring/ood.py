"""How each method tells out-of-distribution rows from test rows, set by set: numbers, and the data of the picture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.metrics import NotApplicable
from ...core.ood import scores
from ...core.prediction import Comparison, OodSet, Prediction
from ...core.ranks import auroc
from ...results.figures import OodScore
from ...results.metric_table import METRICS
from ...run.posteriors.calibration import MAP
from .measuring import measured_row

METRIC_PREFIX = "ood_"
SCORE_LABELS: Mapping[str, scores.Score] = {
    "σ, mean over outputs": scores.std,
    "predictive entropy, nats": scores.entropy,
    "mutual information, nats": scores.mutual_information,
}
MOST_DRAWN = 5  # methods in a picture
TEST_ROWS = "test rows"  # no set can have this name


def by_set(predictions: Sequence[Prediction], known: Comparison) -> dict[str, Any]:
    """For the details of a result: the metrics of every set by its name. A row has those of the hardest one."""
    found = {each.name: _one_set(predictions, each, replace(known, ood=(each,))) for each in known.ood}
    return {"ood": found} if found else {}


def _one_set(predictions: Sequence[Prediction], ood: OodSet, known: Comparison) -> dict[str, Any]:
    metrics = [metric for metric in METRICS.values() if metric.needs == "ood"]
    rows = [measured_row(prediction, known, metrics) for prediction in predictions]
    methods = [{"method": row.method, "k": row.k, **_without_prefix(row.values)} for row in rows]
    return {"rows": len(next(iter(ood.ood.values())).mean), "methods": methods}


def _without_prefix(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name.removeprefix(METRIC_PREFIX): value for name, value in values.items()}


def ood_scores(predictions: Sequence[Prediction], rivals: Sequence[Prediction], known: Comparison) -> list[OodScore]:
    """The scores of the first methods, and of the network alone beside them where it has one."""
    if not known.ood:
        return []
    network = [rival for rival in rivals if rival.method == MAP and _values(scores.entropy, rival, known)]
    drawn = [*predictions[: MOST_DRAWN - len(network)], *network]
    return [found for label in SCORE_LABELS for found in _of_methods(label, drawn, known)]


def _of_methods(label: str, drawn: Sequence[Prediction], known: Comparison) -> Iterator[OodScore]:
    """One score of each method; none if no method has it."""
    found = [_values(SCORE_LABELS[label], prediction, known) for prediction in drawn]
    for prediction, values in zip(drawn, found, strict=True) if any(found) else ():
        areas = {name: auroc(values[TEST_ROWS], own) for name, own in values.items() if name != TEST_ROWS}
        yield OodScore(prediction.name, label, {name: own.tolist() for name, own in values.items()}, areas)


def _values(score: scores.Score, prediction: Prediction, known: Comparison) -> dict[str, Any]:
    test, own = known.ood[0].test[prediction.outputs], [each.ood[prediction.outputs] for each in known.ood]
    sets = {TEST_ROWS: test, **{each.name: outputs for each, outputs in zip(known.ood, own, strict=True)}}
    try:
        return {name: score(outputs, known.likelihood) for name, outputs in sets.items()}
    except NotApplicable:
        return {}
