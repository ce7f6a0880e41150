"""Tables of numbers in parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import UserError
from ...reading import COPY_AGAIN, reading
from ..labels import LabelPlaces, Labels, labelled_source
from ..sources import ReadRequest, Source, refuse_if_larger
from ..tables import Columns, pick_columns
from .values import Kind, bounded, kind_of, label_codes, refuse_nulls, targets_of, wrong_type

BAD_PARQUET = "not a readable parquet file"


def read_parquet(request: ReadRequest) -> Source:
    """A parquet table of numbers, read row group by row group; class labels may be texts."""
    path, columns = request.path, parquet_columns(request.path)
    picked = pick_columns(request, columns, parquet_columns)
    order, split = picked.inputs + picked.targets, len(picked.inputs)
    with opened_parquet(path) as file:
        kinds = [_kind(file, columns, request, position, position in picked.targets) for position in order]
        rows_of_groups, largest = _row_groups(file, path, order)
        rows, start = sum(rows_of_groups), 0
        # The table, plus the stored form of the largest row group during its conversion.
        refuse_if_larger(8 * rows * len(order) + largest, request.memory, str(path))
        table = np.empty((rows, len(order)), dtype=np.float64)
        has_labels = request.targets.takes_labels and len(picked.targets) == 1 and kinds[-1] in ("text", "truth")
        places = LabelPlaces(f"{path}: column {columns.label(order[-1])}", request.targets.classes)
        for index, height in enumerate(rows_of_groups):
            for destination, position in enumerate(order):
                is_target = destination >= split
                # By position, not by name: names may occur twice. One by one: pyarrow ignores the requested order.
                with reading(path, BAD_PARQUET), bounded(path, request.memory):
                    column = file.reader.read_row_group(index, column_indices=[position]).column(0)
                    if not is_target:
                        refuse_nulls(column, str(path), start, columns.label(position))
                    parts = [_numbers(part, places if is_target and has_labels else None) for part in column.chunks]
                    values = np.concatenate([*parts, np.empty(0)])
                if len(values) != height:
                    raise _wrong_row_count(path, height, columns.label(position), len(values))
                table[start : start + height, destination] = values
            start += height
    if not has_labels:
        return picked.source(table[:, :split], table[:, split:], table.nbytes)
    labels = Labels(table[:, split].astype(np.int64), places.names)
    return labelled_source(picked.source(table[:, :split], table[:, split:], table.nbytes), labels, request)


def _numbers(part: Any, places: LabelPlaces | None) -> np.ndarray:
    return targets_of(part) if places is None else label_codes(part, places)


def _kind(file: Any, columns: Columns, request: ReadRequest, position: int, is_target: bool) -> Kind:
    """What a column holds; one that is neither numbers nor labels is refused."""
    with reading(columns.path, BAD_PARQUET):
        found = file.schema_arrow.field(position).type
        kind = kind_of(found)
    allowed = ["number", "truth", *(["nothing"] if is_target else [])]
    if kind not in allowed and not (is_target and request.targets.takes_labels and kind == "text"):
        raise wrong_type(f"{columns.path}: column {columns.label(position)}", found)
    return kind


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
def opened_parquet(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with reading(path, BAD_PARQUET):
        file = parquet.ParquetFile(path)
    with file:
        yield file


def parquet_columns(path: Path) -> Columns:
    with opened_parquet(path) as file:
        with reading(path, BAD_PARQUET):
            names, leaves = tuple(file.schema_arrow.names), len(file.schema)
        if leaves != len(names):
            raise UserError(f"{path} has nested columns", hint="store plain columns of numbers")
    return Columns(path, len(names), names)
