"""SIGINT and SIGTERM: an exception that nothing on the way should catch, and a flag in case something did."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

_received: list[int] = []


class Interrupted(BaseException):
    """The user or the system asked us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def install() -> None:
    """Turn both signals into `Interrupted`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _receive)


def ignore() -> None:
    """From here on: what is left to do is short, and must be done."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def check() -> None:
    """Raise again what arrived earlier: a library may have swallowed the first exception."""
    if _received:
        raise Interrupted(_received[0])


def _receive(number: int, _frame: FrameType | None) -> NoReturn:
    _received.append(number)
    raise Interrupted(number)
