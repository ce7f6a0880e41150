"""Checks of single values of the spec, as pydantic validators and annotated types."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeGuard

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WrapValidator

from ...errors import suggestion
from .part import Finding, Part, described, findings_of, refuse, refused, wrong

LEAST_POSITIVE, MOST_POSITIVE = 1e-100, 1e100


def mapping(value: object) -> Mapping[str, Any]:
    """`value` as a raw mapping, empty if it is not a mapping, so that rules can read any value."""
    if isinstance(value, Part):
        return value.model_dump(by_alias=True, exclude_unset=True)
    return value if isinstance(value, Mapping) else {}


def is_number(value: object) -> TypeGuard[int | float]:
    """A finite number, and not a boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(value: object) -> float:
    """`value` as a float, or a refusal."""
    if not is_number(value):
        raise refuse(wrong("a number", value))
    return float(value)


def by_hand(check: Callable[[Any], Any]) -> WrapValidator:
    """`check` instead of pydantic's validation; values are still dumped as the annotated type."""
    return WrapValidator(lambda value, _: check(value))


def positive(value: object) -> float:
    """`value` as a float above 0 that may be divided by and squared, or a refusal."""
    if not is_number(value) or value <= 0:
        raise refuse(wrong("a number above 0", value))
    if not LEAST_POSITIVE <= value <= MOST_POSITIVE:
        raise refuse(wrong(f"a number from {LEAST_POSITIVE:g} to {MOST_POSITIVE:g}", value))
    return float(value)


def none_is(replacement: object) -> BeforeValidator:
    """The word `none`, like an empty value, means `replacement`."""
    return BeforeValidator(lambda value: replacement if value is None or value == "none" else value)


def one_of(options: Iterable[str | int]) -> WrapValidator:
    """Accepts exactly these values; a near miss gets a suggestion."""
    allowed = tuple(options)
    listed = " or ".join(f"'{option}'" if isinstance(option, str) else str(option) for option in allowed)

    def check(value: object) -> object:
        if any(type(value) is type(option) and value == option for option in allowed):
            return value
        if isinstance(value, str) and len(allowed) > 1:
            unknown = described(value).removeprefix("the text ")
            raise refuse(f"unknown value {unknown}; {suggestion(value, map(str, allowed))}")
        raise refuse(wrong(listed, value))

    return by_hand(check)


def matching(regex: str, expected: str) -> WrapValidator:
    """Accepts a text that matches `regex`."""

    def check(value: object) -> object:
        if isinstance(value, str) and re.fullmatch(regex, value, re.ASCII):
            return value
        raise refuse(wrong(expected, value))

    return by_hand(check)


def one_or_list(item: Callable[[object], Any]) -> Callable[[object], Any]:
    """Accepts one item, or a list of at least one."""

    def check(value: object) -> object:
        if not isinstance(value, list):
            return item(value)
        if not value:
            raise refuse("expected at least one item, got an empty list")
        return each(item, enumerate(value))

    return check


def each(item: Callable[[object], Any], entries: Iterable[tuple[str | int, object]]) -> list[Any]:
    """Check all items; their problems are raised together, each at its location."""
    findings: list[Finding] = []
    checked = []
    for key, value in entries:
        try:
            checked.append(item(value))
        except ValidationError as error:
            findings += [found._replace(location=(key, *found.location)) for found in findings_of(error)]
    if findings:
        raise refused(*findings)
    return checked


def text(value: object) -> str:
    """A text that is not empty, or a refusal."""
    if not isinstance(value, str):
        raise refuse(wrong("a text", value))
    if not value.strip():
        raise refuse("expected a text, got an empty one")
    return value


def column(value: object) -> str | int:
    """A column's name or its position."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise refuse(wrong("a position of at least 0", value))
        return value
    if not isinstance(value, str):
        raise refuse(wrong("a column's name or position", value))
    return text(value)


def _globs(value: object) -> tuple[str, ...]:
    found = one_or_list(text)([*value] if isinstance(value, tuple) else value)
    return (found,) if isinstance(found, str) else tuple(found)


def _distinct(values: list[int]) -> list[int]:
    if not values:
        raise refuse("expected at least one item, got an empty list")
    if len(set(values)) < len(values):
        raise refuse("expected each item once")
    return values


Index = Annotated[int, Field(ge=0)]
Text = Annotated[str, by_hand(text)]
Numbers = Annotated[float | list[float], by_hand(one_or_list(number))]
Column = Annotated[str | int, by_hand(column)]
ColumnNames = Annotated[str | int | list[str | int], by_hand(one_or_list(column))]
Distinct = AfterValidator(_distinct)
Globs = Annotated[tuple[str, ...], by_hand(_globs)]
