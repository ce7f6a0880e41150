"""Tables in Arrow files: columns of numbers as one table, columns of lists as arrays of their own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....errors import UserError
from ...reading import reading
from ..labels import LabelPlaces, Labels, labelled_source
from ..sources import ReadRequest, Source, labelled, map_inputs, refuse_if_larger
from ..tables import Columns, Picked, pick_columns
from .arrow_files import BAD_ARROW, ArrowTable, batches, open_table
from .values import bounded, kind_of, label_codes, refuse_nulls, targets_of, values_of, wrong_type


@dataclass(frozen=True)
class _Survey:
    """What a first pass over the columns finds."""

    rows: int
    row_shapes: dict[int, tuple[int, ...]]  # by position
    dtypes: dict[int, np.dtype[Any]]


def read_arrow(request: ReadRequest) -> Source:
    """An Arrow file or stream, or a saved data set; class labels may be texts."""
    table = open_table(request.path, request.memory)
    for file in table.files:
        request.require_allowed(file)
    columns = _columns(table)
    picked = pick_columns(request, columns, lambda path: _columns(open_table(path, request.memory)))
    inputs = _arranged(request, table, columns, picked)
    has_labels = _has_labels(request, table, columns, picked)
    survey = _survey(request, table, columns, picked.inputs)
    arrays = map_inputs(lambda at: _empty(survey, at, request), inputs)
    targets = np.empty((survey.rows, len(picked.targets)))
    held = sum(array.nbytes for _, array in labelled(arrays)) + targets.nbytes
    refuse_if_larger(held, request.memory, str(request.path))
    places = LabelPlaces(f"{request.path}: the target", request.targets.classes) if has_labels else None
    order, start = picked.inputs + picked.targets, 0
    for parts in batches(table, order, request.memory):
        stop = start + len(parts[0])
        if stop > survey.rows:
            raise UserError(f"{request.path} changed while it was read", hint="is another program writing it?")
        with reading(request.path, BAD_ARROW), bounded(request.path, request.memory):
            by_position = dict(zip(order, parts, strict=True))
            for (_, array), (_, at) in zip(labelled(arrays), labelled(inputs), strict=True):
                _fill(array[start:stop], at, by_position)
            for i, part in enumerate(parts[len(picked.inputs) :]):
                targets[start:stop, i] = targets_of(part) if places is None else label_codes(part, places)
        start = stop
    source = replace(picked.source(targets, targets, held), inputs=arrays)
    if places is None:
        return source
    return labelled_source(source, Labels(targets[:, 0].astype(np.int64), places.names), request)


def _fill(rows: np.ndarray, at: int | list[int], by_position: dict[int, Any]) -> None:
    """Copy one column, or several side by side, to these rows of an array."""
    if not isinstance(at, list):
        rows[...] = values_of(by_position[at])
        return
    for i, position in enumerate(at):
        rows[:, i] = values_of(by_position[position])


def _columns(table: ArrowTable) -> Columns:
    return Columns(table.path, len(table.names), table.names)


def _arranged(request: ReadRequest, table: ArrowTable, columns: Columns, picked: Picked) -> Any:
    """Which columns make up which array: a mapping as named, one of lists by itself, all others one table."""
    lists = [position for position in picked.inputs if kind_of(table.types[position]) == "list"]
    for position in picked.inputs:
        if kind_of(table.types[position]) not in ("number", "truth", "list"):
            raise wrong_type(f"{table.path}: column {columns.label(position)}", table.types[position])
    named = None if request.columns is None else request.columns.input
    if isinstance(named, dict):
        return dict(zip(named, picked.inputs, strict=True))
    if lists and len(picked.inputs) > 1:
        shown = ", ".join(map(columns.label, lists[:5]))
        message = f"{table.path}: {shown}: columns of lists are arrays of their own, but there are more inputs"
        hint = "set data.columns.input to one of them, or to a mapping from the network's inputs to columns"
        raise UserError(message, hint=hint)
    return lists[0] if lists else picked.inputs


def _has_labels(request: ReadRequest, table: ArrowTable, columns: Columns, picked: Picked) -> bool:
    """Whether the target holds class labels; other types than numbers and labels are refused."""
    kinds = [kind_of(table.types[position]) for position in picked.targets]
    may_be_labels = request.targets.takes_labels and len(kinds) == 1
    for position, kind in zip(picked.targets, kinds, strict=True):
        if kind not in ("number", "truth", "nothing") and not (may_be_labels and kind == "text"):
            raise wrong_type(f"{table.path}: column {columns.label(position)}", table.types[position])
    return may_be_labels and kinds[0] in ("text", "truth")


def _survey(request: ReadRequest, table: ArrowTable, columns: Columns, positions: Sequence[int]) -> _Survey:
    """Rows, shapes and types of the inputs; refuses nulls, and lists of other lengths than the first one's."""
    rows, shapes, dtypes = 0, dict[int, tuple[int, ...]](), dict[int, np.dtype[Any]]()
    for parts in batches(table, list(positions), request.memory):
        for position, part in zip(positions, parts, strict=True):
            if len(part) == 0:
                continue
            refuse_nulls(part, str(table.path), rows, columns.label(position))
            with reading(table.path, BAD_ARROW), bounded(table.path, request.memory):
                values = values_of(part, where=f"{table.path}: column {columns.label(position)}", start=rows)
            shape = shapes.setdefault(position, values.shape[1:])
            dtypes.setdefault(position, values.dtype)
            if values.shape[1:] != shape:
                found = f"a row has the shape {values.shape[1:]}, the first has {shape}"
                message = f"{table.path}: column {columns.label(position)}: from row {rows} on, {found}"
                raise UserError(message, hint="pad or cut the lists to one length")
        rows += len(parts[0])
    if rows == 0:
        raise UserError(f"{table.path} has no rows", hint="use a file with data")
    return _Survey(rows, shapes, dtypes)


def _empty(survey: _Survey, at: int | list[int], request: ReadRequest) -> np.ndarray:
    """An array for one column, or for several side by side."""
    if isinstance(at, list):
        shape: tuple[int, ...] = (survey.rows, len(at))
        dtype = np.result_type(*(survey.dtypes[position] for position in at))
    else:
        shape, dtype = (survey.rows, *survey.row_shapes[at]), survey.dtypes[at]
    refuse_if_larger(math.prod(shape) * dtype.itemsize, request.memory, str(request.path))
    return np.empty(shape, dtype)
