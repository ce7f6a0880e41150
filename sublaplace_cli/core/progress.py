"""Progress of long computations; the caller decides whether and how to show it."""

from collections.abc import Callable
from typing import Protocol, Self


class Progress(Protocol):
    """Reports how much of a long computation is done."""

    def advance(self, amount: int) -> None: ...
    def describe(self, label: str) -> None: ...  # another label from now on
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...


ProgressFactory = Callable[[str, int], Progress]  # (label, total) → progress


class NoProgress(Progress):
    """The default: nothing is shown."""

    def __init__(self, _label: str, _total: int) -> None: ...
    def advance(self, amount: int) -> None: ...
    def describe(self, label: str) -> None: ...
    def __exit__(self, *exc: object) -> None: ...
