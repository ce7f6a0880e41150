"""A table with a column of texts → token ids and targets, read and encoded a batch at a time.

In csv files, a quoted text may have line breaks. Columns have names, and then a header line, or positions from 0.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from ...errors import UserError
from ..reading import reading
from ..spec.columns import TextSpec
from .columnar.arrow_files import BAD_ARROW, ArrowTable, batches, open_table
from .columnar.parquet import BAD_PARQUET, opened_parquet, parquet_columns
from .columnar.values import bounded, kind_of, wrong_type
from .csv_rows import csv_lines
from .labels import LabelPlaces, Labels, labelled_source
from .sources import MISSING_MARKS, ReadRequest, Source, number_in, refuse_if_larger
from .tables import Columns, as_list
from .tokenizing import Tokenizer

ROWS_AT_ONCE = 512
ROOMY, ROUNDED_TO = 0.75, 8  # a max_length is proposed if the longest text, rounded up, is shorter than this share


@dataclass(frozen=True)
class TextColumns:
    """Positions of the columns with the texts, with their pairs, and with the targets."""

    columns: Columns
    texts: list[int]
    targets: list[int]


@dataclass(frozen=True)
class TextBatch:
    """The cells of some rows, by column."""

    texts: list[list[str]]
    targets: list[list[str]]

    def __len__(self) -> int:
        return len(self.texts[0])


@dataclass
class RowsSoFar:
    """What has been read of a file."""

    path: object
    is_one_line_each: bool = True  # only then do rows have line numbers
    rows: int = 0
    held: int = 0
    arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)
    targets: list[np.ndarray] = field(default_factory=list)
    lengths: list[np.ndarray] = field(default_factory=list)


Batches = tuple[TextColumns, Iterator[TextBatch]]


def read_texts(request: ReadRequest, format_name: str, spec: TextSpec, tokenizer: Tokenizer) -> Source:
    """All rows of a table as token ids."""
    progress = RowsSoFar(request.path)
    open_batches = {"csv": _csv_batches, "parquet": _parquet_batches, "arrow": _arrow_batches}[format_name]
    picked, rows = open_batches(request, spec, progress)
    places = None
    if request.targets.takes_labels and len(picked.targets) == 1:
        where = f"{request.path}: column {picked.columns.label(picked.targets[0])}"
        places = LabelPlaces(where, request.targets.classes)
    for batch in rows:
        _refuse_empty(batch, picked, progress)
        found = _numbers(batch, picked, progress) if places is None else _codes(batch, places)
        encoded = tokenizer(batch.texts[0], batch.texts[1] if len(batch.texts) > 1 else None)
        progress.held += sum(array.nbytes for array in (*encoded.arrays.values(), found))
        refuse_if_larger(2 * progress.held, request.memory, f"{request.path}: the tokens of its texts")
        for name, array in encoded.arrays.items():
            progress.arrays.setdefault(name, []).append(array)
        progress.targets.append(found)
        progress.lengths.append(encoded.lengths)
        progress.rows += len(batch)
    if not progress.rows:
        raise UserError(f"{request.path} has no rows", hint="add rows below the header line")
    inputs = {name: np.concatenate(parts) for name, parts in progress.arrays.items()}
    targets = np.concatenate(progress.targets) if picked.targets else None
    first_line = (1 if picked.columns.names is None else 2) if progress.is_one_line_each else None
    labels = tuple(map(picked.columns.label, picked.targets))
    notes = _notes(request, np.concatenate(progress.lengths), tokenizer.max_length)
    source = Source(request.path, inputs, targets, progress.held, None, labels, first_line, notes=notes)
    if places is None or targets is None:
        return source
    return labelled_source(source, Labels(targets, places.names), request)


def _codes(batch: TextBatch, places: LabelPlaces) -> np.ndarray:
    return np.array([places.of(cell) for cell in batch.targets[0]], dtype=np.int64)


def _numbers(batch: TextBatch, picked: TextColumns, progress: RowsSoFar) -> np.ndarray:
    """Targets (rows, targets), NaN where one is missing."""
    numbers = np.empty((len(batch), len(picked.targets)))
    for i, (position, cells) in enumerate(zip(picked.targets, batch.targets, strict=True)):
        for row, cell in enumerate(cells):
            value = np.nan if cell.strip().lower() in MISSING_MARKS else number_in(cell)
            if value is None:
                where = _where(picked, progress.rows + row, position, progress)
                hint = "encode it as a number; texts are class labels, and only classifications have them"
                raise UserError(f"{where} is {cell[:40]!a}, expected a number", hint=hint)
            numbers[row, i] = value
    return numbers


def _notes(request: ReadRequest, lengths: np.ndarray, max_length: int) -> tuple[str, ...]:
    cut, longest = int((lengths > max_length).sum()), int(lengths.max())
    if cut:
        return (f"{request.path.name}: {cut} of {len(lengths)} texts have more than {max_length} tokens and were cut",)
    if -(-longest // ROUNDED_TO) * ROUNDED_TO <= ROOMY * max_length:
        found = f"{request.path.name}: the longest text has {longest} tokens"
        return (f"{found}; data.text.max_length: {longest} instead of {max_length} is faster",)
    return ()


def _picked(request: ReadRequest, spec: TextSpec, columns: Columns) -> TextColumns:
    wanted = [] if request.columns is None or not request.targets.wanted else as_list(request.columns.target)
    names = set(columns.names or ())
    if request.targets.may_lack and not any(target in names for target in wanted if isinstance(target, str)):
        wanted = [target for target in wanted if isinstance(target, int) and target < columns.width]
    texts = [columns.find(column) for column in (spec.column, spec.pair) if column is not None]
    targets = [columns.find(column) for column in wanted]
    if len({*texts, *targets}) < len(texts) + len(targets):
        hint = "text, pair and target are different columns"
        raise UserError(f"{request.path}: a column is used more than once", hint=hint)
    return TextColumns(columns, texts, targets)


def _where(picked: TextColumns, row: int, position: int, progress: RowsSoFar) -> str:
    line = row + (1 if picked.columns.names is None else 2)
    place = f"line {line}" if progress.is_one_line_each else f"row {row}"
    return f"{progress.path}: {place}, column {picked.columns.label(position)}"


def _refuse_empty(batch: TextBatch, picked: TextColumns, progress: RowsSoFar) -> None:
    for position, texts in zip(picked.texts, batch.texts, strict=True):
        for number, text in enumerate(texts):
            if not text.strip():
                where = _where(picked, progress.rows + number, position, progress)
                raise UserError(f"{where} is empty, expected a text", hint="fill it or remove the row")


def _csv_batches(request: ReadRequest, spec: TextSpec, progress: RowsSoFar) -> Batches:
    rows = _csv_rows(request, progress)
    first = next(rows, [])
    if not any(first):
        raise UserError(f"{request.path} is empty", hint="expected a header line and rows")
    target = None if request.columns is None else request.columns.target
    has_header = any(isinstance(column, str) for column in (spec.column, spec.pair, *as_list(target)))
    names = tuple(cell.strip() for cell in first) if has_header else None
    picked = _picked(request, spec, Columns(request.path, len(first), names))
    return picked, _as_batches(picked, rows, [] if has_header else [first])


def _as_batches(picked: TextColumns, rows: Iterator[list[str]], first: list[list[str]]) -> Iterator[TextBatch]:
    while chunk := [*first, *islice(rows, ROWS_AT_ONCE - len(first))]:
        first = []
        texts, targets = ([[row[i] for row in chunk] for i in own] for own in (picked.texts, picked.targets))
        yield TextBatch(texts, targets)


def _csv_rows(request: ReadRequest, progress: RowsSoFar) -> Iterator[list[str]]:
    path, width, line = request.path, 0, 0
    with path.open(encoding="utf-8-sig") as handle:
        rows = csv.reader((text for _, text in csv_lines(handle, path)), strict=True)
        while True:
            try:
                row = next(rows, None)
            except csv.Error as error:
                hint = "expected comma-separated cells; a text with commas, quotes or line breaks needs quotes"
                raise UserError(f"{path}: line {rows.line_num}: {error}", hint=hint) from None
            if row is None:
                return
            width = width or len(row)
            if len(row) != width:
                hint = "cells are separated by commas; a text with commas needs quotes"
                message = f"{path}: line {rows.line_num} has {len(row)} cells, the first line has {width}"
                raise UserError(message, hint=hint)
            progress.is_one_line_each = progress.is_one_line_each and rows.line_num == line + 1
            line = rows.line_num
            yield row


def _parquet_batches(request: ReadRequest, spec: TextSpec, progress: RowsSoFar) -> Batches:
    progress.is_one_line_each = False
    picked = _picked(request, spec, parquet_columns(request.path))
    return picked, _of_parquet(request, picked)


def _of_parquet(request: ReadRequest, picked: TextColumns) -> Iterator[TextBatch]:
    path, order = request.path, [*picked.texts, *picked.targets]
    with opened_parquet(path) as file:
        for position in picked.texts:
            _require_texts(picked, position, file.schema_arrow.field(position).type)
        for group in range(file.reader.num_row_groups):
            columns = []
            for position in order:  # one by one and by position: names may occur twice
                with reading(path, BAD_PARQUET), bounded(path, request.memory):
                    columns.append(file.reader.read_row_group(group, column_indices=[position]).column(0))
            yield from _of_columns(request, picked, columns, BAD_PARQUET)


def _arrow_batches(request: ReadRequest, spec: TextSpec, progress: RowsSoFar) -> Batches:
    progress.is_one_line_each = False
    table = open_table(request.path, request.memory)
    for file in table.files:
        request.require_allowed(file)
    picked = _picked(request, spec, Columns(table.path, len(table.names), table.names))
    for position in picked.texts:
        _require_texts(picked, position, table.types[position])
    for position in picked.targets:
        if kind_of(table.types[position]) in ("list", "other"):
            raise wrong_type(_column(picked, position), table.types[position], "a number or a label")
    return picked, _of_arrow(request, picked, table)


def _of_arrow(request: ReadRequest, picked: TextColumns, table: ArrowTable) -> Iterator[TextBatch]:
    for columns in batches(table, [*picked.texts, *picked.targets], request.memory):
        yield from _of_columns(request, picked, columns, BAD_ARROW)


def _of_columns(request: ReadRequest, picked: TextColumns, columns: list[Any], problem: str) -> Iterator[TextBatch]:
    """The cells of pyarrow's columns, some rows at a time."""
    for start in range(0, len(columns[0]), ROWS_AT_ONCE):
        with reading(request.path, problem), bounded(request.path, request.memory):
            cells = [column.slice(start, ROWS_AT_ONCE).to_pylist() for column in columns]
        known = [["" if cell is None else str(cell) for cell in own] for own in cells]
        yield TextBatch(known[: len(picked.texts)], known[len(picked.texts) :])


def _require_texts(picked: TextColumns, position: int, kind: Any) -> None:
    if kind_of(kind) != "text":
        raise UserError(f"{_column(picked, position)} has type {kind}, expected texts", hint="name the column of texts")


def _column(picked: TextColumns, position: int) -> str:
    return f"{picked.columns.path}: column {picked.columns.label(position)}"
