"""The rows of a csv file, one by one: for labels that are texts, missing targets, and the place of a wrong cell."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from ...errors import UserError
from .labels import LabelPlaces, Labels
from .sources import MISSING_MARKS, ReadRequest, number_in

if TYPE_CHECKING:
    from .tables import Columns

LONGEST_LINE = 8 * 2**20


def csv_lines(handle: TextIO, path: Path) -> Iterator[tuple[int, str]]:
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


def cells_of(line: str, number: int, path: Path) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error as error:
        raise UserError(f"{path}: line {number}: {error}", hint="expected comma-separated cells") from None


def read_labels(request: ReadRequest, columns: Columns, rows: int, position: int) -> Labels:
    places = LabelPlaces(f"{columns.path}: column {columns.label(position)}", request.targets.classes)
    codes = np.empty(rows, dtype=np.int64)
    for row, (_, cells) in enumerate(table_rows(columns, rows)):
        codes[row] = places.of(cells[position])
    return Labels(codes, places.names)


def read_incomplete(columns: Columns, rows: int, positions: list[int]) -> np.ndarray:
    """Targets (rows, targets) with NaN where a cell is empty; a cell that is no number is refused."""
    targets = np.empty((rows, len(positions)))
    for row, (number, cells) in enumerate(table_rows(columns, rows)):
        for i, position in enumerate(positions):
            cell = cells[position]
            value = np.nan if cell.lower() in MISSING_MARKS else number_in(cell)
            if value is None:
                raise bad_cell(columns, number, position, cell)
            targets[row, i] = value
    return targets


def wrong_line_count(path: Path, rows: int, found: int) -> UserError:
    hint = "close the quotes of each cell in its line; is another program writing the file?"
    return UserError(f"{path} has {rows} lines of cells, but {found} rows were read", hint=hint)


def table_rows(columns: Columns, rows: int) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row; slow."""
    path, found = columns.path, 0
    with path.open(encoding="utf-8-sig") as handle:
        for number, line in csv_lines(handle, path):
            if (columns.names and number == 1) or line.isspace():
                continue
            cells, found = cells_of(line, number, path), found + 1
            if len(cells) != columns.width or found > rows:
                raise wrong_line_count(path, rows, found)
            yield number, cells
    if found != rows:
        raise wrong_line_count(path, rows, found)


def bad_cell(columns: Columns, number: int, position: int, cell: str) -> UserError:
    where = f"{columns.path}: line {number}, column {columns.label(position)}"
    found = f"is '{cell[:40]}', expected a number" if cell else "is empty"
    hint = "fill it or encode it as a number, or exclude the column with data.columns"
    return UserError(f"{where} {found}", hint=hint)
