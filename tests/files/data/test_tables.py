"""csv and parquet: every way in which a table can be wrong, once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files.data.data_cases import COLUMNS, X, Y, load, refusal, train, whole, write_csv

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data.datasets import Split

# --- csv -------------------------------------------------------------------------------------------------


def csv_split(folder: Path, text: str | bytes, **data: Any) -> Split:
    (folder / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return train(folder, format="csv", path="t.csv", **data)


@pytest.mark.parametrize(
    "text",
    [
        "a,y\n1,2\n3,4\n",
        "\ufeffa,y\r\n1,2\r\n3,4",
        '"a","y"\n"1",2\n3,"4"\n\n\n',
        " a , y \n 1, 2 \n 3 ,4",
    ],
)
def test_csv_dialects(tmp_path: Path, text: str) -> None:
    split = csv_split(tmp_path, text, columns=COLUMNS)
    assert whole(split).tolist() == [[1.0], [3.0]]
    assert split.targets is not None
    assert split.targets.tolist() == [[2.0], [4.0]]


def test_csv_without_header_and_with_unused_text(tmp_path: Path) -> None:
    assert whole(csv_split(tmp_path, "1,2\n3,4")).tolist() == [[1, 2], [3, 4]]
    split = csv_split(tmp_path, 'id,a,y\n"Lee, B",1,2\nx,3,4', columns={"target": "y", "input": "a"})
    assert whole(split).tolist() == [[1], [3]]


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("", None, "is empty"),
        ("\n1,2\n", None, "starts with an empty line"),
        ("a,y\n", None, "no rows"),
        ("a,y\n1,2\n3\n", None, "line 3 has 1 cells, the first line has 2"),
        ("a,y\n1,2\n\n3,4\n", None, "line 3 is empty"),
        ("a,y\n1,2\n3,\n", None, "line 3, column 'y' is empty"),
        ("a,y\n1,2\n3,x7\n", None, "line 3, column 'y' is 'x7', expected a number"),
        ("1,2\n3,1_0\n", None, "line 2, column 1 is '1_0'"),
        ("1,NA\n3,1\n", None, "line 1, column 1 is 'NA'"),
        ("target,a\n1,2\n", {"target": "targt"}, "did you mean 'target'"),
        ("y,a,y\n1,2,3\n", COLUMNS, "2 columns are called 'y' (positions [0, 2])"),
        ("1,2\n3,4\n", COLUMNS, "no column names"),
        ("a,y\n1,2\n", {"target": 2}, "no column 2"),
        ("a,y\n1,2\n", {"target": "y", "input": ["a", "y"]}, "column 'y' is used more than once"),
        ("y\n1\n2\n", COLUMNS, "no input columns"),
        (b"a,y\n1,\xff\xfe\n", None, "not UTF-8"),
    ],
)
def test_wrong_csv_is_explained(tmp_path: Path, text: str | bytes, columns: Any, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        csv_split(tmp_path, text, columns=columns)
    assert expected in str(caught.value)
    assert "t.csv" in caught.value.message
    assert caught.value.hint


def test_duplicate_names_that_nobody_refers_to_are_fine(tmp_path: Path) -> None:
    assert whole(csv_split(tmp_path, "a,a,y\n1,2,3\n", columns=COLUMNS)).tolist() == [[1, 2]]


def test_a_test_file_may_lack_the_target_and_rest_does_not_shift(folder: Path) -> None:
    splits = {"train": {}, "test": {"path": "t.csv"}}
    data: dict[str, Any] = {"format": "csv", "path": "d.csv", "splits": splits}
    cases: list[tuple[str | None, str, list[int], dict[str, Any]]] = [
        ("a,b,c,y", "c,a,b", [2, 0, 1], COLUMNS),  # matched by name
        ("y,a,b,c", "a,b,c", [0, 1, 2], {"target": 0}),  # a position in the training file
        (None, "", [0, 1, 2], {"target": 0}),  # no names: all that is left
    ]
    for header, test_header, order, columns in cases:
        first = np.column_stack([X, Y] if columns == COLUMNS else [Y, X])
        write_csv(folder / "d.csv", first, header)
        write_csv(folder / "t.csv", X[:, order], test_header or None)
        test = load(folder, ("train", "test"), columns=columns, **data)["test"]
        np.testing.assert_array_equal(whole(test), X)
        assert test.targets is None
    write_csv(folder / "t.csv", X[:, :2], None)
    assert "has 2 columns, the training file" in refusal(folder, "test", columns={"target": 0}, **data)


def test_excluded_columns_are_not_among_the_rest(folder: Path) -> None:
    """By name or position; a test file may lack them, and the rest does not shift."""
    ids, splits = np.arange(20.0), {"train": {}, "test": {"path": "t.csv"}}
    data: dict[str, Any] = {"format": "csv", "path": "d.csv", "splits": splits}
    write_csv(folder / "d.csv", np.column_stack([ids, X, Y]), "id,a,b,c,y")
    for header, cells in (("c,a,b", X[:, [2, 0, 1]]), ("y,id,a,b,c", np.column_stack([Y, ids, X]))):
        write_csv(folder / "t.csv", cells, header)
        for excluded in ("id", [0], ["id"]):
            both = load(folder, ("train", "test"), columns={"target": "y", "exclude": excluded}, **data)
            np.testing.assert_array_equal(whole(both["train"]), X)
            np.testing.assert_array_equal(whole(both["test"]), X)
    write_csv(folder / "d.csv", np.column_stack([X[:, 0], Y, ids, X[:, 1:]]), None)
    write_csv(folder / "t.csv", np.column_stack([X[:, 0], ids, X[:, 1:]]), None)  # without the target
    test = load(folder, ("test",), columns={"target": 1, "exclude": [2]}, **data)["test"]
    np.testing.assert_array_equal(whole(test), X)


def test_excluded_columns_of_parquet_may_hold_anything(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    texts = {"id": [f"row {i}" for i in range(20)], "a": X[:, 0], "none": [None] * 20, "b": X[:, 1], "y": Y}
    pq.write_table(pyarrow.table(texts), tmp_path / "t.parquet")
    for excluded in (["id", "none"], [0, 2]):
        split = train(tmp_path, format="parquet", path="t.parquet", columns={"target": "y", "exclude": excluded})
        np.testing.assert_array_equal(whole(split), X[:, :2])


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"target": "y", "exclude": ["idd"]}, "did you mean 'id'?"),
        ({"target": "y", "exclude": [9]}, "no column 9"),
        ({"target": "y", "exclude": ["y"]}, "column 'y' is excluded, but also used"),
        ({"target": "y", "input": ["id", "a"], "exclude": ["id"]}, "column 'id' is excluded, but also used"),
        ({"target": "y", "exclude": ["id", "a"]}, "no input columns are left"),
    ],
)
def test_wrong_exclusions_are_explained(tmp_path: Path, columns: Any, expected: str) -> None:
    (tmp_path / "t.csv").write_text("id,a,y\n1,2,3\n4,5,6\n")
    assert expected in refusal(tmp_path, format="csv", path="t.csv", columns=columns)


# --- parquet ---------------------------------------------------------------------------------------------


def test_wrong_parquet_is_explained(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    table = pyarrow.table({"a": [1.0, 2.0], "b": [1, None], "s": ["u", "v"], "y": [True, False]})
    pq.write_table(table, tmp_path / "t.parquet")
    data: dict[str, Any] = {"format": "parquet", "path": "t.parquet"}
    assert "column 's' has type string" in refusal(tmp_path, columns=COLUMNS, **data)
    null = refusal(tmp_path, columns={"target": "y", "input": ["a", "b"]}, **data)
    assert "row 1, column 'b' is null" in null
    assert "did you mean" in refusal(tmp_path, columns={"target": "yy"}, **data)
    assert "may be used" in refusal(tmp_path, columns={"target": "y", "input": "a"}, memory=8, **data)
    split = train(tmp_path, columns={"target": "y", "input": "a"}, **data)
    assert split.targets is not None
    assert split.targets.tolist() == [[1.0], [0.0]]
    pq.write_table(pyarrow.table({"n": [{"u": 1, "v": 2}], "a": [1.0]}), tmp_path / "t.parquet")
    assert "nested" in refusal(tmp_path, columns={"input": "a"}, **data)
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no")
    assert "not a readable parquet" in refusal(tmp_path, **data)


def test_names_of_a_wide_table_are_found_in_linear_time(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(20_000)]
    (tmp_path / "t.csv").write_text(f"{','.join(names)}\n{','.join(['1'] * len(names))}\n")
    began = time.process_time()
    columns = {"target": names[10_000:], "input": names[:10_000]}
    split = train(tmp_path, format="csv", path="t.csv", columns=columns)
    assert split.targets is not None
    assert split.targets.shape == (1, 10_000)
    rest = train(tmp_path, format="csv", path="t.csv", columns={"target": names[10_000:]})
    assert whole(rest).shape == (1, 10_000)
    assert time.process_time() - began < 5
    message = refusal(tmp_path, format="csv", path="t.csv", columns={"target": "c19999x"})
    assert "did you mean 'c19999'?" in message
    assert "and 19949 more" in message
    assert len(message) < 2000
