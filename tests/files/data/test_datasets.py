"""All data formats give the same splits; files, standardisation and targets of a split."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files.data.data_cases import COLUMNS, X, Y, load, refusal, train, whole

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data.datasets import data_files, require_extra
from sublaplace_cli.files.spec.data import DataSpec


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
    one = {"train": {"rows": "1::4"}}
    assert "one-class data: all 5 training targets are 1" in refusal(folder, task="multiclass", splits=one, **data)
    arrays = {"input": "x", "target": "two"}
    assert "one column" in refusal(folder, task="multiclass", arrays=arrays, **data)


def test_measured_targets_are_two_dimensional(folder: Path) -> None:
    np.savez(folder / "t.npz", x=X, one=np.arange(20), two=X[:, :2].astype(np.float32), cube=np.ones((20, 2, 2)))
    data: dict[str, Any] = {"format": "npz", "path": "t.npz"}
    for name, shape in (("one", (20, 1)), ("two", (20, 2))):
        targets = train(folder, arrays={"input": "x", "target": name}, **data).targets
        assert targets is not None
        assert (targets.shape, targets.dtype) == (shape, np.float64)
    assert "the target has shape (20, 2, 2)" in refusal(folder, arrays={"input": "x", "target": "cube"}, **data)


# --- extras ----------------------------------------------------------------------------------------------


OOD_FILES: dict[str, Any] = {
    "csv": {"format": "csv", "path": "d.csv", "columns": COLUMNS},
    "npz": {"format": "npz", "path": "d.npz"},
    "npz with names": {"format": "npz", "path": "d.npz", "arrays": {"input": "x", "target": "y"}},
}


@pytest.mark.parametrize("kind", OOD_FILES)
def test_targets_of_ood_rows_are_not_read(folder: Path, kind: str) -> None:
    """They may be words, missing, not finite, of another length, or classes that nobody knows."""
    far = X[:5] + 9
    lines = [",".join([*(repr(float(value)) for value in row), "cat"]) for row in far]
    (folder / "far.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    np.savez(folder / "far.npz", x=far, y=[np.nan, np.inf])
    np.savez(folder / "bare.npz", x=far)
    (folder / "bare.csv").write_text("\n".join(["c,b,a", *(line.rpartition(",")[0] for line in lines)]) + "\n")
    data, suffix = OOD_FILES[kind], OOD_FILES[kind]["format"]
    sets = {"far": {"path": f"far.{suffix}", "rows": "1:"}, "bare": {"path": f"bare.{suffix}"}}
    names = ("train", "ood.far", "ood.bare")
    standardise = {"input": "from-train", "target": "from-train"}
    splits = load(folder, names, splits={"train": {"rows": ":12"}, "ood": sets}, standardise=standardise, **data)
    assert all(splits[name].targets is None for name in names[1:])
    expected = (far - X[:12].mean(0)) / X[:12].std(0)
    np.testing.assert_allclose(whole(splits["ood.far"]), expected[1:], rtol=1e-12)
    order = [2, 1, 0] if suffix == "csv" else [0, 1, 2]
    np.testing.assert_allclose(
        whole(splits["ood.bare"]), ((far[:, order]) - X[:12].mean(0)) / X[:12].std(0), rtol=1e-12
    )


def test_ood_rows_of_the_training_file(folder: Path) -> None:
    splits = {"train": {"rows": ":12"}, "test": {"rows": "12:15"}, "ood": {"rows": "15:"}}
    found = load(folder, ("train", "test", "ood"), format="csv", path="d.csv", columns=COLUMNS, splits=splits)
    np.testing.assert_array_equal(whole(found["ood"]), X[15:])
    assert found["ood"].targets is None
    assert found["test"].targets is not None
    message = refusal(folder, "ood", format="csv", path="d.csv", columns=COLUMNS, splits={"ood": {"path": "no.csv"}})
    assert "data.splits.ood.path" in message
    sets = {"a": {"path": "d.csv"}, "b": {"path": "d.npy"}}
    spec = DataSpec.model_validate({"format": "csv", "path": "d.csv", "splits": {"ood": sets}})
    assert data_files(spec, lambda value, _: folder / value) == [folder / "d.csv", folder / "d.npy"]


def test_missing_extras_are_named_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)  # its import fails
    for form, extra in (("parquet", "parquet"), ("imagefolder", "image")):
        with pytest.raises(UserError) as caught:
            require_extra(form)
        assert f"pip install '.[{extra}]'" in str(caught.value)
        assert f".[{extra}]" in refusal(tmp_path, format=form, path="nothing")
    require_extra("csv")
