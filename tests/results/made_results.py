"""Results made by hand, for the tests of `results` and `render`."""

from __future__ import annotations

from typing import Any

from sublaplace_cli.results.metric_table import METRIC_VERSION, METRICS
from sublaplace_cli.results.result import References, Result, Row, Setup

MADE_FROM = {
    "weights_sha256": "w",
    "fingerprint": "f",
    "metrics": METRIC_VERSION,
    "rows_sha256": "d",
    "oracle_sha256": None,
    "rescale": "none",
    "link": None,
    "conformal": None,
}
SETUP = Setup(
    task="regression",
    n_train=3,
    n_test=2,
    n_params=9,
    n_outputs=1,
    noise_variance=0.5,
    prior_precision=1.0,
    device="cpu",
    workers=1,
)


def row(method: str = "gradient", k: int | None = 5, why: dict[str, str] | None = None, **values: Any) -> Row:
    """A row with some values; `ks` makes it one over several k."""
    return Row(method, k, ks=values.pop("ks", None), values=values, why=why or {})


def complete_row(method: str = "gradient", k: int | None = 5, **values: float | None) -> Row:
    """A row with every key that `evaluate` gives, in an order that is not that of the JSON."""
    names = [metric for metric in reversed(METRICS.values()) if metric.needs != "bracket"]
    known: dict[str, float | None] = {metric.name: 0.25 for metric in names}
    known |= {f"{metric.name}_se": 0.125 for metric in names if metric.per_row}
    return Row(method, k, {**known, **values}, {"w2_se": "b", "accuracy": "a"})


def result(*rows: Row, full: Row | None = None, details: dict[str, Any] | None = None, **made_from: Any) -> Result:
    """A result of these rows; `made_from` overrides its provenance."""
    return Result(SETUP, {**MADE_FROM, **made_from}, References(full), rows, details=details or {})
