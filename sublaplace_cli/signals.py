"""SIGINT and SIGTERM: an exception that no `except Exception` catches, and a record in case a library swallows it."""

import signal
from types import FrameType
from typing import NoReturn

received: list[int] = []


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def install() -> None:
    """Turn both signals into `Interrupted`."""
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
