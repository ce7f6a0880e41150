"""`Part`, the base of all models of the spec, and the checks of single values.

pydantic reports one mistake in a union or a literal several times. So choices are checked by hand here, and every
message is rewritten in plain words before it leaves a `Part`.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ...errors import suggestion

_EXPECTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
}


class Finding(NamedTuple):
    """One problem: its location below the current value, the message, and whether the key itself is wrong."""

    location: tuple[str | int, ...]
    message: str
    at_key: bool = False


class Part(BaseModel):
    """A mapping of the spec. Its fields and the rules between them are checked and reported together."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_by_alias=True,
        validate_by_name=True,  # for Python callers; a file is read by alias only
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        """The problems between the fields; `raw` is not validated, so any value may be of the wrong type."""
        yield from ()

    @classmethod
    def keys(cls) -> dict[str, str]:
        """Field name → the key it has in the file."""
        return {name: str(info.alias or name) for name, info in cls.model_fields.items()}

    @model_validator(mode="wrap")
    @classmethod
    def _fields_and_rules(cls, raw: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        findings: list[Finding] = []
        part = None
        try:
            part = handler(raw)
        except ValidationError as error:
            findings = list(_in_plain_words(error, cls))
        if isinstance(raw, Mapping):
            key_of = cls.keys()
            findings += cls.rules({key_of.get(str(name), str(name)): value for name, value in raw.items()})
            # a misspelt key has its own message with a suggestion: do not report it as missing too
            misspelt = _meant(findings, set(key_of.values())) - raw.keys()
            findings = [found for found in findings if not misspelt.intersection(found.location[:1])]
        if findings:
            raise refused(*findings)
        return part


def mapping(value: object) -> Mapping[str, Any]:
    """`value` as a raw mapping, empty if it is not a mapping, so that rules can read any value."""
    if isinstance(value, Part):
        return value.model_dump(by_alias=True, exclude_unset=True)
    return value if isinstance(value, Mapping) else {}


def refused(*findings: Finding) -> ValidationError:
    """The findings as one exception; pydantic puts the enclosing fields before their locations."""
    details = [
        InitErrorDetails(
            type=PydanticCustomError("key" if at_key else "value", "{message}", {"message": message}),
            loc=location,
            input=None,
        )
        for location, message, at_key in findings
    ]
    return ValidationError.from_exception_data("spec", details)


def refuse(message: str, *location: str | int) -> ValidationError:
    """One finding about the current value, or about the value at `location` inside it."""
    return refused(Finding(location, message))


def findings_of(error: ValidationError) -> list[Finding]:
    """The findings of an error that a `Part` raised."""
    return [Finding(d["loc"], d["ctx"]["message"], d["type"] == "key") for d in error.errors()]


def _in_plain_words(error: ValidationError, part: type[Part]) -> Iterator[Finding]:
    details = error.errors(include_url=False)
    known = set(part.keys().values())
    for detail in details:
        location = detail["loc"]
        if detail["type"] in ("key", "value"):
            yield Finding(location, detail["ctx"]["message"], detail["type"] == "key")
        elif detail["type"] == "extra_forbidden":
            key = str(location[-1])
            yield Finding(location, f"unknown key; {suggestion(key, known)}", at_key=True)
        elif detail["type"] == "missing":
            yield Finding(location, "this key is required, but missing")
        else:
            yield Finding(location, _wrong_value(detail))


def _meant(findings: list[Finding], known: set[str]) -> set[str]:
    unknown = {str(found.location[0]) for found in findings if found.at_key} - known
    return {near for key in unknown for near in difflib.get_close_matches(key, known, n=1)}


def _wrong_value(detail: ErrorDetails) -> str:
    expected = _EXPECTED.get(detail["type"])
    if expected is None:
        return detail["msg"]
    return wrong(expected.format(**detail.get("ctx", {})), detail["input"])


def wrong(expected: str, value: object) -> str:
    """“expected a number, got the text "abc"”."""
    return f"expected {expected}, got {_described(value)}"


def _described(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        short = value if len(value) <= 60 else value[:57] + "..."
        return "the text " + json.dumps(short, ensure_ascii=not short.isprintable())
    return "a list" if isinstance(value, (list, tuple)) else "a mapping"


def is_number(value: object) -> bool:
    """A finite number, and not a boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(value: object) -> float:
    """`value` as a float, or a refusal."""
    if not is_number(value):
        raise refuse(wrong("a number", value))
    return float(value)  # type: ignore[arg-type]


def by_hand(check: Callable[[Any], Any]) -> WrapValidator:
    """`check` instead of pydantic's own validation; values are still dumped as the annotated type."""
    return WrapValidator(lambda value, _: check(value))


def positive(value: object) -> float:
    """`value` as a float above 0, or a refusal."""
    if not is_number(value) or number(value) <= 0:
        raise refuse(wrong("a number above 0", value))
    return number(value)


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
            unknown = _described(value).removeprefix("the text ")
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
    """All items checked; the problems of all of them are raised together, each at its own location."""
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


def _distinct(values: list[int]) -> list[int]:
    if not values:
        raise refuse("expected at least one item, got an empty list")
    if len(set(values)) < len(values):
        raise refuse("expected each item once")
    return values


Index = Annotated[int, Field(ge=0)]
Text = Annotated[str, by_hand(text)]
Numbers = Annotated[float | list[float], by_hand(one_or_list(number))]
ColumnNames = Annotated[str | int | list[str | int], by_hand(one_or_list(column))]
Distinct = AfterValidator(_distinct)
