"""Arrow files, streams and saved data sets: what they hold, and every way in which they can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from files.data.data_cases import COLUMNS, X, Y, load, refusal, train, whole
from pyarrow import feather, ipc

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data.columnar.arrow import read_arrow
from sublaplace_cli.files.data.datasets import data_files
from sublaplace_cli.files.data.sources import ReadRequest
from sublaplace_cli.files.spec.data import DataSpec

TABLE = pyarrow.table({name: X[:, i] for i, name in enumerate("abc")} | {"y": Y})


def write_stream(path: Path, table: Any, rows: int = 7, **options: Any) -> None:
    with ipc.new_stream(str(path), table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_file(path: Path, table: Any, rows: int = 7, **options: Any) -> None:
    with ipc.new_file(str(path), table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_dataset(folder: Path, table: Any, shards: int = 2, **state: Any) -> None:
    """A folder as `save_to_disk` of the datasets package writes it."""
    folder.mkdir(parents=True)
    step = -(-len(table) // shards)
    names = [f"data-{i:05}-of-{shards:05}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        write_stream(folder / name, table.slice(i * step, step))
    about = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(about | state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))


def write(folder: Path, name: str, table: Any) -> dict[str, Any]:
    """The table in one of the kinds, named after it; its data section."""
    if name == "dataset":
        write_dataset(folder / name, table)
    elif name.endswith(".feather"):
        feather.write_feather(table, str(folder / name), compression="lz4")
    elif name.startswith("stream"):
        write_stream(folder / name, table, compression="zstd" if "zstd" in name else None)
    else:
        write_file(folder / name, table)
    return {"format": "arrow", "path": name}


def problem(folder: Path, **data: Any) -> str | None:
    """The message for a file that is refused; one that is read has at most three rows."""
    try:
        assert len(train(folder, **data)) <= 3
    except UserError as error:
        return error.message
    return None


NAMES = ["file.arrow", "stream.arrow", "stream-zstd.arrow", "d.feather", "dataset"]
KINDS = pytest.mark.parametrize("name", NAMES)


@KINDS
@pytest.mark.parametrize("columns", [COLUMNS, {"target": 3, "input": ["a", 1, "c"]}])
def test_every_kind_gives_the_same_numbers(tmp_path: Path, name: str, columns: dict[str, Any]) -> None:
    data = write(tmp_path, name, TABLE)
    splits = {"train": {"rows": ":12"}, "test": {"rows": "12:"}}
    both = load(tmp_path, ("train", "test"), splits=splits, columns=columns, **data)
    np.testing.assert_array_equal(whole(both["train"]), X[:12])
    np.testing.assert_array_equal(both["test"].targets, Y[12:, None])
    assert both["test"].source_rows == 20
    turned = train(tmp_path, columns={"target": "a", "input": ["c", "b"]}, **data)
    np.testing.assert_array_equal(whole(turned), X[:, [2, 1]])
    kept = train(tmp_path, columns={"target": "y", "exclude": ["b"]}, **data)
    np.testing.assert_array_equal(whole(kept), X[:, [0, 2]])


@KINDS
def test_lists_are_arrays_and_integers_stay_integers(tmp_path: Path, name: str) -> None:
    ids = np.arange(60, dtype=np.int32).reshape(20, 3)
    images = np.arange(20 * 2 * 4, dtype=np.float32).reshape(20, 2, 4)
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(X.ravel()), 3)
    table = pyarrow.table(
        {
            "input_ids": pyarrow.array(ids.tolist(), pyarrow.list_(pyarrow.int32())),
            "mask": pyarrow.array((ids % 2).tolist(), pyarrow.large_list(pyarrow.int8())),
            "fixed": fixed,
            "image": pyarrow.array(images.tolist(), pyarrow.list_(pyarrow.list_(pyarrow.float32()))),
            "position": pyarrow.array(range(20), pyarrow.int16()),
            "y": Y,
        }
    )
    data = write(tmp_path, name, table)
    split = train(tmp_path, columns={"target": "y", "input": "input_ids"}, **data)
    np.testing.assert_array_equal(split.raw, ids)
    assert isinstance(split.raw, np.ndarray)
    assert split.raw.dtype == np.int32
    np.testing.assert_array_equal(train(tmp_path, columns={"target": "y", "input": "fixed"}, **data).raw, X)
    np.testing.assert_array_equal(train(tmp_path, columns={"target": "y", "input": "image"}, **data).raw, images)
    columns = {"target": "y", "input": {"input_ids": "input_ids", "attention_mask": "mask", "at": 4}}
    several = train(tmp_path, columns=columns, **data).raw
    assert isinstance(several, dict)
    assert list(several) == ["input_ids", "attention_mask", "at"]
    np.testing.assert_array_equal(several["attention_mask"], ids % 2)
    np.testing.assert_array_equal(several["at"], np.arange(20))
    assert [array.dtype for array in several.values()] == [np.int32, np.int8, np.int16]
    alone = train(tmp_path, columns={"target": "y", "input": ["position"]}, **data).raw
    assert isinstance(alone, np.ndarray)
    assert (alone.shape, alone.dtype) == ((20, 1), np.int16)
    message = refusal(tmp_path, columns={"target": "y", "input": ["fixed", "mask"]}, **data)
    assert "'fixed', 'mask': columns of lists are arrays of their own" in message
    several = {"target": "y", "exclude": ["mask", "input_ids", "image", "position"]}
    np.testing.assert_array_equal(train(tmp_path, columns=several, **data).raw, X)


@KINDS
def test_labels_and_missing_targets(tmp_path: Path, name: str) -> None:
    texts = ["owl", "cat", "dog", "cat", None, None] * 2
    truth = [True, False, True, True, None, None] * 2
    encoded = pyarrow.array(texts).dictionary_encode()
    columns = {"a": np.arange(12.0), "text": texts, "truth": truth, "y": [0.5, None] * 6, "none": [None] * 12}
    if name != "dataset":  # its second file would need another dictionary
        columns["encoded"] = encoded
    data = write(tmp_path, name, pyarrow.table(columns))
    splits = {"train": {"rows": "0:4"}, "test": {"rows": "4:6"}}
    for target in ("text", "encoded") if name != "dataset" else ("text",):
        chosen = {"target": target, "input": "a"}
        both = load(tmp_path, ("train", "test"), task="multiclass", columns=chosen, splits=splits, **data)
        assert both["train"].classes == ("cat", "dog", "owl")
        assert both["train"].targets.tolist() == [2, 0, 1, 0]
        assert both["test"].targets is None
        message = refusal(tmp_path, task="multiclass", columns=chosen, **data)
        assert "4 of 12 rows have no target: row 4, row 5, row 10 …" in message
    both = load(tmp_path, ("train",), task="binary", columns={"target": "truth", "input": "a"}, splits=splits, **data)
    assert both["train"].classes == ("False", "True")
    assert both["train"].targets.tolist() == [1, 0, 1, 1]
    assert "row 1, row 3" in refusal(tmp_path, columns={"target": "y", "input": "a"}, **data)
    assert train(tmp_path, columns={"target": "none", "input": "a"}, **data).targets is None
    assert "column 'text' has type string" in refusal(tmp_path, columns={"target": "a", "input": "text"}, **data)
    assert "row 1, column 'y' is null" in refusal(tmp_path, columns={"target": "a", "input": "y"}, **data)


def test_other_types_of_text(tmp_path: Path) -> None:
    texts = ["b", "a", None, "b"]
    types = [pyarrow.large_string(), *([pyarrow.string_view()] if hasattr(pyarrow, "string_view") else [])]
    for kind in types:
        data = write(tmp_path, "file.arrow", pyarrow.table({"x": [1, 2, 3, 4], "y": pyarrow.array(texts, kind)}))
        splits = {"train": {"rows": "0:2"}, "test": {"rows": "3:"}}
        both = load(tmp_path, ("train", "test"), task="binary", splits=splits, columns=COLUMNS, **data)
        assert both["train"].targets.tolist() == [1, 0]
        assert both["test"].targets.tolist() == [1]


# --- saved data sets -----------------------------------------------------------------------------------------


def test_the_splits_of_a_saved_dictionary(tmp_path: Path) -> None:
    for name, rows in (("train", slice(0, 12)), ("test", slice(12, 16)), ("validation", slice(16, 20))):
        write_dataset(tmp_path / "all" / name, TABLE.slice(rows.start, rows.stop - rows.start))
    (tmp_path / "all" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test", "validation"]}))
    data: dict[str, Any] = {"format": "arrow", "path": "all", "columns": COLUMNS}
    splits = {"test": {}, "validation": {"rows": "1:"}}
    found = load(tmp_path, ("train", "test", "validation", "reference"), splits=splits, **data)
    np.testing.assert_array_equal(whole(found["train"]), X[:12])
    np.testing.assert_array_equal(whole(found["test"]), X[12:16])
    np.testing.assert_array_equal(whole(found["validation"]), X[17:])
    np.testing.assert_array_equal(whole(found["reference"]), X[:12])
    files = data_files(DataSpec.model_validate({**data, "splits": splits}), lambda value, _: tmp_path / value)
    assert [file.parent.name for file in files] == ["train"] * 2 + ["test"] * 2 + ["validation"] * 2
    own = {"train": {"path": "all/train", "rows": "0:6"}, "test": {"path": "all/validation"}}
    found = load(tmp_path, ("train", "test"), format="arrow", columns=COLUMNS, splits=own)
    np.testing.assert_array_equal(whole(found["test"]), X[16:])
    message = refusal(tmp_path, "train", "far", splits={"test": {}, "ood": {"far": {"rows": ":"}}}, **data)
    assert "no split 'far'" in message
    message = refusal(tmp_path, "train", "ood", splits={"test": {}, "ood": {"rows": ":"}}, **data)
    assert "all holds several splits, but none is called 'ood'" in message
    assert "available: test, train, validation" in message


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"_indices_files": [{"filename": "indices.arrow"}]}, "its rows are a selection"),
        ({"_data_files": [{"filename": "../secret.arrow"}]}, "leads out of the folder"),
        ({"_data_files": [{"filename": "/etc/passwd"}]}, "leads out of the folder"),
        ({"_data_files": [{"filename": "a\\b"}]}, "leads out of the folder"),
        ({"_data_files": [{"filename": ".."}]}, "leads out of the folder"),
        ({"_data_files": [{"filename": "a\0b"}]}, "leads out of the folder"),
        ({"_data_files": [{"filename": "missing.arrow"}]}, "the file 'missing.arrow' is missing"),
        ({"_data_files": []}, "names no file"),
        ({"_data_files": [{"filename": 3}]}, "names no file"),
        ({"_data_files": [3]}, "not a readable state"),
        ({"_data_files": 3}, "no list '_data_files'"),
        ({"_data_files": None}, "no list '_data_files'"),
    ],
)
def test_wrong_states_are_explained(tmp_path: Path, state: dict[str, Any], expected: str) -> None:
    write_dataset(tmp_path / "d", TABLE, **state)
    (tmp_path / "secret.arrow").write_bytes(b"")
    assert expected in refusal(tmp_path, format="arrow", path="d", columns=COLUMNS)


def test_wrong_folders_are_explained(tmp_path: Path) -> None:
    data: dict[str, Any] = {"format": "arrow", "path": "d", "columns": COLUMNS}
    (tmp_path / "d").mkdir()
    assert "is not a regular file" in refusal(tmp_path, **data)
    (tmp_path / "d" / "state.json").write_text("{")
    assert "expected a file, or a folder of save_to_disk" in refusal(tmp_path, **data)
    (tmp_path / "d" / "dataset_info.json").write_text("{}")
    assert "not a readable state" in refusal(tmp_path, **data)
    write_dataset(tmp_path / "e", TABLE)
    write_stream(tmp_path / "e" / "data-00001-of-00002.arrow", TABLE.drop_columns(["a"]))
    assert "has other columns than" in refusal(tmp_path, **{**data, "path": "e"})


def test_links_that_lead_out_of_the_folder(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", TABLE)
    asked: list[str] = []

    def allowed(path: Path) -> None:
        asked.append(path.name)
        if path.name.startswith("data-00001"):
            raise UserError("leads out")

    with pytest.raises(UserError, match="leads out"):
        read_arrow(ReadRequest(tmp_path / "d", None, None, None, 2**28, allowed))
    assert asked == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]


# --- damaged and hostile files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not a readable Arrow file"),
        (b"FEA1" + bytes(100), "Feather of version 1"),
        (b"ARROW1\0\0", "not a readable Arrow file"),
        (b"a,b\n1,2\n", "not a readable Arrow file"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f", "not a readable Arrow file"),
    ],
)
def test_files_that_are_no_arrow_files(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "d.arrow").write_bytes(content)
    message = refusal(tmp_path, format="arrow", path="d.arrow", columns=COLUMNS)
    assert expected in message
    assert "d.arrow" in message


@pytest.mark.parametrize("name", ["file.arrow", "stream.arrow", "d.feather"])
def test_every_flipped_byte_is_explained_or_changes_numbers(tmp_path: Path, name: str) -> None:
    lists = pyarrow.array([[1, 2], [3, 4], [5, 6]])
    table = pyarrow.table({"a": lists, "y": pyarrow.array(["u", "v", "u"]), "z": ["p", "q", "r"]})
    data = write(tmp_path, name, table) | {"columns": {"target": "y", "input": "a"}, "task": "binary"}
    content = (tmp_path / name).read_bytes()
    assert train(tmp_path, **data).targets is not None
    refused = list[str]()
    for position in range(0, len(content), 5):
        flipped = content[position] ^ (0xFF if position % 2 else 0x80)
        (tmp_path / name).write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
        refused += filter(None, [problem(tmp_path, **data)])
    assert len(refused) > 20
    for length in range(0, len(content) - 1, 37):
        (tmp_path / name).write_bytes(content[:length])
        refused += filter(None, [problem(tmp_path, **data)])
    assert all(name in message for message in refused)


def test_lists_of_different_lengths_and_nulls(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        ([[1, 2], [3, 4], [5]], "row 2 has a list of 1 values, the first has 2"),
        ([[1, 2], None, [5, 6]], "row 1, column 'a' is null"),
        ([[1, 2], [3, None], [5, 6]], "a null inside a list"),
        ([[], [], []], "empty lists"),
        ([["u"], ["v"], ["w"]], "expected lists of numbers"),
        ([[[1], [2]], [[3], [4, 5]], [[6], [7]]], "row 1 has a list of 2 values, the first has 1"),
        ([[[1], [2]], [[3], None], [[6], [7]]], "a null instead of a list"),
        ([{"u": 1}] * 3, "has type struct"),
    ]
    for values, expected in cases:
        data = write(tmp_path, "stream.arrow", pyarrow.table({"a": values, "y": [1.0, 2.0, 3.0]}))
        assert expected in refusal(tmp_path, columns=COLUMNS, **data), values
    table = pyarrow.table({"a": [[1, 2]] * 7 + [[1, 2, 3]] * 7, "y": [1.0] * 14})
    data = write(tmp_path, "stream.arrow", table)  # the parts agree each by itself
    assert "from row 7 on, a row has the shape (3,)" in refusal(tmp_path, columns=COLUMNS, **data)
    data = write(tmp_path, "stream.arrow", pyarrow.table({"a": pyarrow.array([], pyarrow.float64()), "y": [1.0][:0]}))
    assert "has no rows" in refusal(tmp_path, columns=COLUMNS, **data)
    data = write(tmp_path, "stream.arrow", pyarrow.table({}))
    assert "has no columns" in refusal(tmp_path, columns=COLUMNS, **data)


def test_more_than_the_memory(tmp_path: Path) -> None:
    data = write(tmp_path, "file.arrow", TABLE)
    assert "may be used" in refusal(tmp_path, columns=COLUMNS, memory=100, **data)
    zeros = pyarrow.table({"a": np.zeros(10**7), "y": np.zeros(10**7)})
    write_stream(tmp_path / "bomb.arrow", zeros, rows=10**7, compression="zstd")
    assert (tmp_path / "bomb.arrow").stat().st_size < 10**5
    message = refusal(tmp_path, format="arrow", path="bomb.arrow", columns=COLUMNS, memory=2**20)
    assert "bomb.arrow" in message
    assert "may be used" in message or "expands to more" in message
