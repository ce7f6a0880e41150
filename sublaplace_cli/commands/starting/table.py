"""A csv, parquet or Arrow table → its columns: which is the target, which are inputs, which to leave out."""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...files.data.columnar.arrow_files import batches, open_table, split_folder
from ...files.data.columnar.values import kind_of
from ...files.data.csv_rows import LONGEST_LINE
from ...files.data.sources import MISSING_MARKS
from ...files.reading import bounded_memory, reading
from .inference import Inference

SURVEYED_ROWS = 5000
MOST_CELLS = 5_000_000
MOST_COLUMNS = 100_000
TARGET_COLUMNS = ("target", "targets", "label", "labels", "y", "class", "outcome", "response", "diagnosis", "species")
INDEX_NAMES = ("id", "index", "idx", "row", "row_id", "unnamed: 0", "#")
ID_ENDINGS = ("_id", " id", "-id")
COUNT_BYTES = 2**20
OTHER_SEPARATORS = (";", "\t", "|")
LONG_REASONS = {
    "text": "it is text",
    "constant": "all rows have the same value",
    "index": "it counts the rows",
    "identifier": "its name, and another number in every row",
}


@dataclass(frozen=True)
class TableColumn:
    """The first cells of a column, as text."""

    name: str | int  # its position if it has no name of its own
    cells: tuple[str, ...]
    is_unnamed: bool = False  # though others have names: pandas writes an index so

    @property
    def is_called_index(self) -> bool:
        return self.is_unnamed or str(self.name).strip().lower() in INDEX_NAMES

    @cached_property
    def numbers(self) -> np.ndarray | None:
        try:
            values = np.array([float(cell) for cell in self.cells])
        except ValueError:
            return None
        return values if np.isfinite(values).all() else None

    @cached_property
    def distinct(self) -> list[str]:
        return sorted(set(self.cells))

    @property
    def n_missing(self) -> int:
        return sum(cell.strip().lower() in MISSING_MARKS for cell in self.cells)

    def is_index(self, position: int) -> bool:
        """Consecutive whole numbers, in the first column or with a telling name."""
        if self.numbers is None or len(self.numbers) < 3 or not (np.diff(self.numbers) == 1).all():
            return False
        return position == 0 or self.is_called_index

    @property
    def is_identifier(self) -> bool:
        """Whole numbers that are all different, under a telling name."""
        is_called = self.is_called_index or str(self.name).strip().lower().endswith(ID_ENDINGS)
        if self.numbers is None or not is_called:
            return False
        return len(self.distinct) == len(self.cells) and bool((self.numbers == np.round(self.numbers)).all())


@dataclass(frozen=True)
class Table:
    path: Path
    columns: tuple[TableColumn, ...]
    n_rows: int
    has_header: bool
    lists: tuple[str, ...] = ()  # further columns, whose cells are lists of numbers


