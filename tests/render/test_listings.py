"""Listings, such as a dry run, on narrow terminals."""

from __future__ import annotations

import io

from rich.console import Console

from sublaplace_cli.render.text import rich_table, short_grid
from sublaplace_cli.results.result import Listing


def test_names_stay_whole_and_long_values_are_folded() -> None:
    names = [f"jacobians-of-a-split-{i}" for i in range(8)]
    listing = Listing({"memory_limit": 2**30, "memory_estimate": 2**20, "reused": names})
    out = io.StringIO()
    Console(file=out, width=60, color_system=None).print(rich_table(*short_grid(listing)))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert {"memory_limit", "memory_estimate"} <= {line.split()[0] for line in lines if line.strip()}
    (first,) = (i for i, line in enumerate(lines) if line.startswith("reused"))
    assert " ".join(" ".join(lines[first:]).split()) == "reused " + ", ".join(names)
