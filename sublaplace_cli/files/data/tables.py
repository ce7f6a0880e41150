"""Tables of numbers: csv and parquet."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ...errors import UserError
from .columns import Columns, pick_columns
from .sources import ReadRequest, Source, refuse_if_larger

LONGEST_LINE = 16 * 2**20
MISSING_MARKS = {"", "na", "n/a", "nan", "null", "none", "?", "-"}


@dataclass(frozen=True)
class _Survey:
    columns: Columns
    first_line: int
    rows: int
    quoted: bool


def read_csv(request: ReadRequest) -> Source:
    """A comma-separated table of numbers, with or without a header line."""
    survey = _survey(request.path)
    picked = pick_columns(request, survey.columns, lambda path: _survey(path, only_header=True).columns)
    order = picked.inputs + picked.targets
    refuse_if_larger(8 * survey.rows * len(order), request.memory, str(request.path))
    table, split = _parse(request.path, survey, order), len(picked.inputs)
    return picked.source(table[:, :split], table[:, split:], table.nbytes, survey.first_line)


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


def _survey(path: Path, *, only_header: bool = False) -> _Survey:
    """Header, width and number of rows; checks the number of cells in every line."""
    with path.open(encoding="utf-8-sig") as handle:
        lines = _lines(handle, path)
        _, line = next(lines, (0, ""))
        first = _cells(line, 1, path)
        if not any(first):
            found = "is empty" if not line else "starts with an empty line"
            raise UserError(f"{path} {found}", hint="expected a header or numbers in its first line")
        header = not all(_number(cell) is not None or cell.lower() in MISSING_MARKS for cell in first)
        columns = Columns(path, len(first), tuple(first) if header else None)
        counted, quoted = (0, False) if only_header else _count_rows(lines, columns)
    rows = counted + (not header)
    if rows == 0 and not only_header:
        raise UserError(f"{path} has a header line but no rows", hint="add data lines")
    return _Survey(columns, 2 if header else 1, rows, quoted or '"' in line)


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


def _parse(path: Path, survey: _Survey, order: list[int]) -> np.ndarray:
    dialect: dict[str, Any] = {"delimiter": ",", "comments": None, "quotechar": '"' if survey.quoted else None}
    with path.open(encoding="utf-8-sig") as handle:
        for _ in range(survey.first_line - 1):
            handle.readline()
        try:
            return np.loadtxt(handle, usecols=order, ndmin=2, max_rows=survey.rows, **dialect)
        except ValueError as error:
            # numpy's message names neither the column nor the file: find the cell in a second, slow pass.
            _refuse_bad_cell(path, survey, order)
            raise UserError(f"{path}: {error}", hint="expected numbers in every cell") from None


def _refuse_bad_cell(path: Path, survey: _Survey, order: list[int]) -> None:
    with path.open(encoding="utf-8-sig") as handle:
        for number, line in _lines(handle, path):
            if number < survey.first_line or line.isspace():
                continue
            cells = _cells(line, number, path)
            for position in sorted(order):
                if _number(cell := cells[position]) is None:
                    where = f"{path}: line {number}, column {survey.columns.label(position)}"
                    found = f"is '{cell[:40]}', expected a number" if cell else "is empty"
                    hint = "fill it or encode it as a number, or exclude the column with data.columns"
                    raise UserError(f"{where} {found}", hint=hint)


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_000 as a number; in a csv file it is text
    except ValueError:
        return None


def read_parquet(request: ReadRequest) -> Source:
    """A parquet table of numbers, read row group by row group."""
    columns = _parquet_columns(request.path)
    picked = pick_columns(request, columns, _parquet_columns)
    order, split = picked.inputs + picked.targets, len(picked.inputs)
    with _opened_parquet(request.path) as file:
        _check_parquet_types(file, columns, order)
        # The table, plus the stored form of the largest row group during its conversion.
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        largest = max((group.total_byte_size for group in groups), default=0)
        refuse_if_larger(8 * file.metadata.num_rows * len(order) + largest, request.memory, str(request.path))
        table = np.empty((file.metadata.num_rows, len(order)), dtype=np.float64)
        start = 0
        for index, group in enumerate(groups):
            for destination, position in enumerate(order):
                # By position, not by name: names may occur twice. One by one: pyarrow ignores the requested order.
                values = file.reader.read_row_group(index, column_indices=[position]).column(0)
                if values.null_count:
                    row = start + int(np.argmax(values.is_null().to_numpy()))
                    message = f"{request.path}: row {row}, column {columns.label(position)} is null"
                    raise UserError(message, hint="fill it or remove the row")
                table[start : start + group.num_rows, destination] = values.to_numpy()
            start += group.num_rows
    return picked.source(table[:, :split], table[:, split:], table.nbytes)


@contextmanager
def _opened_parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError("parquet files need pyarrow", hint="pip install 'sublaplace[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable parquet file: {error}", hint="write it again") from None


def _parquet_columns(path: Path) -> Columns:
    with _opened_parquet(path) as file:
        names = tuple(file.schema_arrow.names)
        if len(file.schema) != len(names):
            raise UserError(f"{path} has nested columns", hint="store plain columns of numbers")
    return Columns(path, len(names), names)


def _check_parquet_types(file: Any, columns: Columns, order: list[int]) -> None:
    from pyarrow import types

    for position in order:
        kind = file.schema_arrow.field(position).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            message = f"{columns.path}: column {columns.label(position)} has type {kind}, expected numbers"
            raise UserError(message, hint="encode it as numbers, or exclude it with data.columns")
