"""Tables of numbers in csv files, and which columns of any table are inputs and targets.

Columns have names or positions from 0. Another file is matched to the training file by column names if both have a
header, else by position. It may lack the target; `rest` still means the same columns.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ...errors import UserError
from ..spec.data import ColumnsSpec
from .sources import ReadRequest, Source, refuse_if_larger, suggestion_from_file

LONGEST_LINE = 8 * 2**20
POSITIONS_SHOWN = 10
MISSING_MARKS = {"", "na", "n/a", "nan", "null", "none", "?", "-"}


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
    return picked if request.with_targets else replace(picked, targets=[])


def _picked(request: ReadRequest, table: Columns, columns_of: Callable[[Path], Columns]) -> Picked:
    spec = request.columns
    if request.training_path is None:
        return _pick(spec, table)
    training = columns_of(request.training_path)
    wanted = _pick(spec, training)
    if table.names != training.names and table.names and training.names:
        inputs = [table.find(training.names[position]) for position in wanted.inputs]
        targets = [name for position in wanted.targets if (name := training.names[position]) in table.positions]
        if request.with_targets and 0 < len(targets) < len(wanted.targets):
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


def _pick(spec: ColumnsSpec | None, table: Columns) -> Picked:
    if spec is None:
        return Picked(table, list(range(table.width)), [])
    targets = [table.find(column) for column in _as_list(spec.target)]
    excluded = {table.find(column) for column in _as_list(spec.exclude)}
    if spec.input == "rest":
        inputs = sorted(set(range(table.width)).difference(targets, excluded))
    else:
        inputs = [table.find(column) for column in _as_list(spec.input)]
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


def _as_list(value: str | int | list[str | int] | None) -> list[str | int]:
    return value if isinstance(value, list) else [] if value is None else [value]


def read_csv(request: ReadRequest) -> Source:
    """A comma-separated table of numbers, with or without a header line."""
    columns, rows, quoted = _survey(request.path)
    picked = pick_columns(request, columns, lambda path: _survey(path, only_header=True)[0])
    order, split = picked.inputs + picked.targets, len(picked.inputs)
    refuse_if_larger(8 * rows * len(order), request.memory, str(request.path))
    table = _parse(columns, rows, quoted, order)
    first_line = 1 if columns.names is None else 2
    return picked.source(table[:, :split], table[:, split:], table.nbytes, first_line)


def _lines(handle: TextIO, path: Path) -> Iterator[tuple[int, str]]:
    # A bounded readline: a file without line breaks must not be read as one huge line.
    number = 0
    try:
        while line := handle.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise UserError(f"{path}: line {number} is longer than {LONGEST_LINE} characters", hint="is it csv?")
            yield number, line
    except UnicodeDecodeError as error:
        hint = "save the file as UTF-8 csv"
        raise UserError(f"{path}: not UTF-8 text after line {number} ({error.reason})", hint=hint) from None


def _cells(line: str, number: int, path: Path) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error as error:
        raise UserError(f"{path}: line {number}: {error}", hint="expected comma-separated cells") from None


def _survey(path: Path, *, only_header: bool = False) -> tuple[Columns, int, bool]:
    """The columns, the number of rows, and whether cells are quoted; checks the number of cells in every line."""
    with path.open(encoding="utf-8-sig") as handle:
        lines = _lines(handle, path)
        _, line = next(lines, (0, ""))
        first = _cells(line, 1, path)
        if not any(first):
            found = "is empty" if not line else "starts with an empty line"
            raise UserError(f"{path} {found}", hint="expected a header or numbers in its first line")
        header = not all(_number(cell) is not None or cell.lower() in MISSING_MARKS for cell in first)
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
            quoted, width = True, len(_cells(line, number, path))
        if width != columns.width:
            hint = "cells are separated by commas; every line needs the same number"
            raise UserError(f"{path}: line {number} has {width} cells, the first line has {columns.width}", hint=hint)
        rows += 1
    return rows, quoted


def _parse(columns: Columns, rows: int, quoted: bool, order: list[int]) -> np.ndarray:
    dialect: dict[str, Any] = {"delimiter": ",", "comments": None, "quotechar": '"' if quoted else None}
    with columns.path.open(encoding="utf-8-sig") as handle:
        if columns.names is not None:
            handle.readline()
        try:
            table = np.loadtxt(handle, usecols=order, ndmin=2, max_rows=rows, **dialect)
        except MemoryError:
            raise
        except Exception as error:
            # numpy's message names neither the column nor the file: find the cell in a second, slow pass.
            _refuse_bad_cell(columns, order)
            raise UserError(f"{columns.path}: {error}", hint="expected numbers in every cell") from None
    if len(table) != rows:
        hint = "close the quotes of each cell in its line; is another program writing the file?"
        raise UserError(f"{columns.path} has {rows} lines of cells, but {len(table)} rows were read", hint=hint)
    return table


def _refuse_bad_cell(columns: Columns, order: list[int]) -> None:
    path = columns.path
    with path.open(encoding="utf-8-sig") as handle:
        for number, line in _lines(handle, path):
            if (columns.names and number == 1) or line.isspace():
                continue
            cells = _cells(line, number, path)
            for position in sorted(order):
                if _number(cell := cells[position]) is None:
                    where = f"{path}: line {number}, column {columns.label(position)}"
                    found = f"is '{cell[:40]}', expected a number" if cell else "is empty"
                    hint = "fill it or encode it as a number, or exclude the column with data.columns"
                    raise UserError(f"{where} {found}", hint=hint)


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_000 as a number; in a csv file it is text
    except ValueError:
        return None
