"""Interface for notes and progress, but not for results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .core.progress import Progress


class Reporter(Protocol):
    """Receives notes, warnings and progress during a run."""

    def note(self, text: str) -> None: ...
    def detail(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def progress(self, label: str, total: int) -> Progress: ...


class Silent:
    """A reporter that drops everything."""

    def note(self, text: str) -> None:
        pass

    detail = warn = note

    def progress(self, label: str, total: int) -> Progress:
        from .core.progress import no_progress

        return no_progress(label, total)
