"""Interface for notes and progress, but not for results."""

from typing import Protocol

from .core.progress import NoProgress, Progress


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
    progress = NoProgress
