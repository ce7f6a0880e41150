"""Hostile inputs: the corpus of those that once got through, 300 drawn ones, and that the judge sees what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fuzz.base import MEMORY
from fuzz.case import Case
from fuzz.categories import CATEGORIES
from fuzz.changes import changed
from fuzz.execution import Ending, Laboratory, problems_of
from fuzz.main import draw, laboratory

CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.json"))
DRAWN, SEED = 300, 2
FINE = Ending(0, "{}", "", 0.1, 2**28)


@pytest.fixture(scope="module")
def place() -> Iterator[Laboratory]:
    with laboratory() as found:
        yield found


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_corpus(place: Laboratory, path: Path) -> None:
    case = Case.read(path)
    ending, problems = place.judge(case)
    assert not problems, f"{case.about}: {problems}\n{ending.err}"
    assert case.code in (None, ending.code), ending.err
    for text in case.says:
        assert text in ending.out + ending.err


@pytest.mark.parametrize("category", CATEGORIES)
def test_drawn(place: Laboratory, category: str) -> None:
    share = DRAWN // len(CATEGORIES) + 1
    cases = draw(place.base, category, share, SEED)
    assert len(cases) == share
    judged = [(case, *place.judge(case)) for case in cases]
    wrong = [f"{problems}\n{ending.err}\n{case.text()}" for case, ending, problems in judged if problems]
    assert not wrong, "\n".join(wrong)
    assert len({ending.code for _, ending, _ in judged}) > 1, "all end alike: the inputs are not what they should be"


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        (replace(FINE, code=None), "no end within"),
        (replace(FINE, code=-11), "exit code -11"),
        (replace(FINE, code=2), "without a message"),
        (replace(FINE, code=3, err="error: unexpected KeyError: 'x'\n"), "not explained"),
        (replace(FINE, code=3, err="Traceback (most recent call last):\n"), "traceback"),
        (replace(FINE, peak=MEMORY + 10**9 + 1), "MiB of memory"),
        (replace(FINE, err="note \x1b[31m\n"), "on stderr"),
        (replace(FINE, out='{"a": "\u202e"}'), "on stdout"),
        (replace(FINE, code=2, err="error: x\n::error::y\n"), "CI runner on stderr"),
        (replace(FINE, out='{"a": NaN}'), "no JSON"),
    ],
)
def test_the_judge_sees(ending: Ending, problem: str) -> None:
    assert not problems_of(FINE, ["--json"])
    assert any(problem in found for found in problems_of(ending, ["--json"]))


def test_the_judge_sees_changed_files_and_executed_code(place: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(words: list[str], folder: Path) -> Ending:
        (folder / "project" / "data.csv").write_text("")
        (folder / "project" / "model.pt").unlink()
        (folder / "project" / "executed").write_text("")
        return replace(FINE, out=json.dumps({"schema": 1}))

    monkeypatch.setattr("fuzz.execution.run", careless)
    _, problems = place.judge(Case("option", ["evaluate"], same=True))
    changed = [f"the file {name} was changed" for name in ("data.csv", "model.pt")]
    assert sorted(problems) == ["code of a file was executed", *changed]
    monkeypatch.setattr("fuzz.execution.run", lambda words, folder: replace(FINE, out=json.dumps({"schema": 1})))
    _, problems = place.judge(Case("option", ["evaluate"], same=True))
    assert problems == ["another result than from the file without damage"]


def test_a_seed_draws_the_same_inputs_again(place: Laboratory) -> None:
    for category in CATEGORIES:
        first, again, other = (draw(place.base, category, 12, seed) for seed in (0, 0, 1))
        assert first == again != other


@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({"do": "flip", "at": 2, "bits": 32}, b'{"A": [1, 2]}'),
        ({"do": "cut", "at": 1, "length": 5}, b"{[1, 2]}"),
        ({"do": "insert", "at": -1, "text": "x", "times": 3}, b'{"a": [1, 2]}xxx'),
        ({"do": "tree", "path": ["a", 0], "action": "set", "value": None}, b'{"a": [null, 2]}'),
        ({"do": "tree", "path": ["a", 0], "action": "insert", "value": 0}, b'{"a": [0, 1, 2]}'),
        ({"do": "tree", "path": ["a"], "action": "rename", "value": "b"}, b'{"b": [1, 2]}'),
        ({"do": "tree", "path": ["a"], "action": "delete"}, b"{}"),
        ({"do": "tree", "path": ["b", 0], "action": "delete"}, b'{"a": [1, 2]}'),
    ],
)
def test_changes(change: dict[str, Any], result: bytes) -> None:
    assert changed(b'{"a": [1, 2]}', [change]) == result
