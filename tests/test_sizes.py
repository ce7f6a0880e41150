"""Sizes in bytes, read and shown."""

from __future__ import annotations

import pytest

from sublaplace_cli.errors import UserError
from sublaplace_cli.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 2**30), ("500MB", 500 * 10**6), ("1.5g", 1_500_000_000), ("1000000", 10**6), (" 2 kib ", 2048)]
    + [("3TB", 3 * 10**12), ("1b", 1)],
)
def test_sizes_that_are_read(text, size):
    assert parse_bytes(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1XB", "1e3", "0.5", "9999999999TiB", "nan"])
def test_sizes_that_are_refused(text):
    with pytest.raises(UserError, match=r"--memory .* is not a size"):
        parse_bytes(text, "--memory")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (3 * 2**30, "3.0 GiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_sizes_that_are_shown(size, text):
    assert format_bytes(size) == text
