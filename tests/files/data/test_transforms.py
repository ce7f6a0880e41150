"""Transforms, standardisation and targets against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data import transforms
from sublaplace_cli.files.data.transforms import Preparation, class_labels, compile_steps, measured_scale
from sublaplace_cli.files.spec.preparing import FixedMeanStd, Moments, Normalise, Permute, Scale


def scale(factor: float) -> Scale:
    return Scale(scale=factor)


def permute(*axes: int) -> Permute:
    return Permute.model_construct(permute=list(axes))


def normalise(mean: Any, std: Any, axis: int = 0) -> Normalise:
    return Normalise(normalise=Moments(mean=mean, std=std, axis=axis))


def images(n: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 4, 6, 3), dtype=np.uint8)


def test_transforms_apply_in_order_to_each_row() -> None:
    steps, shape = compile_steps([scale(1 / 255), permute(2, 0, 1), normalise([0.1, 0.2, 0.3], [1, 2, 4])], (4, 6, 3))
    x = images()
    expected = (x / 255).transpose(0, 3, 1, 2) - np.array([0.1, 0.2, 0.3]).reshape(1, 3, 1, 1)
    expected /= np.array([1, 2, 4.0]).reshape(1, 3, 1, 1)
    prepared = Preparation(steps).apply(x)
    assert shape == (3, 4, 6)
    assert prepared.dtype == np.float64
    assert prepared.flags.c_contiguous
    np.testing.assert_allclose(prepared, expected, rtol=1e-14)


def test_normalise_takes_another_axis_and_a_single_number() -> None:
    steps, _ = compile_steps([normalise([1, 2, 3], 2.0, axis=2)], (4, 6, 3))
    np.testing.assert_array_equal(Preparation(steps).apply(images()), (images() - np.array([1.0, 2, 3])) / 2)


def test_without_preparation_the_stored_dtype_is_kept_in_a_fresh_array() -> None:
    x = images()
    prepared = Preparation().apply(x[::-1])
    assert prepared.dtype == np.uint8
    assert prepared.flags.writeable
    assert prepared.flags.c_contiguous
    big_endian: np.ndarray = np.arange(3, dtype=">f4")
    assert Preparation().apply(big_endian).dtype.isnative


@pytest.mark.parametrize(
    ("transform", "shape", "expected"),
    [
        (permute(1, 0), (4, 6, 3), "(4, 6, 3)"),
        (permute(0, 0, 1), (4, 6, 3), "[0, 0, 1]"),
        (permute(0), (), "()"),
        (normalise([1, 2], [1, 2]), (4, 6, 3), "length 4"),
        (normalise([1, 2, 3], [1, -2, 3], axis=2), (4, 6, 3), "positive"),
        (normalise(0, 1, axis=3), (4, 6, 3), "axis is 3"),
    ],
)
def test_wrong_transforms_are_explained(transform: Any, shape: tuple[int, ...], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        compile_steps([transform], shape)
    assert expected in str(caught.value)
    assert "data.transforms[0]" in caught.value.message
    assert caught.value.hint


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 60), chunk_rows=st.integers(1, 7), seed=st.integers(0, 99))
def test_measured_scale_does_not_depend_on_chunks(n: int, chunk_rows: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(1e6, 3, (n, 2, 3))
    x[:, 0, 0] = 0.1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "CHUNK_BYTES", chunk_rows * 8 * 6)
        found = measured_scale(x)
    np.testing.assert_allclose(found.mean, x.mean(axis=0), rtol=1e-13)
    expected = np.where(x.max(axis=0) == x.min(axis=0), 1.0, x.std(axis=0))
    # The reference rounds x − mean at 1e6·eps too: 1e-8 of a std of 3.
    np.testing.assert_allclose(found.std, expected, rtol=1e-8)
    assert np.all(found.apply(x)[:, 0, 0] == 0)


def test_measured_scale_is_that_after_the_steps() -> None:
    steps, _ = compile_steps([scale(0.5), permute(2, 0, 1)], (4, 6, 3))
    x = images(50)
    found = measured_scale(x, steps)
    after = (x * 0.5).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(found.mean, after.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.std, after.std(axis=0), rtol=1e-13)


def test_fixed_scale_must_fit_the_row() -> None:
    spec = FixedMeanStd(mean=[1.0, 2.0], std=2.0)
    assert transforms.fixed_scale(spec, (2,), "f").std.shape == (2,)
    with pytest.raises(UserError, match=r"f.mean does not fit: one row has shape \(3,\)"):
        transforms.fixed_scale(spec, (3,), "f")


def labels(values: Any, task: str, positive: list[int] | None = None) -> np.ndarray:
    return class_labels(np.asarray(values), task, positive, "data.csv", lambda row: f"line {row + 2}")


@pytest.mark.parametrize("values", [[0, 1, 1], [0.0, 1.0, 1.0], [False, True, True], [[0], [1], [1]]])
def test_binary_labels_of_all_kinds(values: Any) -> None:
    found = labels(values, "binary")
    assert found.dtype == np.int64
    assert found.tolist() == [0, 1, 1]


def test_positive_classes_map_integers_to_0_and_1() -> None:
    assert labels([[9], [3], [5]], "binary", [5, 9]).tolist() == [1, 0, 1]
    with pytest.raises(UserError, match="whole number"):
        labels([5.5], "binary", [5])


@pytest.mark.parametrize(
    ("values", "task", "expected"),
    [
        ([0, 2], "binary", "line 3: the target is 2, expected 0 or 1"),
        ([0, 1.5], "multiclass", "line 3: the target is 1.5, expected a whole number"),
        ([0, -1], "multiclass", "line 3: the target is -1"),
        ([0, 1e300], "multiclass", "line 3: the target is 1e+300"),
        ([[0, 1], [1, 0]], "multiclass", "one column"),
    ],
)
def test_wrong_labels_are_explained(values: Any, task: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        labels(values, task)
    assert expected in caught.value.message
