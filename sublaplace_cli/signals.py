"""SIGINT and SIGTERM: an exception that no `except Exception` catches, and a record in case a library swallows it."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

received: list[int] = []


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def install() -> None:
    """Turn both signals into `Interrupted`."""
    sys.unraisablehook = _report_unraisable
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _receive)


def ignore() -> None:
    """Ignore both signals from now on: what remains is short and must finish."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def check() -> None:
    """Raise `Interrupted` again if a signal has arrived: a library may have swallowed the first exception."""
    if received:
        raise Interrupted(received[0])


def _receive(number: int, _frame: FrameType | None) -> NoReturn:
    received.append(number)
    raise Interrupted(number)


def _report_unraisable(lost: UnraisableHookArgs) -> None:
    """Report what Python drops, but no `Interrupted`: it may arrive in a finaliser, and `check` raises it again."""
    if not isinstance(lost.exc_value, Interrupted):
        sys.__unraisablehook__(lost)
