"""Every data format read into splits; every way in which a file can be wrong, once."""

from __future__ import annotations

import io
import itertools
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data import datasets, sources
from sublaplace_cli.files.data.datasets import Split, data_files, load_splits, require_extra
from sublaplace_cli.files.spec.data import DataSpec
from sublaplace_cli.files.spec.models import LogOdds, ModelSpec, Spec, WrapSpec

ENOUGH = 2**28
RNG = np.random.default_rng(7)
X = RNG.normal(size=(20, 3))
Y = RNG.normal(size=20)
COLUMNS = {"target": "y"}


def load(folder: Path, names: tuple[str, ...] = ("train",), /, *, task: str = "regression", **data: Any) -> Any:
    memory, classes = data.pop("memory", ENOUGH), data.pop("positive_classes", None)
    wrap = None if classes is None else WrapSpec(binary_logodds=LogOdds(classes=classes))
    # not validated as a whole: the data layer must refuse what the spec would refuse first
    spec = Spec.model_construct(
        task=task, model=ModelSpec.model_construct(wrap=wrap), data=DataSpec.model_validate(data)
    )
    return load_splits(spec, names, lambda value, _: folder / value, memory)


def train(folder: Path, **data: Any) -> Split:
    return load(folder, **data)["train"]


def refusal(folder: Path, *names: str, **data: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, names or ("train",), **data)
    assert caught.value.exit_code == 2
    return str(caught.value)


def write_csv(path: Path, table: np.ndarray, header: str | None = "a,b,c,y") -> None:
    lines = [",".join(repr(float(cell)) for cell in row) for row in table]
    path.write_text("\n".join(([header] if header else []) + lines) + "\n")


