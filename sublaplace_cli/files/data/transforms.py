"""Transforms, standardisation and targets; by chunks of rows, so that uint8 images stay uint8 until they are used."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...catalog import TASKS
from ...errors import UserError
from ..spec.preparing import FixedMeanStd, Moments, Transform

RowStep = Callable[[np.ndarray], np.ndarray]
Shape = tuple[int, ...]

CHUNK_BYTES = 16 * 2**20
LARGEST_LABEL = 2**31 - 1
LARGEST_VALUE = 1e100  # sums of squares of such values are finite


@dataclass(frozen=True)
class MeanStd:
    """Mean and std of a standardisation; both have the shape of one row (or of one target)."""

    mean: np.ndarray
    std: np.ndarray

    def apply(self, rows: np.ndarray) -> np.ndarray:
        return (np.asarray(rows, dtype=np.float64) - self.mean) / self.std


@dataclass(frozen=True)
class Scales:
    """What training rows settle: the standardisation of inputs and targets, classes of labels, `rest`; or None."""

    input: MeanStd | None
    target: MeanStd | None
    classes: tuple[str, ...] | None = None
    rest: tuple[str, ...] | None = None  # names of the input columns that the spec calls so


@dataclass(frozen=True)
class Preparation:
    """Transforms in order, then the input standardisation."""

    steps: tuple[RowStep, ...] = ()
    scale: MeanStd | None = None

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """The prepared rows: float64 if any step applies, else a plain copy in the stored dtype."""
        if not self.steps and self.scale is None:
            # A fresh native array: views of files are read-only and may have any strides or byte order.
            return np.array(rows, dtype=rows.dtype.newbyteorder("="), order="C")
        prepared = np.asarray(rows, dtype=np.float64)
        for step in self.steps:
            prepared = step(prepared)
        if self.scale is not None:
            prepared = self.scale.apply(prepared)
        if not (np.abs(prepared) <= LARGEST_VALUE).all():  # also NaN
            raise overflow("data.transforms or data.standardise.input")
        return np.ascontiguousarray(prepared)


def overflow(field: str) -> UserError:
    """Refuses values that were small enough before they were scaled."""
    message = f"{field}: a scaled value is not finite or beyond ±{LARGEST_VALUE:g}"
    return UserError(message, hint="check the numbers there: scale, mean and std")


def row_chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Views of consecutive rows, each about 16 MiB as float64."""
    row_bytes = 8 * max(1, int(np.prod(rows.shape[1:], dtype=np.int64)))
    height = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, len(rows), height):
        yield rows[start : start + height]


def compile_steps(transforms: Iterable[Transform], row_shape: Shape) -> tuple[tuple[RowStep, ...], Shape]:
    """The spec's transforms as functions of a chunk of rows, and the shape of one row after them."""
    steps: list[RowStep] = []
    shape = row_shape
    for position, transform in enumerate(transforms):
        ((name, value),) = transform
        step, shape = COMPILERS[name](value, shape, f"data.transforms[{position}].{name}")
        steps.append(step)
    return tuple(steps), shape


def _scale_step(factor: float, shape: Shape, field: str) -> tuple[RowStep, Shape]:
    return partial(np.multiply, factor), shape


def _permute_step(axes: Sequence[int], shape: Shape, field: str) -> tuple[RowStep, Shape]:
    if sorted(axes) != list(range(len(shape))):
        hint = f"list each of its axes once: 0 to {len(shape) - 1} (without the axis of the rows)"
        if not shape:
            hint = "a row that is a single number has no axes: remove this transform"
        raise UserError(f"{field} is {list(axes)}, but one row has shape {shape} before it", hint=hint)
    order = (0, *(axis + 1 for axis in axes))
    return partial(np.transpose, axes=order), tuple(shape[axis] for axis in axes)


