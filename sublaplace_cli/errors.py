"""Error types with their exit codes; `cli/app.py` prints them.

A message says what was found, where, and what was expected; the hint says what to do about it. Code that knows neither
flags nor spec keys gives a `Reason` instead of a hint, and `cli/advice.py` names the flag or key that helps.
"""

import difflib
from collections.abc import Iterable, Sequence
from enum import Enum, auto


class Reason(Enum):
    """Why a computation was refused, if an option of the caller can fix it."""

    NOT_POSITIVE_DEFINITE = auto()
    ILL_CONDITIONED = auto()
    SCHUR_COMPLEMENT_LOST = auto()
    THEOREM_1_BROKEN = auto()
    GRAM_FLOAT32 = auto()
    NO_ROOM_FOR_SUBNET = auto()
    NO_ROOM_FOR_FULL = auto()
    NO_ROOM_FOR_TUNING = auto()
    LEFT_OUT_NOT_CERTIFIED = auto()
    GRADIENT_NOT_FINITE = auto()
    GRADIENTS_DISAGREE = auto()
    POOL_TOO_SMALL = auto()
    NO_LINEAR_LAYER = auto()
    NOT_ONE_LOGIT = auto()
    NOT_SEVERAL_LOGITS = auto()
    OUTPUTS_ARE_SAMPLED = auto()
    OUT_OF_MEMORY = auto()


class SublaplaceError(Exception):
    """Any failure that is explained to the user without a traceback.

    A message that is a string is one line, whatever the names in it contain; a sequence is one string per line.
    """

    exit_code = 3

    def __init__(self, message: str | Sequence[str], *, hint: str | None = None, reason: Reason | None = None) -> None:
        self.lines = (message,) if isinstance(message, str) else (tuple(message) or ("",))
        self.message, self.hint, self.reason = "\n".join(self.lines), hint, reason
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"

    def shown_lines(self, hint: str | None) -> list[str]:
        """The lines for the user."""
        first, *rest = self.lines
        return [f"error: {first}", *(f"  {line}" for line in [*rest, hint] if line)]


class UserError(SublaplaceError):
    """Wrong usage, spec, checkpoint, data or artifact: for the user to fix (exit code 2)."""

    exit_code = 2


class RunError(SublaplaceError):
    """The run failed: memory, disk, or anything else that is not the user's input (exit code 3)."""


class NumericsError(RunError):
    """Arithmetic that cannot be trusted: not positive definite, Theorem 1 broken, ill-conditioned."""


def how_to_install(extra: str) -> str:
    """The command for the packages of an extra. There is no release, so only a clone can be installed."""
    return f"in a clone of sublaplace: pip install '.[{extra}]'"


def suggestion(word: str, known: Iterable[str]) -> str:
    """“did you mean 'x'?” for a near miss, and the list of known names."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return (f"did you mean '{near[0]}'? " if near else "") + f"available: {', '.join(names)}"


def nearest(word: str, known: Iterable[str], count: int) -> str:
    """“close names: x, y”: at most `count` of many names, the most similar first."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=count, cutoff=0.0)
    return f"close names: {', '.join(close)}" + (f" (of {len(names)})" if len(names) > len(close) else "")
