"""Limits on metrics, from the command line or the spec."""

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..catalog import CALIBRATED, METHODS
from ..errors import UserError, suggestion
from .metric_table import LISTED, METRICS
from .result import Row

LimitKind = Literal["max", "min", "below", "above", "max_regression"]
_BREAKS = {"max": operator.gt, "min": operator.lt, "below": operator.ge, "above": operator.le}  # (value, amount)
# --fail-if states what must not hold; the limit is the opposite.
_MUST_HOLD: dict[str, LimitKind] = {">": "max", "<": "min", ">=": "below", "<=": "above"}
SHOWN_REFERENCES = ("map", "temperature", f"constant, {CALIBRATED}")  # rows that nobody has to ask for
ROW_NAMES = (*dict.fromkeys((*METHODS, *SHOWN_REFERENCES)),)  # besides names:PATTERN and package.module:function
EVERY_ROW = "*"  # in a limit on one set of test rows
# No other name starts like this: those with a slash, names:PATTERN, have a colon before it.
_SET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)/(.+)", re.DOTALL)
_AT_K = re.compile(r"\s*\(k = \d+\)$")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


@dataclass(frozen=True)
class Limit:
    """One limit on one metric: for every row of the methods that were asked for, or for those with one name."""

    metric: str
    kind: LimitKind
    amount: float
    relative: bool = False  # a regression given as a share of the baseline's value
    row: str | None = None  # a method, with or without its k; also a reference, which other limits leave out
    set: str | None = None  # of test rows; None: of every set

    @property
    def text(self) -> str:
        """“max 0.2”, “max_regression 5%”."""
        return f"{self.kind} {100 * self.amount:.12g}%" if self.relative else f"{self.kind} {self.amount:.12g}"

    def is_about(self, row: Row) -> bool:
        """Whether it applies to a row of those that it is about at all."""
        return self.row in (None, row.method, row.choice) and self.set in (None, row.set)

    def broken_by(self, value: float) -> bool:
        return _BREAKS[self.kind](value, self.amount)  # of a limit that needs no baseline


def parse_limits(fail_if: Sequence[str], max_regression: Sequence[str]) -> list[Limit]:
    """The limits of a command line, in their order."""
    return [*map(parse_fail_if, fail_if), *map(parse_max_regression, max_regression)]


def parse_fail_if(text: str) -> Limit:
    """`w2 > 0.1`, `full: w2 > 0.1` for one row, or `shifted/full: …` on one set: the run fails if this is true."""
    set_name, row, rest = split_row(text)
    match = re.fullmatch(r"\s*(\S+?)\s*(>=|<=|>|<)\s*(\S+)\s*", rest)
    if match is None:
        hint = "for example: --fail-if 'w2 > 0.1' or --fail-if 'full: w2 > 0.1'; use >, >=, < or <="
        raise UserError(f"--fail-if {text!r} is not a limit", hint=hint)
    metric, sign, number = match.groups()
    _check_known(row, metric, "--fail-if")
    if not re.fullmatch(_NUMBER, number) or not math.isfinite(float(number)):
        raise UserError(f"--fail-if {text!r}: {number!r} is not a finite number")
    return Limit(metric, _MUST_HOLD[sign], float(number), row=row, set=set_name)


def parse_max_regression(text: str) -> Limit:
    """`w2=0.01`, `w2=5%` or `full: w2=5%`: how much worse than the baseline a metric may be."""
    set_name, row, rest = split_row(text)
    metric, equals, amount = (part.strip() for part in rest.partition("="))
    if not equals:
        hint = "for example: --max-regression w2=0.01 or --max-regression nll=5%"
        raise UserError(f"--max-regression {text!r} is not METRIC=AMOUNT", hint=hint)
    _check_known(row, metric, "--max-regression")
    if METRICS[metric].better is None:
        directed = ", ".join(name for name in LISTED if METRICS[name].better is not None)
        raise UserError(f"--max-regression {text!r}: {metric} has no better direction", hint=f"one of: {directed}")
    try:
        return Limit(metric, "max_regression", *regression_amount(amount), row=row, set=set_name)
    except ValueError as error:
        raise UserError(f"--max-regression {text!r}: {error}") from None


def regression_amount(value: object) -> tuple[float, bool]:
    """0.01 or "5%" → (amount, whether it is a share of the baseline's value)."""
    text = str(value).strip()
    number = text.removesuffix("%").strip()
    if isinstance(value, bool) or not re.fullmatch(_NUMBER, number) or not 0 <= float(number) < math.inf:
        raise ValueError(f"expected a finite number of at least 0, or a share such as 5%, got {text!r}")
    return (float(number) / 100, True) if text.endswith("%") else (float(number), False)


def split_row(text: str) -> tuple[str | None, str | None, str]:
    """`shifted/full: w2 …` → ("shifted", "full", "w2 …"); no set and no row if none is named, or `*` for every row.

    Names of rows may have colons, metrics have none.
    """
    place, colon, rest = text.rpartition(":")
    if not colon:
        return None, None, text
    place, match = place.strip(), _SET.fullmatch(place.strip())
    if match is None:
        return None, place, rest.strip()
    row = match[2].strip()
    return match[1], None if row == EVERY_ROW else row, rest.strip()


def is_row_name(name: str) -> bool:
    """Whether a result could have such a row: a method, with or without “(k = 200)”."""
    return ":" in name or method_of_row(name) in ROW_NAMES


def method_of_row(name: str) -> str:
    """“gradient (k = 200)” → “gradient”."""
    return _AT_K.sub("", name)


def _check_known(row: str | None, metric: str, option: str) -> None:
    if metric not in METRICS:
        raise UserError(f"{option}: unknown metric '{metric}'", hint=suggestion(metric, METRICS))
    if row is not None and not is_row_name(row):
        raise UserError(f"{option}: unknown row '{row}'", hint=suggestion(row, ROW_NAMES))
