"""The order of the test files."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests start processes first: a slow file that starts last keeps one worker busy alone."""
    slow = ("tests/cli", "tests/device", "tests/test_")
    items.sort(key=lambda item: not item.nodeid.startswith(slow))
