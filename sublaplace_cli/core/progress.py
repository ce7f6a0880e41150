"""How long work says how far it is; who shows it, and how, is decided above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """A piece of long work that says how far it is."""

    def advance(self, amount: int) -> None: ...
    def __enter__(self) -> Progress: ...
    def __exit__(self, *exc: object) -> None: ...


ProgressFactory = Callable[[str, int], Progress]  # (label, total) → progress


class NoProgress:
    """Progress that nobody looks at."""

    def advance(self, amount: int) -> None:
        pass

    def __enter__(self) -> NoProgress:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def no_progress(_label: str, _total: int) -> Progress:
    """The default of everything that reports progress."""
    return NoProgress()
