"""`gate:` of the spec: limits on metrics, by name."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from ...errors import suggestion
from ...results.limits import Limit, regression_amount
from ...results.metric_table import METRICS
from .findings import Finding, refuse, refused, wrong
from .part import Part
from .values import by_hand, is_number, number


def _regression(value: object) -> object:
    try:
        regression_amount(value)
    except ValueError as error:
        raise refuse(str(error)) from None
    return value


class MetricLimits(Part):
    """The limits of one metric, which every row must meet."""

    min: Annotated[float, by_hand(number)] | None = None
    max: Annotated[float, by_hand(number)] | None = None
    max_regression: Annotated[float | str, by_hand(_regression)] | None = None

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        if not raw:
            yield Finding((), "expected min, max or max_regression")
        low, high = raw.get("min"), raw.get("max")
        if is_number(low) and is_number(high) and number(low) > number(high):
            yield Finding(("min",), f"{low} is more than max {high}: no value can meet both")


def check_gate(value: object) -> object:
    """Check the names of the metrics, before their limits are checked."""
    if not isinstance(value, Mapping):
        raise refuse(wrong("a mapping such as {w2: {max: 0.02}}", value))
    findings = []
    for name, limits in value.items():
        if name not in METRICS:
            findings.append(Finding((name,), f"unknown metric; {suggestion(str(name), METRICS)}", at_key=True))
        elif METRICS[name].better is None and isinstance(limits, Mapping) and "max_regression" in limits:
            findings.append(Finding((name,), "it has no better direction: use min and max, not max_regression"))
    if findings:
        raise refused(*findings)
    return value


def limits_of(gate: Mapping[str, MetricLimits] | None) -> list[Limit]:
    """The limits of a spec, in its order."""
    found = []
    for metric, limits in (gate or {}).items():
        if limits.min is not None:
            found.append(Limit(metric, "min", limits.min))
        if limits.max is not None:
            found.append(Limit(metric, "max", limits.max))
        if limits.max_regression is not None:
            found.append(Limit(metric, "max_regression", *regression_amount(limits.max_regression)))
    return found
