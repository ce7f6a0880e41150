"""`Part`, the base of all models of the spec, and the problems that it finds, in plain words.

pydantic reports one mistake in a union or a literal several times: choices are checked by hand (see `values`).
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ...errors import suggestion

PROBLEMS_SHOWN = 50  # in one file
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


class Part(BaseModel):
    """A mapping of the spec. Its fields and the rules between them are checked and reported together."""

    # by name for Python callers; a file is read by alias only
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_by_alias=True, validate_by_name=True
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
            # a misspelt key already has a message with a suggestion: do not report it as missing too
            known = set(key_of.values())
            unknown = [key for found in findings if found.at_key and (key := str(found.location[0])) not in known]
            meant = {
                near for key in unknown[:PROBLEMS_SHOWN] for near in difflib.get_close_matches(key, known, n=1)
            } - raw.keys()
            findings = [found for found in findings if not meant.intersection(found.location[:1])]
        if findings:
            raise refused(*findings)
        return part


def _in_plain_words(error: ValidationError, part: type[Part]) -> Iterator[Finding]:
    known = set(part.keys().values())
    unknown = 0
    for detail in error.errors(include_url=False):
        location = detail["loc"]
        if detail["type"] in ("key", "value"):
            yield Finding(location, detail["ctx"]["message"], detail["type"] == "key")
        elif detail["type"] == "extra_forbidden":
            unknown += 1  # they come in the order of the file: later ones are only counted
            advice = f"; {suggestion(str(location[-1]), known)}" if unknown <= PROBLEMS_SHOWN else ""
            yield Finding(location, f"unknown key{advice}", at_key=True)
        elif detail["type"] == "missing":
            yield Finding(location, "this key is required, but missing")
        else:
            expected = _EXPECTED.get(detail["type"], "").format(**detail.get("ctx", {}))
            yield Finding(location, wrong(expected, detail["input"]) if expected else detail["msg"])
