"""Limits on metrics, from the command line or the spec."""

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import UserError, suggestion
from .metric_table import LISTED, METRICS

LimitKind = Literal["max", "min", "below", "above", "max_regression"]
_BREAKS = {"max": operator.gt, "min": operator.lt, "below": operator.ge, "above": operator.le}  # (value, amount)
# --fail-if states what must not hold; the limit is the opposite.
_MUST_HOLD: dict[str, LimitKind] = {">": "max", "<": "min", ">=": "below", "<=": "above"}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


@dataclass(frozen=True)
class Limit:
    """One limit on one metric, for every row."""

    metric: str
    kind: LimitKind
    amount: float
    relative: bool = False  # a regression given as a share of the baseline's value

    @property
    def text(self) -> str:
        """“max 0.2”, “max_regression 5%”."""
        return f"{self.kind} {100 * self.amount:.12g}%" if self.relative else f"{self.kind} {self.amount:.12g}"

    def broken_by(self, value: float) -> bool:
        return _BREAKS[self.kind](value, self.amount)  # of a limit that needs no baseline


def parse_limits(fail_if: Sequence[str], max_regression: Sequence[str]) -> list[Limit]:
    """The limits of a command line, in their order."""
    return [*map(parse_fail_if, fail_if), *map(parse_max_regression, max_regression)]


def parse_fail_if(text: str) -> Limit:
    """`w2 > 0.1`: the run fails if this is true."""
    match = re.fullmatch(r"\s*(\S+?)\s*(>=|<=|>|<)\s*(\S+)\s*", text)
    if match is None:
        hint = "for example: --fail-if 'w2 > 0.1'; use >, >=, < or <="
        raise UserError(f"--fail-if {text!r} is not a limit", hint=hint)
    metric, sign, number = match.groups()
    _check_known(metric, "--fail-if")
    if not re.fullmatch(_NUMBER, number) or not math.isfinite(float(number)):
        raise UserError(f"--fail-if {text!r}: {number!r} is not a finite number")
    return Limit(metric, _MUST_HOLD[sign], float(number))


def parse_max_regression(text: str) -> Limit:
    """`w2=0.01` or `w2=5%`: how much worse than the baseline a metric may be."""
    metric, equals, amount = (part.strip() for part in text.partition("="))
    if not equals:
        hint = "for example: --max-regression w2=0.01 or --max-regression nll=5%"
        raise UserError(f"--max-regression {text!r} is not METRIC=AMOUNT", hint=hint)
    _check_known(metric, "--max-regression")
    if METRICS[metric].better is None:
        directed = ", ".join(name for name in LISTED if METRICS[name].better is not None)
        raise UserError(f"--max-regression {text!r}: {metric} has no better direction", hint=f"one of: {directed}")
    try:
        return Limit(metric, "max_regression", *regression_amount(amount))
    except ValueError as error:
        raise UserError(f"--max-regression {text!r}: {error}") from None


def regression_amount(value: object) -> tuple[float, bool]:
    """0.01 or "5%" → (amount, whether it is a share of the baseline's value)."""
    text = str(value).strip()
    number = text.removesuffix("%").strip()
    if isinstance(value, bool) or not re.fullmatch(_NUMBER, number) or not 0 <= float(number) < math.inf:
        raise ValueError(f"expected a finite number of at least 0, or a share such as 5%, got {text!r}")
    return (float(number) / 100, True) if text.endswith("%") else (float(number), False)


def _check_known(metric: str, option: str) -> None:
    if metric not in METRICS:
        raise UserError(f"{option}: unknown metric '{metric}'", hint=suggestion(metric, METRICS))
