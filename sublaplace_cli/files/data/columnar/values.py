"""Columns of parquet and Arrow files, as pyarrow holds them → numbers, class labels and arrays."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ....errors import UserError
from ...reading import bounded_memory
from ..labels import LONGEST_LABEL, MOST_LABELS, TRUTH, LabelPlaces
from ..sources import MISSING

Kind = Literal["number", "truth", "text", "nothing", "list", "other"]
MOST_UTF8 = 4  # bytes of a character
MOST_LIST_LEVELS = 8


@contextmanager
def bounded(path: Path, memory: int) -> Iterator[None]:
    """A page or buffer may expand to more than the file claims for it."""
    try:
        with bounded_memory(memory):
            yield
    except MemoryError as error:
        message = f"{path}: a part of it expands to more than the allowed memory"
        raise UserError(message, hint="raise --memory if you trust the file") from error


def kind_of(kind: Any) -> Kind:
    """What a pyarrow type can be read as."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return "text" if kind_of(kind.value_type) == "text" else "other"
    checks: list[tuple[Any, Kind]] = [
        (types.is_boolean, "truth"),
        (types.is_integer, "number"),
        (types.is_floating, "number"),
        (_is_text, "text"),
        (types.is_null, "nothing"),
        (_is_list, "list"),
    ]
    return next((name for check, name in checks if check(kind)), "other")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind) or _is_text_view(kind)


def _is_text_view(kind: Any) -> bool:
    return str(kind) == "string_view"  # older versions of pyarrow have no check for it


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def wrong_type(where: str, kind: Any, expected: str = "numbers") -> UserError:
    message = f"{where} has type {str(kind)[:100]}, expected {expected}"
    return UserError(message, hint="encode it as numbers, or exclude it with data.columns")


def refuse_nulls(column: Any, where: str, start: int, label: str) -> None:
    """`start` is the number of its first row."""
    if column.null_count:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise UserError(f"{where}: row {row}, column {label} is null", hint="fill it or remove the row")


def targets_of(column: Any) -> np.ndarray:
    """Numbers as float64, NaN where there is none."""
    import pyarrow

    kind = kind_of(column.type)
    if kind == "nothing":
        return np.full(len(column), np.nan)
    if kind == "truth":
        column = column.cast(pyarrow.int8())
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def label_codes(column: Any, places: LabelPlaces) -> np.ndarray:
    """The place of each row's label, or MISSING; `column` has no chunks."""
    import pyarrow
    from pyarrow import compute

    if kind_of(column.type) == "truth":  # False is at place 0
        for name in TRUTH:
            places.of(name)
        return np.asarray(column.cast(pyarrow.int8()).fill_null(MISSING).to_numpy(zero_copy_only=False), np.int64)
    if _is_text_view(column.type):
        column = column.cast(pyarrow.large_string())
    encoded = column if pyarrow.types.is_dictionary(column.type) else column.dictionary_encode()
    names = encoded.dictionary
    absent = len(names)
    at = encoded.indices.cast(pyarrow.int64()).fill_null(absent).to_numpy(zero_copy_only=False)
    used = np.unique(at)
    used = used[used < absent]
    if len(used) > MOST_LABELS:
        raise UserError(f"{places.where} has more than {MOST_LABELS} distinct texts: these are no class labels")
    texts = names.take(pyarrow.array(used))
    if _is_text_view(texts.type):
        texts = texts.cast(pyarrow.large_string())
    if (compute.max(compute.binary_length(texts)).as_py() or 0) > MOST_UTF8 * LONGEST_LABEL:
        raise UserError(f"{places.where} has a very long text: these are no class labels", hint="is it the target?")
    found = np.full(absent + 1, MISSING, dtype=np.int64)
    for place, text in zip(used, texts.to_pylist(), strict=True):
        found[place] = MISSING if text is None else places.of(text)
    return found[at]


def values_of(column: Any, where: str = "", start: int = 0) -> np.ndarray:
    """Numbers (n,), or lists of equal length (n, length, …), in the type that the file has."""
    shape = [len(column)]
    while kind_of(column.type) == "list":
        if len(shape) == MOST_LIST_LEVELS:
            raise UserError(f"{where} has lists of more than {MOST_LIST_LEVELS} levels", hint="store fewer axes")
        shape.append(_common_length(column, where, start, math.prod(shape[1:])))
        column = column.flatten()
    if kind_of(column.type) not in ("number", "truth"):
        raise wrong_type(where, column.type, "lists of numbers")
    if column.null_count:
        raise UserError(f"{where} has a null inside a list", hint="fill it or remove the row")
    values = column.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def _common_length(column: Any, where: str, start: int, lists_per_row: int) -> int:
    """The length of every list of a column."""
    import pyarrow
    from pyarrow import compute

    if column.null_count:
        raise UserError(f"{where} has a null instead of a list", hint="fill it or remove the row")
    if pyarrow.types.is_fixed_size_list(column.type):
        length = column.type.list_size
    else:
        lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
        length = int(lengths[0])
        if (lengths != length).any():
            first = int(np.argmax(lengths != length))
            row = start + first // lists_per_row
            message = f"{where}: row {row} has a list of {lengths[first]} values, the first has {length}"
            raise UserError(message, hint="pad or cut the lists to one length")
    if length == 0:
        raise UserError(f"{where} has empty lists", hint="each row needs a value")
    return length
