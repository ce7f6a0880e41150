"""Progress whose label changes while the work goes on."""

from __future__ import annotations

import pytest

from sublaplace_cli.cli import console


def test_lines_have_the_latest_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PLAIN_INTERVAL", -1.0)
    lines: list[str] = []
    with console._PlainProgress(lines.append, "rows", 3) as bar:
        bar.advance(1)
        bar.describe("rows, the widest ± 7 %")
        bar.advance(1)
    assert lines == ["rows: 1 of 3", "rows, the widest ± 7 %: 2 of 3"]


def test_a_bar_shows_the_latest_label_without_control_characters() -> None:
    bar = console._BarProgress("rows", 3)
    bar.describe("rows, \x1b[31mthe widest")
    assert "the widest" in bar.bar.tasks[0].description
    assert "\x1b" not in bar.bar.tasks[0].description
