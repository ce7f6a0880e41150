"""The rows of a split: which are chosen, how they are read, and values that are not finite."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files.data.data_cases import COLUMNS, X, Y, load, refusal, train, whole, write_csv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data import sources
from sublaplace_cli.files.data.datasets import data_files
from sublaplace_cli.files.spec.data import DataSpec


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ({}, list(range(20))),
        ({"rows": "0:5"}, [0, 1, 2, 3, 4]),
        ({"rows": "-3:"}, [17, 18, 19]),
        ({"rows": "1:10:4"}, [1, 5, 9]),
        ({"rows": " -9 : -1 : 04 "}, [11, 15]),
        ({"rows": f"::{'0' * 17}9"}, [0, 9, 18]),
        ({"rows": "18:1000"}, [18, 19]),
        ({"indices": {"array": "idx", "row": 1}}, [1, 3, 5]),
        ({"indices": {"array": "flat"}}, [0, 2, 4]),
        (
            {"rows": "5:", "n": 4, "seed": 3},
            (5 + np.sort(np.random.default_rng(3).choice(15, 4, replace=False))).tolist(),
        ),
    ],
)
def test_rows_of_a_split(folder: Path, split: dict[str, Any], expected: list[int]) -> None:
    found = train(folder, format="npz", path="d.npz", splits={"train": split})
    assert found.rows.tolist() == expected
    assert found.rows.dtype == np.int64
    np.testing.assert_array_equal(whole(found), X[expected])
    np.testing.assert_array_equal(found.targets, Y[expected, None])


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ({"rows": "30:40"}, "empty split"),
        ({"n": 21}, "n is 21, but 20 rows"),
        ({"indices": {"array": "idx"}}, "shape (2, 3)"),
        ({"indices": {"array": "flat", "row": 0}}, "shape (3,)"),
        ({"indices": {"array": "idx", "row": 2}}, "no row 2"),
        ({"indices": {"array": "mask"}}, "dtype bool"),
        ({"indices": {"array": "far"}}, "holds 20, which is not a row"),
        ({"indices": {"array": "twice"}}, "row 1 more than once"),
        ({"indices": {"array": "indx"}}, "did you mean 'idx'"),
    ],
)
def test_wrong_rows_are_explained(folder: Path, split: dict[str, Any], expected: str) -> None:
    assert expected in refusal(folder, format="npz", path="d.npz", splits={"train": split})


def test_defaults_and_same_as(folder: Path) -> None:
    data: dict[str, Any] = {"format": "npz", "path": "d.npz"}
    splits = load(folder, ("train", "reference"), standardise={"target": "from-train"}, **data)
    assert splits["reference"].targets is splits["train"].targets
    assert splits["reference"].name == "reference"
    assert splits["reference"].raw is splits["train"].raw
    pair = {"train": {"rows": ":9"}, "test": {"rows": "9:"}, "reference": {"same_as": "test"}}
    assert load(folder, ("reference",), splits=pair, **data)["reference"].rows[0] == 9
    assert "no split 'test'" in refusal(folder, "test", **data)


def test_each_file_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sublaplace_cli.files.data import arrays

    calls: list[Path] = []
    original: Callable[..., Any] = arrays.read_npz

    def counted(request: sources.ReadRequest) -> sources.Source:
        calls.append(request.path)
        return original(request)

    monkeypatch.setattr(arrays, "read_npz", counted)
    splits = {"train": {"rows": ":9"}, "test": {"rows": "9:"}, "validation": {"rows": "3:7"}}
    load(folder, ("train", "test", "validation"), format="npz", path="d.npz", splits=splits)
    assert len(calls) == 1


def test_data_files(folder: Path) -> None:
    def resolve(value: str, field: str) -> Path:
        seen.append(field)
        return folder / value

    seen: list[str] = []
    spec = DataSpec.model_validate(
        {"format": "npz", "path": "d.npz", "splits": {"train": {}, "test": {"path": "e.npz"}}}
    )
    with pytest.raises(UserError, match=r"e.npz is missing"):
        data_files(spec, resolve)
    np.savez(folder / "e.npz", x=X)
    assert data_files(spec, resolve) == [folder / "d.npz", folder / "e.npz"]
    assert set(seen) == {"data.path", "data.splits.test.path"}


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 20), max_size=5), standardise=st.booleans(), scaled=st.booleans())
def test_chunks_equal_the_whole(folder: Path, cuts: list[int], standardise: bool, scaled: bool) -> None:
    split = train(
        folder,
        format="npz",
        path="d.npz",
        standardise={"input": "from-train" if standardise else "none"},
        transforms=[{"scale": 0.25}] if scaled else [],
    )
    edges = [0, *sorted(cuts), 20]
    parts = [split.inputs(slice(start, stop)) for start, stop in itertools.pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), whole(split))


# --- values that are not finite --------------------------------------------------------------------------


def test_nan_and_infinity_are_named(folder: Path) -> None:
    table = np.column_stack([X, Y])
    table[4, 1], table[6, 2], table[8, 3] = np.nan, np.inf, np.nan
    write_csv(folder / "n.csv", table)
    data: dict[str, Any] = {"format": "csv", "path": "n.csv", "columns": COLUMNS}
    message = refusal(folder, **data)
    assert "2 input values" in message
    assert "line 6, column 'b': nan; line 8, column 'c': inf" in message
    message = refusal(folder, splits={"train": {"rows": "7:"}}, **data)
    assert "split 'train': 1 of 13 rows have no target: line 10" in message
    assert len(train(folder, splits={"train": {"rows": ":4"}}, **data)) == 4
    x: np.ndarray = np.zeros((6, 2, 2), dtype=np.float32)
    x[1:] = np.nan
    np.savez(folder / "n.npz", x=x)
    message = refusal(folder, format="npz", path="n.npz")
    assert "20 input values" in message
    assert "row 1, element (0, 0): nan" in message
    assert message.count("row") < 6
