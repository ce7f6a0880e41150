"""The terminal: notes and progress on stderr, only the result on stdout."""

import contextlib
import io
import os
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Self, TextIO

from .. import signals
from ..errors import RunError, SublaplaceError
from ..plain_text import visible
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

    def describe(self, label: str) -> None:
        self.label = label

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class _BarProgress:
    """A bar with the remaining time; it disappears when the work is done."""

    def __init__(self, label: str, total: int) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        label_column = TextColumn("{task.description}", markup=False)
        columns = (label_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=RichConsole(stderr=True), transient=True)
        self.task = self.bar.add_task(visible(label), total=total)

    def advance(self, amount: int) -> None:
        if signals.received:
            signals.check()
        self.bar.advance(self.task, amount)

    def describe(self, label: str) -> None:
        self.bar.update(self.task, description=visible(label))

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
        for line in error.shown_lines(hint_of(error)):
            self._line(line)

    def traceback(self, error: Exception) -> None:
        """Indented: no line of a text in it looks like a message."""
        for line in "".join(traceback.format_exception(error)).rstrip("\n").split("\n"):
            self._line(f"  {line}", sys.__stderr__)

    def usage_error(self, error: Any) -> None:
        """A usage error of click, with what the user typed as one line."""
        if error.message != (error.ctx and error.ctx.get_help()):  # without arguments, the help is the message
            error.message = visible(error.message)
        text = io.StringIO()
        error.show(text)
        for line in text.getvalue().rstrip("\n").split("\n"):
            self._line(line)

    def progress(self, label: str, total: int) -> _PlainProgress | _BarProgress:
        showing_bar = self.terminal and not self.quiet
        return _BarProgress(label, total) if showing_bar else _PlainProgress(self.note, label, total)

    def _line(self, text: str, stream: TextIO | None = None) -> None:
        """The only way to stderr; a text is one line, with control characters as visible escapes."""
        with contextlib.suppress(BrokenPipeError):
            stream = stream or sys.stderr
            stream.write(f"{visible(text)}\n")
            stream.flush()


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


def print_markdown(text: str) -> None:
    """Print Markdown to stdout, formatted for the terminal."""
    from rich.console import Console as RichConsole
    from rich.markdown import Markdown

    with _stdout():
        RichConsole(file=sys.stdout).print(Markdown(text, hyperlinks=False))


def print_table(title: str, columns: list[str], rows: list[list[str]], width: int) -> None:
    """Print a table to stdout, as wide as the terminal, with empty lines around it."""
    from rich.console import Console as RichConsole

    from ..render.text import rich_table

    if title:
        print_result(folded(title, width) + "\n\n")
    with _stdout():
        RichConsole(file=sys.stdout).print(rich_table(columns, rows))
        sys.stdout.write("\n")


def folded(text: str, width: int) -> str:
    """A text in lines that fit a terminal, cut between words."""
    return textwrap.fill(text, max(width, 20), break_long_words=False, break_on_hyphens=False)
