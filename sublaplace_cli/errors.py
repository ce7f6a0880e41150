"""The few error types. Each knows its exit code; the one boundary in `app.py` prints them.

A message says what was found, where, and what was expected; the hint says what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SublaplaceError(Exception):
    """Any failure that is explained to the user without a traceback."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class UserError(SublaplaceError):
    """Wrong usage, spec, checkpoint, data or artifact: the user's to fix (exit code 2)."""

    exit_code = 2


class RunError(SublaplaceError):
    """The run failed: memory, disk, or anything that is not the user's input (exit code 3)."""


class NumericsError(RunError):
    """Arithmetic that cannot be trusted: not positive definite, Theorem 1 broken, ill-conditioned."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """“ Did you mean 'x'?” for a near miss, else the list of what is known."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'? available: {', '.join(names)}"
    return f"available: {', '.join(names)}"
