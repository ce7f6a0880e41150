"""Tables of numbers in csv files, and which columns of any table are inputs and targets.

Columns have names or positions from 0. Another file is matched to the training file by column names if both have a
header, else by position. It may lack the target; `rest` still means the same columns.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ..spec.columns import ColumnsSpec
from .csv_rows import bad_cell, cells_of, csv_lines, read_incomplete, read_labels, table_rows, wrong_line_count
from .labels import labelled_source
from .sources import MISSING_MARKS, ReadRequest, Source, number_in, refuse_if_larger, suggestion_from_file

POSITIONS_SHOWN = 10


@dataclass(frozen=True)
class Columns:
    path: Path
    width: int
    names: tuple[str, ...] | None = None

    @cached_property
    def positions(self) -> dict[str, list[int]]:
        """Each name and where it occurs."""
        found: dict[str, list[int]] = {}
        for position, name in enumerate(self.names or ()):
            found.setdefault(name, []).append(position)
        return found

    def find(self, column: str | int) -> int:
        if isinstance(column, int):
            if not 0 <= column < self.width:
                hint = f"positions go from 0 to {self.width - 1}"
                raise UserError(f"{self.path}: there is no column {column}: it has {self.width} columns", hint=hint)
            return column
        if self.names is None:
            message = f"{self.path}: column '{column}' was requested, but the table has no column names"
            raise UserError(message, hint=f"add a header line, or use positions 0 to {self.width - 1}")
        positions = self.positions.get(column, [])
        if not positions:
            raise UserError(f"{self.path}: no column '{column}'", hint=suggestion_from_file(column, self.positions))
        if len(positions) > 1:
            more = " …" if len(positions) > POSITIONS_SHOWN else ""
            shown = f"{positions[:POSITIONS_SHOWN]}{more}"
            message = f"{self.path}: {len(positions)} columns are called '{column}' (positions {shown})"
            raise UserError(message, hint="rename them, or use the position")
        return positions[0]

    def label(self, position: int) -> str:
        return str(position) if self.names is None else f"'{self.names[position]}'"


@dataclass(frozen=True)
class Picked:
    """Positions of the input and target columns of a table; `targets` is empty if there is no target."""

    columns: Columns
    inputs: list[int]
    targets: list[int]

    def source(self, inputs: np.ndarray, targets: np.ndarray, held: int = 0, first_line: int | None = None) -> Source:
        names, target_names = (tuple(map(self.columns.label, side)) for side in (self.inputs, self.targets))
        found = targets if self.targets else None
        return Source(self.columns.path, inputs, found, held, names, target_names, first_line)


def pick_columns(request: ReadRequest, table: Columns, columns_of: Callable[[Path], Columns]) -> Picked:
    """The input and target columns of `table`; `columns_of` reads those of the training file, if it is another one."""
    picked = _picked(request, table, columns_of)
    return picked if request.targets.wanted else replace(picked, targets=[])


def _picked(request: ReadRequest, table: Columns, columns_of: Callable[[Path], Columns]) -> Picked:
    spec = request.columns
    if request.training_path is None:
        own = _without_absent(spec, table) if request.targets.may_lack else spec
        if own is not None and own.input == "rest" and request.rest is not None and table.names:
            own = own.model_copy(update={"input": list(request.rest), "exclude": None})
        return _pick(own, table)
    training = columns_of(request.training_path)
    wanted = _pick(spec, training)
    if table.names != training.names and table.names and training.names:
        inputs = [table.find(training.names[position]) for position in wanted.inputs]
        targets = [name for position in wanted.targets if (name := training.names[position]) in table.positions]
        if request.targets.wanted and 0 < len(targets) < len(wanted.targets):
            hint = "include all of them or none"
            raise UserError(f"{table.path} has some of the target columns of {training.path}, but not all", hint=hint)
        return Picked(table, inputs, list(map(table.find, targets)))
    if table.width == training.width:
        return replace(wanted, columns=table)
    if (spec is None or spec.input == "rest") and table.width == training.width - len(wanted.targets):
        left = sorted(set(range(training.width)).difference(wanted.targets))
        here = {position: number for number, position in enumerate(left)}
        return Picked(table, [here[position] for position in wanted.inputs], [])
    message = f"{table.path} has {table.width} columns, the training file {training.path} has {training.width}"
    raise UserError(message, hint="use the same columns in both, or add a header line with their names to both")


def _without_absent(spec: ColumnsSpec | None, table: Columns) -> ColumnsSpec | None:
    """The choice of columns without a target and exclusions that the table does not have."""
    if spec is None:
        return None

    def is_there(column: str | int) -> bool:
        return column < table.width if isinstance(column, int) else table.names is None or column in table.positions

    targets = list(filter(is_there, as_list(spec.target)))
    if 0 < len(targets) < len(as_list(spec.target)):
        hint = "include all of them or none"
        raise UserError(f"{table.path} has some of the target columns, but not all: {targets}", hint=hint)
    return spec.model_copy(
        update={"target": targets or None, "exclude": list(filter(is_there, as_list(spec.exclude))) or None}
    )


def _pick(spec: ColumnsSpec | None, table: Columns) -> Picked:
    if spec is None:
        return Picked(table, list(range(table.width)), [])
    targets = [table.find(column) for column in as_list(spec.target)]
    excluded = {table.find(column) for column in as_list(spec.exclude)}
    if spec.input == "rest":
        inputs = sorted(set(range(table.width)).difference(targets, excluded))
    else:
        inputs = [table.find(column) for column in as_list(spec.input)]
    for position in excluded.intersection(targets + inputs):
        hint = "take it out of data.columns.exclude, or do not use it"
        raise UserError(f"{table.path}: column {table.label(position)} is excluded, but also used", hint=hint)
    for position, count in Counter(targets + inputs).items():
        if count > 1:
            hint = "each column is an input or a target, once: see data.columns"
            raise UserError(f"{table.path}: column {table.label(position)} is used more than once", hint=hint)
    if not inputs:
        raise UserError(f"{table.path}: no input columns are left besides the target", hint="see data.columns")
    return Picked(table, inputs, targets)


def as_list(value: str | int | list[str | int] | dict[str, str | int] | None) -> list[str | int]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [] if value is None else [value]


def read_csv(request: ReadRequest) -> Source:
    """A comma-separated table of numbers, with or without a header line; class labels may be texts."""
    columns, rows, quoted = _survey(request.path)
    picked = pick_columns(request, columns, lambda path: _survey(path, only_header=True)[0])
    _refuse_row_as_header(request, picked)
    order, split = picked.inputs + picked.targets, len(picked.inputs)
    refuse_if_larger(8 * rows * len(order), request.memory, str(request.path))
    first_line = 1 if columns.names is None else 2
    try:
        if request.targets.classes is None or not picked.targets:  # else all labels are texts
            table = _parse(columns, rows, quoted, order)
            return picked.source(table[:, :split], table[:, split:], table.nbytes, first_line)
    except (MemoryError, UserError):
        raise
    except Exception as error:  # numpy's message names neither the column nor the file
        if not picked.targets:
            raise _explained(columns, rows, picked.inputs, error) from None
    return _with_odd_targets(request, picked, rows, quoted, first_line)


def _refuse_row_as_header(request: ReadRequest, picked: Picked) -> None:
    """A row with texts, such as a label or an excluded name, is no header, and must not be lost as one."""
    spec, names = request.columns, picked.columns.names
    if spec is None or names is None:
        return
    columns = [*as_list(spec.target), *as_list(spec.exclude), *([] if spec.input == "rest" else as_list(spec.input))]
    has_labels = request.targets.takes_labels and len(picked.targets) == 1
    used = [*picked.inputs, *([] if has_labels else picked.targets)]
    if any(isinstance(column, str) for column in columns) or any(number_in(names[i]) is None for i in used):
        return
    text = next(name for name in names if number_in(name) is None)
    message = f"{picked.columns.path}: line 1 has numbers and the text '{text[:40]}': a header, or a row?"
    raise UserError(message, hint="add a header line, and name the target in data.columns")


def _with_odd_targets(request: ReadRequest, picked: Picked, rows: int, quoted: bool, first_line: int) -> Source:
    """A table whose targets may be texts or missing."""
    columns, positions = picked.columns, picked.targets
    try:
        inputs = _parse(columns, rows, quoted, picked.inputs)
    except (MemoryError, UserError):
        raise
    except Exception as error:
        raise _explained(columns, rows, picked.inputs, error) from None
    if request.targets.takes_labels and len(positions) == 1:
        labels = read_labels(request, columns, rows, positions[0])
        source = picked.source(inputs, inputs[:, :0], inputs.nbytes + labels.codes.nbytes, first_line)
        return labelled_source(source, labels, request)
    targets = read_incomplete(columns, rows, positions)
    return picked.source(inputs, targets, inputs.nbytes + targets.nbytes, first_line)


def _survey(path: Path, *, only_header: bool = False) -> tuple[Columns, int, bool]:
    """The columns, the number of rows, and whether cells are quoted; checks the number of cells in every line."""
    with path.open(encoding="utf-8-sig") as handle:
        lines = csv_lines(handle, path)
        _, line = next(lines, (0, ""))
        first = cells_of(line, 1, path)
        if not any(first):
            found = "is empty" if not line else "starts with an empty line"
            raise UserError(f"{path} {found}", hint="expected a header or numbers in its first line")
        header = not all(number_in(cell) is not None or cell.lower() in MISSING_MARKS for cell in first)
        columns = Columns(path, len(first), tuple(first) if header else None)
        rows, quoted = (0, False) if only_header else _count_rows(lines, columns)
    if header and rows == 0 and not only_header:
        raise UserError(f"{path} has a header line but no rows", hint="add data lines")
    return columns, rows + (not header), quoted or '"' in line


def _count_rows(lines: Iterator[tuple[int, str]], columns: Columns) -> tuple[int, bool]:
    rows, blank, quoted, path = 0, 0, False, columns.path
    for number, line in lines:
        if line.isspace():
            blank = blank or number
            continue
        if blank:
            raise UserError(f"{path}: line {blank} is empty", hint="remove it: each line is a row")
        width = line.count(",") + 1
        if '"' in line:
            quoted, width = True, len(cells_of(line, number, path))
        if width != columns.width:
            hint = "cells are separated by commas; every line needs the same number"
            raise UserError(f"{path}: line {number} has {width} cells, the first line has {columns.width}", hint=hint)
        rows += 1
    return rows, quoted


def _parse(columns: Columns, rows: int, quoted: bool, order: list[int]) -> np.ndarray:
    """The numbers of some columns; a ValueError if a cell is none."""
    dialect: dict[str, Any] = {"delimiter": ",", "comments": None, "quotechar": '"' if quoted else None}
    with columns.path.open(encoding="utf-8-sig") as handle:
        if columns.names is not None:
            handle.readline()
        table = np.loadtxt(handle, usecols=order, ndmin=2, max_rows=rows, **dialect)
    if len(table) != rows:
        raise wrong_line_count(columns.path, rows, len(table))
    return table


def _explained(columns: Columns, rows: int, order: list[int], error: Exception) -> UserError:
    """The error that names the first wrong cell, found in a second, slow pass."""
    for number, cells in table_rows(columns, rows):
        for position in sorted(order):
            if number_in(cells[position]) is None:
                return bad_cell(columns, number, position, cells[position])
    return UserError(f"{columns.path}: {error}", hint="expected numbers in every cell")
