"""Tables of numbers in parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ..reading import COPY_AGAIN, bounded_memory, reading
from .sources import ReadRequest, Source, refuse_if_larger
from .tables import Columns, pick_columns

BAD_PARQUET = "not a readable parquet file"


def read_parquet(request: ReadRequest) -> Source:
    """A parquet table of numbers, read row group by row group."""
    path, columns = request.path, _parquet_columns(request.path)
    picked = pick_columns(request, columns, _parquet_columns)
    order, split = picked.inputs + picked.targets, len(picked.inputs)
    with _opened_parquet(path) as file:
        _require_numbers(file, columns, order)
        rows_of_groups, largest = _row_groups(file, path, order)
        rows, start = sum(rows_of_groups), 0
        # The table, plus the stored form of the largest row group during its conversion.
        refuse_if_larger(8 * rows * len(order) + largest, request.memory, str(path))
        table = np.empty((rows, len(order)), dtype=np.float64)
        for index, height in enumerate(rows_of_groups):
            for destination, position in enumerate(order):
                # By position, not by name: names may occur twice. One by one: pyarrow ignores the requested order.
                with reading(path, BAD_PARQUET), _bounded(request):
                    column = file.reader.read_row_group(index, column_indices=[position]).column(0)
                    first_null = int(np.argmax(column.is_null().to_numpy())) if column.null_count else None
                    values = column.to_numpy()
                if first_null is not None:
                    message = f"{path}: row {start + first_null}, column {columns.label(position)} is null"
                    raise UserError(message, hint="fill it or remove the row")
                if len(values) != height:
                    raise _wrong_row_count(path, height, columns.label(position), len(values))
                table[start : start + height, destination] = values
            start += height
    return picked.source(table[:, :split], table[:, split:], table.nbytes)


@contextmanager
def _bounded(request: ReadRequest) -> Iterator[None]:
    """A page may expand to more than the file claims for it."""
    try:
        with bounded_memory(request.memory):
            yield
    except MemoryError as error:
        message = f"{request.path}: a page of it expands to more than the allowed memory"
        raise UserError(message, hint="raise --memory if you trust the file") from error


def _require_numbers(file: Any, columns: Columns, order: list[int]) -> None:
    from pyarrow import types

    for position in order:
        with reading(columns.path, BAD_PARQUET):
            kind = file.schema_arrow.field(position).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            message = f"{columns.path}: column {columns.label(position)} has type {kind}, expected numbers"
            raise UserError(message, hint="encode it as numbers, or exclude it with data.columns")


def _row_groups(file: Any, path: Path, order: list[int]) -> tuple[list[int], int]:
    """The rows of each row group and the size of the largest one; the counts of the file must agree."""
    with reading(path, BAD_PARQUET):
        rows, groups = file.metadata.num_rows, range(file.metadata.num_row_groups)
        facts = [file.metadata.row_group(index) for index in groups]
        heights = [group.num_rows for group in facts]
        values = [group.column(position).num_values for group in facts for position in order]
        largest = max((group.total_byte_size for group in facts), default=0)
    if min(heights, default=0) < 0 or sum(heights) != rows:
        raise _wrong_row_count(path, rows, "the sum of its row groups", sum(heights))
    for position, (found, expected) in enumerate(zip(values, (h for h in heights for _ in order), strict=True)):
        if found != expected:
            raise _wrong_row_count(path, expected, f"column {order[position % len(order)]}", found)
    return heights, max(largest, 0)


def _wrong_row_count(path: Path, expected: int, what: str, found: int) -> UserError:
    return UserError(f"{path}: {BAD_PARQUET}: it declares {expected} rows, but {what} has {found}", hint=COPY_AGAIN)


@contextmanager
def _opened_parquet(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with reading(path, BAD_PARQUET):
        file = parquet.ParquetFile(path)
    with file:
        yield file


def _parquet_columns(path: Path) -> Columns:
    with _opened_parquet(path) as file:
        with reading(path, BAD_PARQUET):
            names, leaves = tuple(file.schema_arrow.names), len(file.schema)
        if leaves != len(names):
            raise UserError(f"{path} has nested columns", hint="store plain columns of numbers")
    return Columns(path, len(names), names)
