"""The problems of a spec: one `Finding` each, and the exception that carries them through pydantic."""

import json
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError


class Finding(NamedTuple):
    """One problem: its location below the current value, the message, and whether the key itself is wrong."""

    location: tuple[str | int, ...]
    message: str
    at_key: bool = False


def refused(*findings: Finding) -> ValidationError:
    """The findings as one exception; pydantic puts the enclosing fields before their locations."""
    details = []
    for location, message, at_key in findings:
        kind = PydanticCustomError("key" if at_key else "value", "{message}", {"message": message})
        details.append(InitErrorDetails(type=kind, loc=location, input=None))
    return ValidationError.from_exception_data("spec", details)


def refuse(message: str) -> ValidationError:
    """One finding about the current value."""
    return refused(Finding((), message))


def findings_of(error: ValidationError) -> list[Finding]:
    """The findings of an error that a `Part` raised."""
    return [Finding(d["loc"], d["ctx"]["message"], d["type"] == "key") for d in error.errors()]


def wrong(expected: str, value: object) -> str:
    """“expected a number, got the text "abc"”."""
    return f"expected {expected}, got {described(value)}"


def described(value: object) -> str:
    """A value in words, such as “the number 3”."""
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