def read_csv_table(path: Path) -> Table:
    with reading(path, "not a readable csv file"), path.open(encoding="utf-8-sig", newline="") as handle:
        cells = csv.reader(_short_lines(handle))
        first = next(cells, [])
        if not 0 < len(first) <= MOST_COLUMNS:
            raise ValueError(f"its first line has {len(first)} cells")
        if len(first) == 1 and (other := next((sign for sign in OTHER_SEPARATORS if sign in first[0]), None)):
            hint = f"write it again with commas: pandas.read_csv(path, sep={other!r}).to_csv(path, index=False)"
            raise UserError(f"{path}: its cells are separated by {other!r}, expected commas", hint=hint)
        lines = list(islice(cells, min(SURVEYED_ROWS, MOST_CELLS // len(first))))
        is_whole = next(cells, None) is None
    if any(len(line) != len(first) for line in lines):
        number = next(i for i, line in enumerate(lines) if len(line) != len(first)) + 2
        raise UserError(f"{path}: line {number} has another number of cells than the first", hint="repair the file")
    names = [cell.strip() for cell in first]
    has_header = any(_is_text(cell) for cell in names)
    rows = lines if has_header else [first, *lines]
    if not rows:
        raise UserError(f"{path} has a header line but no rows", hint="add data lines")
    own = {name for name, count in Counter(names).items() if has_header and name and count == 1}
    columns = (
        TableColumn(name if name in own else position, tuple(map(str.strip, column)), has_header and not name)
        for position, (name, column) in enumerate(zip(names, zip(*rows, strict=True), strict=True))
    )
    n_rows = len(rows) if is_whole else _count_lines(path) - has_header
    return Table(path, tuple(columns), n_rows, has_header)


def _short_lines(handle: Any) -> Iterator[str]:
    while line := handle.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"a line is longer than {LONGEST_LINE} characters")
        yield line


def _is_text(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.lower() not in MISSING_MARKS
    return False


def _count_lines(path: Path) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as handle:
        while part := handle.read(COUNT_BYTES):
            count, last = count + part.count(b"\n"), part[-1:]
    return count + (last != b"\n")


def read_parquet_table(path: Path, memory: int) -> Table:
    from pyarrow import parquet

    with reading(path, "not a readable parquet file"), parquet.ParquetFile(path) as file, bounded_memory(memory):
        names, n_rows = list(file.schema_arrow.names), file.metadata.num_rows
        batch = next(file.iter_batches(batch_size=SURVEYED_ROWS), None)
        if batch is None or len(file.schema) != len(names):
            raise ValueError("it has no rows, or nested columns")
        cells = [["" if value is None else str(value) for value in column.to_pylist()] for column in batch.columns]
    return Table(path, tuple(TableColumn(n, tuple(c)) for n, c in zip(names, cells, strict=True)), n_rows, True)


def read_arrow_table(path: Path, memory: int) -> Table:
    """The first rows of an Arrow file, or of a saved data set (of its training split, if it has several)."""
    source = open_table(split_folder(path, "train"), memory)
    kinds = [kind_of(kind) for kind in source.types]
    plain = [position for position, kind in enumerate(kinds) if kind not in ("list", "other")]
    if not plain or len(plain) > MOST_COLUMNS:
        raise UserError(f"{path}: it has {len(plain)} columns of numbers or texts", hint="write the spec by hand")
    cells: list[list[str]] = [[] for _ in plain]
    n_rows = 0
    for parts in batches(source, plain, memory):
        room = max(0, min(SURVEYED_ROWS, MOST_CELLS // len(plain)) - n_rows)
        with reading(path, "not a readable Arrow file"), bounded_memory(memory):
            for column, part in zip(cells, parts, strict=True):
                column += ["" if value is None else str(value) for value in part.slice(0, room).to_pylist()]
        n_rows += len(parts[0])
    if n_rows == 0:
        raise UserError(f"{path} has no rows", hint="use a file with data")
    columns = tuple(TableColumn(source.names[p], tuple(own)) for p, own in zip(plain, cells, strict=True))
    lists = tuple(name for name, kind in zip(source.names, kinds, strict=True) if kind == "list")
    return Table(path, columns, n_rows, True, lists)


@dataclass(frozen=True)
class ChosenColumns:
    target: TableColumn | None
    inputs: tuple[TableColumn, ...]
    excluded: tuple[TableColumn, ...]
    text: TableColumn | None  # the one input of a network that takes text
    findings: tuple[Inference, ...]


def choose_columns(table: Table, takes: str, n_inputs: int | None) -> ChosenColumns:
    """The target by its name or as the last column; of the rest, what tells rows apart and fits the network."""
    reasons = dict(_reasons_against(table))
    usable = [column for column in table.columns if column.name not in reasons]
    text = _text_column(table) if takes == "text" else None
    _refuse_useless_target(table)
    target, why = _target([c for c in table.columns if c is not text and reasons.get(c.name) in (None, "text")])
    findings = []
    if target is not None:
        certainty = "sure" if why == "its name" else "likely"
        findings.append(Inference("target", str(target.name), certainty, why))  # type: ignore[arg-type]
    if text is not None:
        findings.append(Inference("text", str(text.name), "likely", "the column with the longest texts"))
        return ChosenColumns(target, (), (), text, tuple(findings))
    inputs = [column for column in usable if column is not target]
    inputs, finding = _fitting_inputs(table, inputs, target, reasons, n_inputs)
    excluded = [column for column in table.columns if column not in inputs and column is not target]
    findings.append(finding)
    for column in excluded:
        findings.append(Inference("left out", str(column.name), "likely", _long_reason(reasons[column.name])))
    return ChosenColumns(target, tuple(inputs), tuple(excluded), None, tuple(findings))


def _long_reason(reason: str) -> str:
    return LONG_REASONS.get(reason, reason)


def _reasons_against(table: Table) -> Iterator[tuple[str | int, str]]:
    for position, column in enumerate(table.columns):
        if column.n_missing:
            yield column.name, f"{column.n_missing} of its first {len(column.cells)} values are missing"
        elif len(column.distinct) == 1 and len(column.cells) > 1:
            yield column.name, "constant"
        elif column.numbers is None:
            yield column.name, "text"
        elif column.is_index(position):
            yield column.name, "index"
        elif column.is_identifier:
            yield column.name, "identifier"


def _refuse_useless_target(table: Table) -> None:
    """Another column in its place would be a guess against the names."""
    for column in table.columns:
        if str(column.name).strip().lower() not in TARGET_COLUMNS:
            continue
        if column.n_missing:
            found = f"{column.n_missing} of the first {len(column.cells)} values of '{column.name}' are missing"
            raise UserError(f"{table.path}: {found}", hint="fill them, or remove these rows")
        if len(column.distinct) == 1 and len(column.cells) > 1:
            found = f"all of the first {len(column.cells)} values of '{column.name}' are the same"
            raise UserError(f"{table.path}: {found}", hint="use rows of all classes, in mixed order")


def _target(candidates: Sequence[TableColumn]) -> tuple[TableColumn | None, str]:
    for name in TARGET_COLUMNS:
        for column in candidates:
            if str(column.name).strip().lower() == name:
                return column, "its name"
    return (candidates[-1], "the last column") if candidates else (None, "")


def _text_column(table: Table) -> TableColumn | None:
    texts = [column for column in table.columns if column.numbers is None and not column.n_missing]
    return max(texts, key=lambda column: sum(map(len, column.cells)), default=None)


def _fitting_inputs(
    table: Table,
    inputs: list[TableColumn],
    target: TableColumn | None,
    reasons: dict[str | int, str],
    wanted: int | None,
) -> tuple[list[TableColumn], Inference]:
    """If the network takes another number of columns: with the constant ones and the index, where that fits."""
    if wanted is None:
        return inputs, Inference(
            "inputs", f"{len(inputs)} columns", "likely", "all columns of numbers besides the target"
        )
    numbering = ("index", "identifier")
    for also in ((), ("constant",), numbering, ("constant", *numbering)):
        some = [c for c in table.columns if c is not target and (c in inputs or reasons.get(c.name) in also)]
        if len(some) == wanted:
            return some, Inference("inputs", f"{wanted} columns", "sure", "as many as the network takes")
    reason = f"the network takes {wanted}; set columns: input or exclude"
    return inputs, Inference("inputs", f"{len(inputs)} columns", "check", reason)