def _normalise_step(spec: Moments, shape: Shape, field: str) -> tuple[RowStep, Shape]:
    axis = spec.axis
    if not -len(shape) <= axis < len(shape):
        hint = f"it has {len(shape)} axes (without the axis of the rows)"
        raise UserError(f"{field}.axis is {axis}, but one row has shape {shape} before it", hint=hint)
    length, along = shape[axis], [1] * len(shape)
    along[axis] = length
    parts = {}
    for name in ("mean", "std"):
        values = np.asarray(getattr(spec, name), dtype=np.float64)
        if values.size not in (1, length):
            message = f"{field}.{name} has {values.size} values, but axis {axis} of a row of shape {shape} has length"
            raise UserError(f"{message} {length}", hint=f"use one number, {length} numbers, or another axis")
        parts[name] = np.broadcast_to(values, (length,)).reshape(along)
    if (parts["std"] <= 0).any():
        raise UserError(f"{field}.std has a value that is not a positive number", hint="use numbers above 0")
    return MeanStd(**parts).apply, shape


COMPILERS: dict[str, Any] = {"normalise": _normalise_step, "permute": _permute_step, "scale": _scale_step}


def fixed_scale(spec: FixedMeanStd, shape: Shape, field: str) -> MeanStd:
    """The mean and std of the spec, for rows of this shape."""
    parts = {}
    for name in ("mean", "std"):
        try:
            parts[name] = np.broadcast_to(np.asarray(getattr(spec, name), dtype=np.float64), shape)
        except ValueError:
            hint = "use one number, or as many as the row has elements"
            raise UserError(f"{field}.{name} does not fit: one row has shape {shape}", hint=hint) from None
    return MeanStd(**parts)


def measured_scale(rows: np.ndarray, steps: tuple[RowStep, ...] = ()) -> MeanStd:
    """Mean and population std of each element over these rows after `steps`; std 1 if it is constant."""
    transformed = Preparation(steps)

    def chunks() -> Iterator[np.ndarray]:
        return (np.asarray(transformed.apply(part), dtype=np.float64) for part in row_chunks(rows))

    total, low, high = 0.0, np.inf, -np.inf
    for chunk in chunks():
        total = total + chunk.sum(axis=0)
        low = np.minimum(low, chunk.min(axis=0))
        high = np.maximum(high, chunk.max(axis=0))
    constant = low == high
    # With a rounded mean a constant column would not become exactly zero.
    mean = np.where(constant, low, total / len(rows))
    # A second pass sums squares around the mean: Σx² − N·mean² cancels for columns far from zero.
    squares = sum(np.square(chunk - mean).sum(axis=0) for chunk in chunks())
    std = np.sqrt(squares / len(rows))
    if not np.isfinite(std).all():
        raise overflow("data.transforms before data.standardise: from-train")
    return MeanStd(mean, np.where(constant | (std == 0), 1.0, std))


def class_labels(
    values: np.ndarray, task: str, positive_classes: Sequence[int] | None, where: str, row_label: Callable[[int], str]
) -> np.ndarray:
    """Targets as (N,) int64: 0 or 1 for a single logit (after `positive_classes`), else 0, 1, …, C − 1."""

    def refuse(wrong: np.ndarray, expected: str, hint: str) -> None:
        if wrong.any():
            first = int(np.argmax(wrong))
            found = f"the target is {flat[first]}, expected {expected} (in {int(wrong.sum())} rows)"
            raise UserError(f"{where}: {row_label(first)}: {found}", hint=hint)

    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.ndim != 1:
        hint = "store the class number of each row (for one-hot rows: numpy.argmax(y, axis=1))"
        raise UserError(f"{where}: a {task} target has one column, this one has shape {values.shape}", hint=hint)
    if flat.dtype.kind == "b":
        flat = flat.astype(np.int64)
    if flat.dtype.kind == "f":
        hint = "class labels are whole numbers; for real-valued targets use task: regression"
        refuse(flat != np.floor(flat), "a whole number", hint)
    if not TASKS[task].one_logit:
        hint = f"{task} targets are the class numbers 0, 1, …, C−1"
        refuse((flat < 0) | (flat > LARGEST_LABEL), "a class number", hint)
    elif positive_classes is not None:
        flat = np.isin(flat, np.asarray(list(positive_classes)))
    else:
        hint = f"{task} targets are 0 or 1; for more classes use task: multiclass or wrap: binary-logodds"
        refuse((flat != 0) & (flat != 1), "0 or 1", hint)
    return flat.astype(np.int64)