def whole(split: Split) -> Any:
    return split.inputs(0, len(split))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same 20 rows in every format."""
    table = np.column_stack([X, Y])
    write_csv(tmp_path / "d.csv", table)
    index = np.array([[0, 2, 4], [1, 3, 5]])
    np.savez(tmp_path / "d.npz", x=X, y=Y, idx=index, flat=index[0], mask=Y > 0, twice=[1, 1], far=[20])
    np.save(tmp_path / "d.npy", table)
    save_file({"x": X, "y": Y, "idx": index}, tmp_path / "d.safetensors")
    return tmp_path


# --- the formats agree -----------------------------------------------------------------------------------


def test_all_formats_give_the_same_numbers(folder: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    table = {name: X[:, i] for i, name in enumerate("abc")} | {"y": Y}
    pq.write_table(pyarrow.table(table), folder / "d.parquet", row_group_size=7)
    cases: list[dict[str, Any]] = [
        {"format": "csv", "path": "d.csv", "columns": COLUMNS},
        {"format": "csv", "path": "d.csv", "columns": {"target": 3, "input": ["a", 1, "c"]}},
        {"format": "parquet", "path": "d.parquet", "columns": COLUMNS},
        {"format": "npz", "path": "d.npz"},
        {"format": "npz", "path": "d.npz", "arrays": {"input": "x", "target": "y"}},
        {"format": "npy", "path": "d.npy", "columns": {"target": 3}},
        {"format": "safetensors", "path": "d.safetensors"},
    ]
    for data in cases:
        splits = load(folder, ("train", "test"), splits={"train": {"rows": ":12"}, "test": {"rows": "12:"}}, **data)
        np.testing.assert_array_equal(whole(splits["train"]), X[:12])
        np.testing.assert_array_equal(splits["test"].targets, Y[12:, None])
        np.testing.assert_array_equal(splits["test"].rows, np.arange(12, 20))
        assert splits["test"].source_rows == 20
        assert len(splits["test"]) == 8


def test_columns_keep_the_order_asked_for(folder: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    pq.write_table(pyarrow.table({name: X[:, i] for i, name in enumerate("abc")}), folder / "d.parquet")
    for form in ("csv", "parquet"):
        split = train(folder, format=form, path=f"d.{form}", columns={"target": "a", "input": ["c", "b"]})
        np.testing.assert_array_equal(whole(split), X[:, [2, 1]])
        np.testing.assert_array_equal(split.targets, X[:, :1])
    split = train(folder, format="npy", path="d.npy", columns={"target": 1, "input": [3, 0]})
    np.testing.assert_array_equal(whole(split), np.column_stack([Y, X[:, 0]]))


def test_no_columns_means_all_inputs_and_no_target(folder: Path) -> None:
    for form in ("csv", "npy"):
        split = train(folder, format=form, path=f"d.{form}")
        assert whole(split).shape == (20, 4)
        assert split.targets is None


def test_several_input_arrays(folder: Path) -> None:
    np.savez(folder / "two.npz", a=X, b=X[:, :1], y=Y)
    by_name = train(folder, format="npz", path="two.npz", arrays={"input": {"left": "a", "right": "b"}})
    assert list(by_name.raw) == ["left", "right"]
    assert whole(by_name)["right"][1:3].shape == (2, 1)
    by_position = train(folder, format="npz", path="two.npz", arrays={"input": ["b", "a"]})
    assert isinstance(by_position.raw, tuple)
    assert whole(by_position)[1].shape == (20, 3)
    assert "one input array, but there are 2" in refusal(
        folder, format="npz", path="two.npz", arrays={"input": ["a", "b"]}, transforms=[{"scale": 2}]
    )


# --- rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ({}, list(range(20))),
        ({"rows": "0:5"}, [0, 1, 2, 3, 4]),
        ({"rows": "-3:"}, [17, 18, 19]),
        ({"rows": "1:10:4"}, [1, 5, 9]),
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


def test_rows_are_checked_without_the_spec_models_too(folder: Path) -> None:
    class Plain:
        rows, indices, n, seed = "0:5:0", None, None, 0

    source = sources.Source(folder, X, None)
    for text in ("0:5:0", "7", "a:b"):
        Plain.rows = text
        with pytest.raises(UserError, match="start:stop"):
            sources.choose_rows(Plain, source, "f")  # type: ignore[arg-type]


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
    parts = [split.inputs(start, stop) for start, stop in itertools.pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), whole(split))


# --- standardisation -------------------------------------------------------------------------------------


def test_standardise_uses_the_training_rows(folder: Path) -> None:
    data: dict[str, Any] = {"format": "csv", "path": "d.csv", "columns": COLUMNS}
    splits = {"train": {"rows": ":12"}, "test": {"rows": "12:"}}
    both = {"input": "from-train", "target": "from-train"}
    test = load(folder, ("test",), standardise=both, splits=splits, **data)["test"]
    expected = (X[12:] - X[:12].mean(axis=0)) / X[:12].std(axis=0)
    np.testing.assert_allclose(whole(test), expected, rtol=1e-12)
    assert test.targets is not None
    assert test.target_scale is not None
    np.testing.assert_allclose(test.targets[:, 0], (Y[12:] - Y[:12].mean()) / Y[:12].std(), rtol=1e-12)
    np.testing.assert_allclose(test.target_scale.std, [Y[:12].std()], rtol=1e-12)


def test_standardise_with_given_numbers(folder: Path) -> None:
    given = {"input": {"mean": [1, 2, 3], "std": 2}, "target": {"mean": 5, "std": 4}}
    split = train(folder, format="npz", path="d.npz", standardise=given)
    np.testing.assert_allclose(whole(split), (X - [1, 2, 3]) / 2, rtol=1e-15)
    np.testing.assert_allclose(split.targets, (Y[:, None] - 5) / 4, rtol=1e-15)


def test_standardise_that_cannot_be(folder: Path) -> None:
    target = {"target": "from-train"}
    assert "no target" in refusal(folder, format="npy", path="d.npy", standardise=target)
    np.savez(folder / "e.npz", x=X[:, :2])
    splits = {"train": {}, "test": {"path": "e.npz"}}
    data: dict[str, Any] = {"format": "npz", "path": "d.npz", "splits": splits}
    assert "shape (2,)" in refusal(folder, "test", standardise={"input": "from-train"}, **data)


def test_classification_targets(folder: Path) -> None:
    np.savez(folder / "c.npz", x=X, y=np.arange(20, dtype=np.uint8) % 4, two=np.eye(20)[:, :2])
    data: dict[str, Any] = {"format": "npz", "path": "c.npz"}
    multi = train(folder, task="multiclass", **data)
    assert multi.targets is not None
    assert multi.targets.dtype == np.int64
    assert multi.targets.shape == (20,)
    binary = train(folder, task="binary", positive_classes=[2, 3], **data)
    assert binary.targets is not None
    assert binary.targets.tolist() == [0, 0, 1, 1] * 5
    assert "expected 0 or 1" in refusal(folder, task="binary", **data)
    assert "are classes" in refusal(folder, task="multiclass", standardise={"target": "from-train"}, **data)
    one = {"train": {"rows": "::4"}}
    assert "one-class data" in refusal(folder, task="multiclass", splits=one, **data)
    arrays = {"input": "x", "target": "two"}
    assert "one column" in refusal(folder, task="multiclass", arrays=arrays, **data)


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
    assert "1 target value is not finite: line 10, column 'y': nan" in message
    assert len(train(folder, splits={"train": {"rows": ":4"}}, **data)) == 4
    x: np.ndarray = np.zeros((6, 2, 2), dtype=np.float32)
    x[1:] = np.nan
    np.savez(folder / "n.npz", x=x)
    message = refusal(folder, format="npz", path="n.npz")
    assert "20 input values" in message
    assert "row 1, element (0, 0): nan" in message
    assert message.count("row") < 6


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


# --- npz, npy, safetensors -------------------------------------------------------------------------------


def test_missing_arrays_are_listed(folder: Path) -> None:
    for form in ("npz", "safetensors"):
        data: dict[str, Any] = {"format": form, "path": f"d.{form}"}
        assert "no array 'xx'" in refusal(folder, arrays={"input": "xx"}, **data)
        assert "available: " in refusal(folder, arrays={"input": "x", "target": "z"}, **data)
    np.savez(folder / "e.npz", other=X)
    assert "no array 'x' or 'X'" in refusal(folder, format="npz", path="e.npz")
    np.savez(folder / "e.npz", X=X)
    splits = {"train": {}, "test": {"path": "e.npz", "arrays": {"input": "X", "target": "y"}}}
    assert load(folder, ("test",), format="npz", path="d.npz", splits=splits)["test"].targets is None


def test_arrays_must_agree_in_rows(folder: Path) -> None:
    for x, y, expected in (
        (X, Y[:5], "20 rows, the target has 5"),
        (X[0, 0], Y, "single number"),
        (X[:0], Y[:0], "no rows"),
    ):
        np.savez(folder / "e.npz", x=x, y=y)
        assert expected in refusal(folder, format="npz", path="e.npz")


def test_object_arrays_are_never_unpickled(folder: Path) -> None:
    np.savez(folder / "o.npz", x=np.array([{}, 1], dtype=object))
    np.save(folder / "o.npy", np.array([{}, 1], dtype=object))
    for form in ("npz", "npy"):
        message = refusal(folder, format=form, path=f"o.{form}")
        assert "Python objects" in message
        assert "numpy.savez" in message
    np.save(folder / "s.npy", np.array(["a", "b"]))
    assert "not supported" in refusal(folder, format="npy", path="s.npy")


def test_fortran_order_byte_order_and_compression(folder: Path) -> None:
    for dtype in ("<f8", ">f8"):
        np.savez_compressed(folder / "f.npz", x=np.asfortranarray(X.astype(dtype)))
        np.save(folder / "f.npy", np.asfortranarray(X.astype(dtype)))
        for form in ("npz", "npy"):
            found = whole(train(folder, format=form, path=f"f.{form}"))
            assert found.dtype.isnative
            np.testing.assert_array_equal(found, X)


def test_npy_is_mapped_not_read(folder: Path) -> None:
    split = train(folder, format="npy", path="d.npy", memory=0)
    assert not split.raw.flags.owndata  # type: ignore[union-attr]
    assert "takes" in refusal(folder, format="npy", path="d.npy", memory=0, splits={"train": {"n": 3}})
    np.save(folder / "e.npy", X[:, 0])
    assert "2-D" in refusal(folder, format="npy", path="e.npy", columns={"target": 0})
    assert "no column names" in refusal(folder, format="npy", path="d.npy", columns=COLUMNS)


def npy_bytes(shape: str, payload: bytes = b"", descr: str = "<f8") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + payload


def write_member(path: Path, content: bytes, **how: Any) -> None:
    with zipfile.ZipFile(path, "w", **how) as archive:
        archive.writestr("x.npy", content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (npy_bytes("(1000000000000,)", b"12345678"), "declares 8000000000000 bytes"),
        (npy_bytes("(1,)", b"1234567890"), "but the file has 10"),
        (npy_bytes("(-1,)"), "bad .npy header"),
        (b"not numpy at all", "bad .npy header"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "bad .npy header"),
        (b"", "bad .npy header"),
    ],
)
def test_bad_headers(tmp_path: Path, content: bytes, expected: str) -> None:
    write_member(tmp_path / "b.npz", content)
    (tmp_path / "b.npy").write_bytes(content)
    for form in ("npz", "npy"):
        assert expected in refusal(tmp_path, format=form, path=f"b.{form}")


def test_damaged_npz(folder: Path) -> None:
    original = (folder / "d.npz").read_bytes()
    at = original.index(X.tobytes())
    flipped = original[:at] + bytes([original[at] ^ 1]) + original[at + 1 :]
    encrypted = io.BytesIO()
    with zipfile.ZipFile(encrypted, "w") as archive:
        archive.writestr("x.npy", npy_bytes("(0,)"))
        archive.infolist()[0].flag_bits |= 1
    write_member(folder / "l.npz", npy_bytes("(0,)"), compression=zipfile.ZIP_LZMA)
    cases = {
        original[: len(original) // 2]: "not a readable npz",
        b"": "not a readable npz",
        flipped: "CRC",
        encrypted.getvalue(): "encrypted",
        (folder / "l.npz").read_bytes(): "that numpy does not write",
    }
    for content, expected in cases.items():
        (folder / "e.npz").write_bytes(content)
        assert expected in refusal(folder, format="npz", path="e.npz")


def test_damaged_safetensors(folder: Path) -> None:
    original = (folder / "d.safetensors").read_bytes()
    for content in (b"", original[:100], b"\xff" * 64):
        (folder / "e.safetensors").write_bytes(content)
        assert "not a readable safetensors" in refusal(folder, format="safetensors", path="e.safetensors")
    (folder / "e.safetensors").write_bytes(
        struct.pack("<Q", 56) + b'{"x":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}} ' + b"\0\0"
    )
    assert "BF16" in refusal(folder, format="safetensors", path="e.safetensors")


@pytest.mark.parametrize("form", ["csv", "npz", "safetensors"])
def test_files_over_the_memory_limit_are_refused(folder: Path, form: str) -> None:
    message = refusal(folder, format=form, path=f"d.{form}", memory=500)
    assert "may be used" in message
    assert "--memory" in message


def test_memory_counts_all_files_together(folder: Path) -> None:
    np.savez(folder / "e.npz", x=X, y=Y)
    splits = {"train": {}, "test": {"path": "e.npz"}}
    data: dict[str, Any] = {"format": "npz", "path": "d.npz", "splits": splits}
    assert len(load(folder, ("train",), memory=1000, **data)) == 1
    assert "e.npz takes" in refusal(folder, "train", "test", memory=1000, **data)


BOMB_CHECK = """
import resource, sys
from pathlib import Path
from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data.arrays import read_npz
from sublaplace_cli.files.data.sources import ReadRequest
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_npz(ReadRequest(Path(sys.argv[1]), None, None, None, 2**40))
except UserError as error:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    sys.exit(0 if "decompression bomb" in str(error) and grown < 64 * 1024 else f"{error} {grown}")
sys.exit("read")
"""


def test_a_decompression_bomb_takes_no_memory(tmp_path: Path) -> None:
    rows = 2**28  # 2 GiB of zeros in about 2 MB
    with (
        zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy_bytes(f"({rows},)"))
        block = bytes(2**24)
        for _ in range(rows * 8 // len(block)):
            member.write(block)
    assert (tmp_path / "b.npz").stat().st_size < 2**24
    run = [sys.executable, "-c", BOMB_CHECK, str(tmp_path / "b.npz")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


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


# --- imagefolder -----------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(("ant", "bee", "cat")):
        (tmp_path / "p" / name).mkdir(parents=True)
        for i in range(2):
            pixels: np.ndarray = np.full((4, 5, 3), 40 * number + i, dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / "p" / name / f"{i}.png")
    (tmp_path / "p" / "ant" / "notes.txt").write_text("not an image")
    return tmp_path


IMAGES: dict[str, Any] = {"format": "imagefolder", "path": "p", "task": "multiclass"}


def test_images_by_class(pictures: Path) -> None:
    split = train(pictures, **IMAGES)
    assert whole(split).shape == (6, 4, 5, 3)
    assert whole(split).dtype == np.uint8
    assert split.targets is not None
    assert split.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert whole(split)[:, 0, 0, 0].tolist() == [0, 1, 40, 41, 80, 81]
    spec = DataSpec.model_validate({"format": "imagefolder", "path": "p"})
    names = [file.name for file in data_files(spec, lambda value, _: pictures / value)]
    assert names == ["0.png", "1.png"] * 3


def test_classes_are_numbered_by_the_training_folder(pictures: Path) -> None:
    (pictures / "q").mkdir()
    (pictures / "p" / "cat").rename(pictures / "q" / "cat")
    (pictures / "p" / "cat").mkdir()
    splits = {"train": {}, "test": {"path": "q"}}
    test = load(pictures, ("test",), splits=splits, **IMAGES)["test"]
    assert test.targets is not None
    assert test.targets.tolist() == [2, 2]
    (pictures / "q" / "cat").rename(pictures / "q" / "cow")
    assert "class 'cow' is not among" in refusal(pictures, "test", splits=splits, **IMAGES)


def test_wrong_images_are_explained(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    assert "may be used" in refusal(pictures, memory=100, **IMAGES)
    odd = pictures / "p" / "bee" / "9.png"
    Image.new("RGB", (9, 9)).save(odd)
    assert "9.png is 9x9" in refusal(pictures, **IMAGES)
    Image.new("I;16", (5, 4)).save(odd)
    assert "mode I;16" in refusal(pictures, **IMAGES)
    odd.write_bytes(b"\x89PNG broken")
    assert "9.png: not a readable image" in refusal(pictures, **IMAGES)
    whole_file = (pictures / "p" / "bee" / "0.png").read_bytes()
    odd.write_bytes(whole_file[:-30])
    assert "9.png: not a readable image" in refusal(pictures, **IMAGES)
    odd.unlink()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 15)
    assert "decompression bomb" in refusal(pictures, **IMAGES)
    (pictures / "empty").mkdir()
    assert "no images in class folders" in refusal(pictures, **{**IMAGES, "path": "empty"})
    assert "is not a folder" in refusal(pictures, **{**IMAGES, "path": "p/ant/0.png"})


# --- extras ----------------------------------------------------------------------------------------------


def test_missing_extras_are_named_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "find_spec", lambda name: None if name in ("pyarrow", "PIL") else name)
    for form, extra in (("parquet", "parquet"), ("imagefolder", "image")):
        with pytest.raises(UserError) as caught:
            require_extra(form)
        assert f"pip install 'sublaplace[{extra}]'" in str(caught.value)
        assert f"sublaplace[{extra}]" in refusal(tmp_path, format=form, path="nothing")
    require_extra("csv")
