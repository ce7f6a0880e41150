"""Limits on metrics, from the command line or the spec."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import UserError, suggestion
from .metric_table import LISTED, METRICS

LimitKind = Literal["max", "min", "below", "above", "max_regression"]
# --fail-if states what must not happen; the limit is the opposite, what must hold.
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
        """Whether a value breaks a limit that needs no baseline."""
        if self.kind == "max":
            return value > self.amount
        if self.kind == "below":
            return value >= self.amount
        return value < self.amount if self.kind == "min" else value <= self.amount


def parse_limits(fail_if: Sequence[str], max_regression: Sequence[str]) -> list[Limit]:
    """The limits of a command line, in their order."""
    return [*map(parse_fail_if, fail_if), *map(parse_max_regression, max_regression)]


def parse_fail_if(text: str) -> Limit:
    """`w2 > 0.1`: the run fails if this is true."""
    match = re.fullmatch(r"\s*(\S+?)\s*(>=|<=|>|<)\s*(\S+)\s*", text)
    if match is None:
        raise UserError(
            f"--fail-if {text!r} is not a limit", hint="for example: --fail-if 'w2 > 0.1'; use >, >=, < or <="
        )
    metric, sign, number = match.groups()
    return Limit(_known(metric, "--fail-if"), _MUST_HOLD[sign], _finite(number, f"--fail-if {text!r}"))


def parse_max_regression(text: str) -> Limit:
    """`w2=0.01` or `w2=5%`: how much worse than the baseline a metric may be."""
    metric, equals, amount = (part.strip() for part in text.partition("="))
    if not equals:
        raise UserError(
            f"--max-regression {text!r} is not METRIC=AMOUNT",
            hint="for example: --max-regression w2=0.01 or --max-regression nll=5%",
        )
    name = _known(metric, "--max-regression")
    if METRICS[name].better is None:
        raise UserError(f"--max-regression {text!r}: {name} has no better direction", hint=_directed())
    try:
        return Limit(name, "max_regression", *regression_amount(amount))
    except ValueError as error:
        raise UserError(f"--max-regression {text!r}: {error}") from None


def regression_amount(value: object) -> tuple[float, bool]:
    """0.01 or "5%" → (amount, whether it is a share of the baseline's value)."""
    text = str(value).strip()
    share = text.endswith("%")
    number = text.removesuffix("%").strip()
    if isinstance(value, bool) or not re.fullmatch(_NUMBER, number) or not 0 <= float(number) < math.inf:
        raise ValueError(f"expected a finite number of at least 0, or a share such as 5%, got {text!r}")
    return (float(number) / 100, True) if share else (float(number), False)


def _known(metric: str, option: str) -> str:
    if metric not in METRICS:
        raise UserError(f"{option}: unknown metric '{metric}'", hint=suggestion(metric, METRICS))
    return metric


def _finite(number: str, where: str) -> float:
    if not re.fullmatch(_NUMBER, number) or not math.isfinite(float(number)):
        raise UserError(f"{where}: {number!r} is not a finite number")
    return float(number)


def _directed() -> str:
    return "one of: " + ", ".join(name for name in LISTED if METRICS[name].better is not None)
