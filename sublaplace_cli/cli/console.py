"""The terminal: notes and progress on stderr, only the result on stdout."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Self

from .. import signals
from ..errors import RunError, SublaplaceError
from .advice import hint_of

PLAIN_INTERVAL = 10.0  # seconds between progress lines without a terminal


class _PlainProgress:
    """A line every few seconds."""

    def __init__(self, note: Callable[[str], None], label: str, total: int) -> None:
        self.note, self.label, self.total, self.done = note, label, total, 0
        self.reported = time.monotonic()

    def advance(self, amount: int) -> None:
        if signals.received:
            signals.check()
        self.done += amount
        if time.monotonic() - self.reported > PLAIN_INTERVAL:
            self.reported = time.monotonic()
            self.note(f"{self.label}: {self.done} of {self.total}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class _BarProgress:
    """A bar with the remaining time; it disappears when the work is done."""

    def __init__(self, label: str, total: int) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=RichConsole(stderr=True), transient=True)
        self.task = self.bar.add_task(label, total=total)

    def advance(self, amount: int) -> None:
        if signals.received:
            signals.check()
        self.bar.advance(self.task, amount)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()


class Console:
    """Notes, warnings and progress; `quiet` drops all but warnings and errors."""

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def note(self, text: str) -> None:
        signals.check()
        if not self.quiet:
            self._line(text)

    def detail(self, text: str) -> None:
        if self.verbose:
            self._line(text)

    def warn(self, text: str) -> None:
        self._line(f"warning: {text}")

    def error(self, error: SublaplaceError) -> None:
        first, *rest = error.message.splitlines() or [""]
        self._line(f"error: {first}")
        for line in [*rest, *(hint_of(error) or "").splitlines()]:
            self._line(f"  {line}")

    def progress(self, label: str, total: int) -> _PlainProgress | _BarProgress:
        showing_bar = self.terminal and not self.quiet
        return _BarProgress(label, total) if showing_bar else _PlainProgress(self.note, label, total)

    def _line(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(text, file=sys.stderr, flush=True)  # noqa: T201 (the only print)


def print_result(text: str) -> None:
    """The result, to stdout."""
    with _stdout():
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


@contextlib.contextmanager
def _stdout() -> Iterator[None]:
    """A closed pipe is not an error; a full disk is, reported once."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Redirect stdout to the null device, so that the flush at exit does not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise RunError(f"could not write the result to stdout: {error.strerror}") from error


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table to stdout, as wide as the terminal."""
    from rich.console import Console as RichConsole

    from ..render.text import rich_table

    if title:
        print_result(title)
    with _stdout():
        RichConsole(file=sys.stdout).print(rich_table(columns, rows))
