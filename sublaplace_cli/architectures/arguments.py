"""Checks the `args:` of a built-in architecture: unknown names, missing values and wrong types are errors."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UserError, suggestion

# A larger width overflows torch's size arithmetic before a check of the memory.
LARGEST_WIDTH = 10**9


def refuse_unknown(arch: str, args: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse any argument that `arch` does not take."""
    for name in args:
        if name not in set(known):
            raise UserError(f"architecture '{arch}' has no argument '{name}'", hint=suggestion(str(name), known))


def required(arch: str, args: Mapping[str, Any], name: str, example: str) -> Any:
    """The argument `name`, which has no default."""
    if name not in args:
        raise UserError(f"architecture '{arch}' needs the argument '{name}'", hint=f"for example args: {{{example}}}")
    return args[name]


def wrong_argument(arch: str, name: str, value: Any, expected: str, hint: str | None = None) -> UserError:
    """The error for an argument with a wrong value."""
    return UserError(f"architecture '{arch}', argument '{name}': found {value!r}, expected {expected}", hint=hint)


def positive_int(arch: str, name: str, value: Any) -> int:
    """`value` as a width or count of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_WIDTH:
        raise wrong_argument(arch, name, value, f"a whole number from 1 to {LARGEST_WIDTH}")
    return value


def one_of(arch: str, name: str, value: Any, choices: Iterable[Any]) -> Any:
    """`value` if it is one of `choices`; else an error with a suggestion."""
    known = list(choices)
    if value not in known or isinstance(value, bool):
        near = suggestion(value, map(str, known)) if isinstance(value, str) else None
        raise wrong_argument(arch, name, value, f"one of {', '.join(map(str, known))}", near)
    return value
