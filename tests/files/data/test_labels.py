"""Class labels that are texts or true/false, and targets that are missing, in every format that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from files.data.data_cases import load, refusal, train
from pyarrow import parquet
from safetensors.numpy import save_file

CLASSES = ("cat", "dog", "owl")
NUMBERS = np.array([1, 0, 2, 1, 0, 2])
INPUTS = np.arange(6.0)[:, None]
COLUMNS = {"target": "y", "input": "a"}


def write(path: Path, labels: Any, inputs: Any = INPUTS) -> dict[str, Any]:
    """One column of inputs and the targets, in the format of the suffix; the data section for it."""
    form = path.suffix[1:]
    if form == "csv":
        cells = ["" if label is None else str(label) for label in labels]
        path.write_text("a,y\n" + "".join(f"{x},{cell}\n" for x, cell in zip(inputs[:, 0], cells, strict=True)))
    elif form == "parquet":
        table = pyarrow.table({"a": inputs[:, 0], "y": pyarrow.array(labels)})
        parquet.write_table(table, path, row_group_size=4)
    else:
        np.savez(path, x=inputs, y=np.asarray(labels))
    return {"format": form, "path": path.name} | ({} if form == "npz" else {"columns": COLUMNS})


FORMS = pytest.mark.parametrize("form", ["csv", "parquet", "npz"])


@FORMS
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([CLASSES[n] for n in NUMBERS], CLASSES),
        (["Å", "b", "é", "Å", "b", "é"], ("b", "Å", "é")),
    ],
)
def test_text_labels_are_numbered_in_sorted_order(tmp_path: Path, form: str, labels: Any, classes: Any) -> None:
    split = train(tmp_path, task="multiclass", **write(tmp_path / f"d.{form}", labels))
    assert split.classes == classes
    assert split.targets is not None
    assert split.targets.dtype == np.int64
    assert [classes[number] for number in split.targets] == labels


@FORMS
def test_true_and_false(tmp_path: Path, form: str) -> None:
    values = [True, False, False, True, True, False]
    data = write(tmp_path / f"d.{form}", values)
    split = train(tmp_path, task="binary", **data)
    assert (split.classes, split.targets.tolist()) == (("False", "True"), [1, 0, 0, 1, 1, 0])  # type: ignore[union-attr]
    split = train(tmp_path, task="binary", classes=[True, False], **data)
    assert (split.classes, split.targets.tolist()) == (("True", "False"), [0, 1, 1, 0, 0, 1])  # type: ignore[union-attr]


def test_true_and_false_in_safetensors(tmp_path: Path) -> None:
    save_file({"x": INPUTS, "y": np.array([True, False] * 3)}, tmp_path / "d.safetensors")
    split = train(tmp_path, task="binary", format="safetensors", path="d.safetensors")
    assert split.classes == ("False", "True")
    assert split.targets is not None
    assert split.targets.tolist() == [1, 0] * 3


@FORMS
def test_numbers_stay_as_they_are(tmp_path: Path, form: str) -> None:
    """Also where all texts are numbers: sorted as texts, 10 would come before 2."""
    for labels in ([0, 2, 1, 1, 2, 0], ["0", "2", "1", "1", "2", "0"]):
        split = train(tmp_path, task="multiclass", **write(tmp_path / f"d.{form}", labels))
        assert split.classes is None
        assert split.targets is not None
        assert split.targets.tolist() == [0, 2, 1, 1, 2, 0]


@FORMS
def test_the_spec_may_fix_the_order(tmp_path: Path, form: str) -> None:
    data = write(tmp_path / f"d.{form}", [CLASSES[n] for n in NUMBERS])
    split = train(tmp_path, task="multiclass", classes=["owl", "emu", "dog", "cat"], **data)
    assert split.classes == ("owl", "emu", "dog", "cat")
    assert split.targets is not None
    assert split.targets.tolist() == [2, 3, 0, 2, 3, 0]
    message = refusal(tmp_path, task="multiclass", classes=["owl", "dog"], **data)
    assert "the label 'cat' is not one of the 2 classes (in 2 rows)" in message
    numbers = write(tmp_path / f"n.{form}", [0, 1, 2, 0, 1, 2])
    message = refusal(tmp_path, task="multiclass", classes=["owl", "dog"], **numbers)
    assert ("is not one of the 2 classes" if form == "csv" else "the target is numbers") in message


@FORMS
def test_classes_are_those_of_the_training_rows(tmp_path: Path, form: str) -> None:
    data = write(tmp_path / f"d.{form}", ["owl", "cat", "owl", "cat", "dog", "cat"])
    splits = {"train": {"rows": ":4"}, "test": {"rows": "4:"}}
    message = refusal(tmp_path, "train", "test", task="multiclass", splits=splits, **data)
    where = {"csv": "line 6", "parquet": "row 4", "npz": "row 4"}[form]
    assert f"{where}: the label 'dog' is not one of the 2 classes (in 1 rows)" in message
    assert "available: cat, owl" in message
    other = write(tmp_path / f"e.{form}", ["cat"] * 6)
    splits = {"train": {}, "test": {"path": other["path"]}}
    test = load(tmp_path, ("train", "test"), task="multiclass", splits=splits, **data)["test"]
    assert test.classes == ("cat", "dog", "owl")
    assert test.targets.tolist() == [0] * 6
    numbers = write(tmp_path / f"f.{form}", [0, 1, 2, 0, 1, 2])
    splits = {"train": {}, "test": {"path": numbers["path"]}}
    message = refusal(tmp_path, "train", "test", task="multiclass", splits=splits, **data)
    assert "the target is numbers, but the classes are labels: 'cat' is 0, 'dog' is 1, 'owl' is 2" in message
    splits = {"train": {"path": numbers["path"]}, "test": {"path": data["path"]}}
    message = refusal(tmp_path, "train", "test", task="multiclass", splits=splits, **data)
    assert "expected class numbers" in message


@FORMS
@pytest.mark.parametrize(
    ("task", "labels", "expected"),
    [
        ("binary", ["a", "b", "c"] * 2, "a binary task has two classes, the training rows have 3: 'a', 'b', 'c'"),
        ("binary", ["a"] * 6, "the training rows have 1: 'a'"),
        ("multiclass", ["a"] * 6, "one-class data: all 6 training targets are 'a'"),
        ("multiclass", ["0", "1", "1.o", "1", "0", "1"], "the target has numbers ('0') and texts ('1.o')"),
        ("multiclass", ["a", "b", "", "a", "None", "b"], "2 of 6 rows have no target"),
        ("multiclass", ["a" * 201, "b"] * 3, "a very long text"),
    ],
)
def test_wrong_labels_are_explained(tmp_path: Path, form: str, task: str, labels: list[str], expected: str) -> None:
    assert expected in refusal(tmp_path, task=task, **write(tmp_path / f"d.{form}", labels))


@FORMS
def test_a_word_for_missing_can_be_a_class(tmp_path: Path, form: str) -> None:
    data = write(tmp_path / f"d.{form}", ["none", "mild", "none", "mild", "severe", "none"])
    assert "rows have no target" in refusal(tmp_path, task="multiclass", **data)
    split = train(tmp_path, task="multiclass", classes=["none", "mild", "severe"], **data)
    assert split.targets is not None
    assert split.targets.tolist() == [0, 1, 0, 1, 2, 0]


@FORMS
def test_texts_are_no_measurements(tmp_path: Path, form: str) -> None:
    message = refusal(tmp_path, **write(tmp_path / f"d.{form}", ["a", "b"] * 3))
    expected = {"csv": "is 'a', expected a number", "parquet": "has type string", "npz": "dtype <U1 is not supported"}
    assert expected[form] in message
    message = refusal(tmp_path, task="binary", positive_classes=[1], **write(tmp_path / f"d.{form}", ["a", "b"] * 3))
    assert expected[form] in message


def test_a_first_line_that_may_be_a_header_or_a_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,2,cat\n3,4,dog\n5,6,cat\n")
    message = refusal(tmp_path, task="binary", format="csv", path="t.csv", columns={"target": 2})
    assert "line 1 has numbers and the text 'cat': a header, or a row?" in message


def test_hostile_text_arrays(tmp_path: Path) -> None:
    data: dict[str, Any] = {"task": "multiclass", "format": "npz", "path": "d.npz"}
    inputs = np.zeros((3, 1))
    surrogate = np.array([0x61, 0x62, 0xD800], dtype="<u4").view("<U1")
    beyond = np.array([0x61, 0x62, 0x7FFFFFFF], dtype="<u4").view("<U1")
    for labels in (surrogate, beyond, np.array([b"a", b"b", b"\xff"])):
        np.savez(tmp_path / "d.npz", x=inputs, y=labels)
        assert "a label that is not valid text" in refusal(tmp_path, **data)
    np.savez(tmp_path / "d.npz", x=inputs, y=np.array(["a", "b", "c"], dtype=">U3"))
    assert train(tmp_path, **data).classes == ("a", "b", "c")
    np.savez(tmp_path / "d.npz", x=np.zeros((20_000, 1)), y=np.char.add("c", np.arange(20_000).astype("U6")))
    assert "more than 10000 distinct texts" in refusal(tmp_path, **data)
    np.savez(tmp_path / "d.npz", x=inputs, y=np.array(["a", "b", "c" * 1000]))
    assert "may be used" in refusal(tmp_path, memory=20_000, **data)
    np.savez(tmp_path / "d.npz", x=np.array(["a", "b", "c"]), y=np.array([0, 1, 2]))
    assert "dtype <U1 is not supported" in refusal(tmp_path, **data)


# --- targets that are missing --------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_rows_without_targets(tmp_path: Path, form: str, task: str) -> None:
    """Of one file or of another; a row without a target among others is an error that names it."""
    known, missing = ([1.5, 2.5, 0.5, 1.0], np.nan) if task == "regression" else (["a", "b", "c", "a"], "")
    splits = {"train": {"rows": ":4"}, "test": {"rows": "4:"}}
    data = write(tmp_path / f"d.{form}", [*known, missing, missing])
    both = load(tmp_path, ("train", "test"), task=task, splits=splits, **data)
    assert both["test"].targets is None
    assert len(both["train"].targets) == 4
    splits = {"train": {"rows": "0:5"}, "test": {"rows": "5:"}}
    message = refusal(tmp_path, "train", "test", task=task, splits=splits, **data)
    where = "line 6" if form == "csv" else "row 4"
    assert f"split 'train': 1 of 5 rows have no target: {where}" in message
    other = write(tmp_path / f"e.{form}", [missing] * 6)
    splits = {"train": {"rows": "0:4"}, "test": {"path": other["path"]}}
    assert load(tmp_path, ("train", "test"), task=task, splits=splits, **data)["test"].targets is None


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_nulls_of_parquet_are_missing_targets(tmp_path: Path, task: str) -> None:
    known = [1.5, 2.5, 0.5, 1.0] if task == "regression" else ["a", "b", "c", "a"]
    data = write(tmp_path / "d.parquet", [*known, None, None])
    splits = {"train": {"rows": ":4"}, "test": {"rows": "4:"}}
    assert load(tmp_path, ("test",), task=task, splits=splits, **data)["test"].targets is None
    other = write(tmp_path / "e.parquet", [None] * 6)  # a column of type null
    splits = {"train": {"rows": ":4"}, "test": {"path": other["path"]}}
    assert load(tmp_path, ("train", "test"), task=task, splits=splits, **data)["test"].targets is None


def test_one_of_several_targets_is_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y,z\n1,2,3\n4,,6\n")
    message = refusal(tmp_path, format="csv", path="t.csv", columns={"target": ["y", "z"], "input": "a"})
    assert "1 target value is not finite: line 3, column 'y'" in message
    (tmp_path / "t.csv").write_text("a,y,z\n1,,3\n4,x,6\n")
    message = refusal(tmp_path, format="csv", path="t.csv", columns={"target": ["y", "z"], "input": "a"})
    assert "line 3, column 'y' is 'x'" in message


@pytest.mark.parametrize(
    ("line", "columns", "is_lost"),
    [
        ("p1,1,2,0.5", {"target": 3, "exclude": 0}, True),
        ("p1,1,2,0.5", {"target": 3, "input": [1, 2]}, True),
        ("1,2,p1,0.5", {"target": [0, 1], "input": [3]}, True),
        ("id,0,1,y", {"target": 3, "exclude": 0}, False),  # no target is called so in a row
        ("id,0,b,0.5", {"target": 3, "exclude": 0}, False),
        ("id,0,1,0.5", {"target": "0.5", "input": ["0", "1"]}, False),
    ],
)
def test_a_row_with_a_text_is_never_lost_as_a_header(
    tmp_path: Path, line: str, columns: dict[str, Any], is_lost: bool
) -> None:
    row = "3,4,p2,0.5" if line.startswith("1,2") else "p2,3,4,0.25"
    (tmp_path / "t.csv").write_text(f"{line}\n{row}\n{row}\n")
    data = {"format": "csv", "path": "t.csv", "columns": columns}
    if is_lost:
        assert "line 1 has numbers and the text 'p1': a header, or a row?" in refusal(tmp_path, **data)
    else:
        assert len(train(tmp_path, **data)) == 2
