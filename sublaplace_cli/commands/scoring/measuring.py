"""From a prediction to a row of the result: every metric of the table."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

from ...core.metrics import NotApplicable
from ...core.prediction import Comparison, Prediction
from ...results.metric_table import METRICS, Metric
from ...results.result import Row, Setup
from ...run.run import Run
from .half_widths import half_widths

FULL_ROUNDING = 1e-6  # the full posterior's own share may be off by so much
MORE_THAN_FULL = (
    "above 1 because correlations between parameters are left out: without them the training rows narrow the "
    "predictions less than in the full posterior; only a sub-network's is a share"
)
MORE_THAN_FULL_BY_FEATURES = (
    "above 1 because random sums are no sub-network: their kernel is that of the full posterior on average over the "
    "seeds, so a single seed may exceed it"
)


def setup_of(run: Run, n_train: int, noise_variance: float | None, prior_precision: Any) -> Setup:
    """What was evaluated."""
    return Setup(
        task=run.project.spec.task,
        n_train=n_train,
        n_test=len(run.split("test")),
        n_params=run.layout.size,
        n_outputs=run.passes.n_outputs,
        noise_variance=noise_variance,
        prior_precision=prior_precision,
        device=str(run.device),
        workers=run.workers.size,
    )


@dataclass(frozen=True)
class Measured:
    """A row of the result, and the values that some of its metrics are the mean of, by test row."""

    row: Row
    by_row: Mapping[str, Tensor]


def measured(prediction: Prediction, known: Comparison, metrics: Iterable[Metric] = METRICS.values()) -> Measured:
    """The metrics of one prediction, with the reasons for those that are missing."""
    functions = _functions()
    values: dict[str, float | None] = {}
    why: dict[str, str] = {}
    by_row: dict[str, Tensor] = {}
    for metric in metrics:
        if metric.needs == "bracket" and (known.std_bounds is None or known.std_full is not None):
            continue
        found = _found(functions[metric.name], prediction, known)
        if isinstance(found, Tensor):
            by_row[metric.name] = found
        for name, value in _values(metric, found).items():
            values[name] = value if isinstance(value, float) else None
            if isinstance(value, str):
                why[name] = value
    if prediction.own_mean and values.get("w2") is not None:
        why["w2"] = "its mean is another one: the spreads alone are compared"
    if prediction.indices is None and (values.get("retained") or 0.0) > 1 + FULL_ROUNDING:
        why["retained"] = MORE_THAN_FULL if prediction.features is None else MORE_THAN_FULL_BY_FEATURES
    row = Row(prediction.method, prediction.k, values, why, half_widths=half_widths(prediction, known, values))
    return Measured(row, by_row)


def measured_row(prediction: Prediction, known: Comparison, metrics: Iterable[Metric] = METRICS.values()) -> Row:
    """The row alone."""
    return measured(prediction, known, metrics).row


@cache
def _functions() -> dict[str, Callable[..., Tensor | float]]:
    return {metric.name: getattr(import_module(metric.module), metric.name) for metric in METRICS.values()}


def _found(
    compute: Callable[..., Tensor | float], prediction: Prediction, known: Comparison
) -> Tensor | float | NotApplicable:
    try:
        return compute(prediction, known)
    except NotApplicable as reason:
        return reason


def _values(metric: Metric, found: Tensor | float | NotApplicable) -> dict[str, float | str]:
    """The metric and, for a mean over rows, its standard error (ddof 1); a text says why a number is missing."""
    if isinstance(found, NotApplicable):
        return dict.fromkeys((metric.name, f"{metric.name}_se") if metric.per_row else (metric.name,), str(found))
    if not isinstance(found, Tensor):
        return {metric.name: _finite(found)}
    error: float | str = "one row has no standard error"
    if len(found) > 1:
        error = _finite(float(found.std(correction=1)) / math.sqrt(len(found)))
    return {metric.name: _finite(float(found.mean())), f"{metric.name}_se": error}


def _finite(value: float) -> float | str:
    return float(value) if math.isfinite(value) else "not a finite number"
