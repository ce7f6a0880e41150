"""The terminal: notes and progress on stderr, the result and nothing else on stdout."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from .. import signals
from ..errors import RunError, SublaplaceError

VALUE = "value"  # heading of a column that holds words as well as numbers
WORDS = ("checkpoint", "method", VALUE)  # headings of columns that are read from the left
PLAIN_INTERVAL = 10.0  # seconds between progress lines where there is no terminal


class Console:
    """Notes, warnings and progress; quiet drops all but warnings and errors."""

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
        for line in [*rest, *(error.hint or "").splitlines()]:
            self._line(f"  {line}")

    def progress(self, label: str, total: int) -> _PlainProgress | _BarProgress:
        if self.terminal and not self.quiet:
            return _BarProgress(label, total)
        return _PlainProgress(self, label, total)

    def _line(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(text, file=sys.stderr, flush=True)  # noqa: T201 (this is the one place)


class _PlainProgress:
    """A line now and then."""

    def __init__(self, console: Console, label: str, total: int) -> None:
        self.console, self.label, self.total, self.done = console, label, total, 0
        self.said = time.monotonic()

    def advance(self, amount: int) -> None:
        signals.check()
        self.done += amount
        if time.monotonic() - self.said > PLAIN_INTERVAL:
            self.said = time.monotonic()
            self.console.note(f"{self.label}: {self.done} of {self.total}")

    def __enter__(self) -> _PlainProgress:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class _BarProgress:
    """A bar with the remaining time, gone when the work is done."""

    def __init__(self, label: str, total: int) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=RichConsole(stderr=True), transient=True)
        self.task = self.bar.add_task(label, total=total)

    def advance(self, amount: int) -> None:
        signals.check()
        self.bar.advance(self.task, amount)

    def __enter__(self) -> _BarProgress:
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()


def print_result(text: str) -> None:
    """The result, to stdout."""
    with _stdout():
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


@contextlib.contextmanager
def _stdout() -> Iterator[None]:
    """A reader that has gone away is no error; a full disk is one, told once."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
    except OSError as error:
        _forget_stdout()
        raise RunError(f"could not write the result to stdout: {error.strerror}") from error


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table for people, on stdout."""
    from rich.console import Console as RichConsole

    if title:
        print_result(title)
    with _stdout():
        RichConsole(file=sys.stdout).print(_rich_table(columns, rows))


def table_text(title: str, columns: list[str], rows: list[list[str]]) -> str:
    """The same table as plain text, as wide as it needs to be."""
    import io

    from rich.console import Console as RichConsole

    out = io.StringIO()
    RichConsole(file=out, width=1000, color_system=None).print(_rich_table(columns, rows))
    return "\n".join([title, *(line.rstrip() for line in out.getvalue().splitlines())]).strip("\n")


def _rich_table(columns: list[str], rows: list[list[str]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 or name in WORDS else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter does not complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
