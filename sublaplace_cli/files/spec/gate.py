"""`gate` of the spec: limits of metrics, for all rows (`w2: …`) or some (`"full: w2": …`, `"shifted/full: w2": …`)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from ...errors import suggestion
from ...results.limits import ROW_NAMES, Limit, is_row_name, regression_amount, split_row
from ...results.metric_table import METRICS
from .part import PROBLEMS_SHOWN, Finding, Part, refuse, refused, wrong
from .values import by_hand, is_number


def _regression(value: object) -> object:
    try:
        regression_amount(value)
    except ValueError as error:
        raise refuse(str(error)) from None
    return value


class MetricLimits(Part):
    """The limits of one metric, which every row must meet, or the one that its key names."""

    min: float | None = None
    max: float | None = None
    max_regression: Annotated[float | str, by_hand(_regression)] | None = None

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        if not raw:
            yield Finding((), "expected min, max or max_regression")
        low, high = raw.get("min"), raw.get("max")
        if is_number(low) and is_number(high) and float(low) > float(high):
            yield Finding(("min",), f"{low} is more than max {high}: no value can meet both")


def known_rows_and_metrics(value: object) -> object:
    """Refuse keys that are neither METRIC nor [SET/]ROW: METRIC."""
    if not isinstance(value, Mapping):
        raise refuse(wrong("a mapping such as {w2: {max: 0.02}}", value))
    findings: list[Finding] = []
    for name, limits in value.items():
        _, row, metric = split_row(str(name))
        if metric not in METRICS:
            advice = f"; {suggestion(metric, METRICS)}" if len(findings) < PROBLEMS_SHOWN else ""
            findings.append(Finding((name,), f"unknown metric{advice}", at_key=True))
        elif row is not None and not is_row_name(row):
            advice = f"; {suggestion(row, ROW_NAMES)}" if len(findings) < PROBLEMS_SHOWN else ""
            findings.append(Finding((name,), f"unknown row '{row}'{advice}", at_key=True))
        elif METRICS[metric].better is None and isinstance(limits, Mapping) and "max_regression" in limits:
            findings.append(Finding((name,), "it has no better direction: use min and max, not max_regression"))
    if findings:
        raise refused(*findings)
    return value


def limits_of(gate: Mapping[str, MetricLimits] | None) -> list[Limit]:
    """The limits of a spec, in its order."""
    found = []
    for name, limits in (gate or {}).items():
        on, row, metric = split_row(name)
        if limits.min is not None:
            found.append(Limit(metric, "min", limits.min, row=row, set=on))
        if limits.max is not None:
            found.append(Limit(metric, "max", limits.max, row=row, set=on))
        if limits.max_regression is not None:
            found.append(Limit(metric, "max_regression", *regression_amount(limits.max_regression), row=row, set=on))
    return found
