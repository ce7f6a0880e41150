"""`--method`, `--k`, `--pool` and `--retain` as typed → choices."""

import re

from ..catalog import BY_NAME, DEFAULT_METHOD, METHODS, NAMES_PREFIX, Method
from ..errors import UserError, suggestion
from ..run.job import Choice, MethodCall
from .settings import Settings

AUTO = "auto"
DEFAULT_RETAIN = 0.9


def parse_choices(settings: Settings) -> tuple[Choice, ...]:
    """Every requested (method, k) pair, in the order typed."""
    calls, ks = parse_methods(settings.method), _parse_ks(settings.k)
    if settings.k is not None and not any(call.method.takes_k for call in calls):
        names = ", ".join(call.name for call in calls)
        raise UserError(f"--k was given, but {names} takes no k", hint="leave --k out, or add a method that takes it")
    retain = _parse_retain(settings, calls)
    wanted: list[int | None] = [*ks] if ks else [None]
    return tuple(
        Choice(call, k, retain if call.method.takes_k else None)
        for call in calls
        for k in (wanted if call.method.takes_k else [None])
    )


def parse_methods(text: str | None) -> list[MethodCall]:
    """A comma list of methods without repetition."""
    # A comma inside brackets belongs to the glob of names:PATTERN.
    names = [name.strip() for name in re.split(r",(?![^\[]*\])", DEFAULT_METHOD if text is None else text)]
    if any(not name for name in names):
        raise UserError(f"--method {text!r} has an empty name in it", hint=f"available: {', '.join(METHODS)}")
    return [_parse_method(name) for name in dict.fromkeys(names)]


def _parse_method(name: str) -> MethodCall:
    if name.startswith(NAMES_PREFIX):
        if name == NAMES_PREFIX:
            raise UserError("--method names: needs a pattern", hint="for example: --method 'names:layer3.*'")
        return MethodCall(name, BY_NAME, pattern=name.removeprefix(NAMES_PREFIX))
    if name in METHODS:
        return MethodCall(name, METHODS[name])
    module, colon, function = name.partition(":")
    if colon and module.replace(".", "").isidentifier() and function.isidentifier():
        return MethodCall(name, Method(name, "a user's own selector", nested=False), own_code=True)
    known_names = [*METHODS, "names:PATTERN", "package.module:function"]
    raise UserError(f"unknown method '{name}'", hint=suggestion(name, known_names))


def _parse_ks(text: str | None) -> list[int]:
    """A comma list of positive integers without repetition; empty if none was typed."""
    if text is None or text.strip() == AUTO:
        return []
    ks: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        if not is_count(word):
            raise UserError(
                f"--k {word[:40]!r} is not a positive integer",
                hint="for example: --k 1000, --k 50,100,200 or --k auto --retain 0.9",
            )
        ks.append(int(word))
    return list(dict.fromkeys(ks))


def is_count(word: str) -> bool:
    """Whether a word is a positive integer of a sensible length."""
    return word.isascii() and word.isdigit() and len(word) <= 18 and int(word) > 0


def _parse_retain(settings: Settings, calls: list[MethodCall]) -> float | None:
    """The fraction that `--k auto` must reach; None for any other k."""
    if settings.k is None or settings.k.strip() != AUTO:
        if settings.retain is not None:
            raise UserError("--retain needs --k auto", hint="for example: --k auto --retain 0.9")
        return None
    for call in calls:
        if call.method.takes_k and not call.is_nested(settings.pool):
            pooled = call.method.pooled
            raise UserError(
                f"--k auto needs a method whose choice for a small k is a prefix of that for a larger one; {call.name} "
                + (f"with --pool {settings.pool} is not" if pooled else "is not"),
                hint="give k as a number" + (", or use --pool all" if pooled else ""),
            )
    retain = DEFAULT_RETAIN if settings.retain is None else settings.retain
    if not 0 < retain <= 1:
        raise UserError(f"--retain {retain:g} is out of range", hint="expected a fraction, more than 0 and at most 1")
    return retain
