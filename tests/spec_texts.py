"""A minimal spec for tests, ways to change it, and the problems found when it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from sublaplace_cli.files.spec.loading import LoadedSpec, SpecError, load_spec

# the spec that each case changes
MINIMAL = """\
version: 1
task: regression
model:
  build: {arch: mlp, args: {in: 10, hidden: [50, 50], out: 1}}
  weights: {path: model.safetensors}
data:
  format: csv
  path: rows.csv
"""


def load(folder: Path, text: str) -> LoadedSpec:
    path = folder / "sublaplace.yaml"
    path.write_text(text, encoding="utf-8")
    return load_spec(path)


def problems(folder: Path, text: str) -> list[str]:
    """The problem lines without the file's name."""
    with pytest.raises(SpecError) as caught:
        load(folder, text)
    start = f"{folder / 'sublaplace.yaml'}:"
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert all(line.startswith(start) and "\n" not in line for line in caught.value.problems)
    return [line.removeprefix(start) for line in caught.value.problems]


def changed(old: str, new: str, text: str = MINIMAL) -> str:
    assert old in text
    return text.replace(old, new)


def with_data(line: str) -> str:
    return MINIMAL + f"  {line}\n"  # line 9, key at column 3


def with_top(line: str) -> str:
    return MINIMAL + f"{line}\n"  # line 9, key at column 1
