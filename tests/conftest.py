"""What holds for all tests: the order of the files, and a garbage collector that skips what the imports left."""

from __future__ import annotations

import gc

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests start processes first: a slow file that starts last keeps one worker busy alone."""
    slow = ("tests/cli", "tests/device", "tests/test_")
    items.sort(key=lambda item: not item.nodeid.startswith(slow))


def pytest_collection_finish() -> None:
    gc.freeze()
