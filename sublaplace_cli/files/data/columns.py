"""Which columns of a table are inputs and targets.

Columns have names or positions from 0. Another file is matched to the training file by column names if both have a
header, else by position. It may lack the target; `rest` still means the same columns.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...errors import UserError, suggestion
from ..spec.data import ColumnsSpec
from .sources import ReadRequest, Source


@dataclass(frozen=True)
class Columns:
    """The columns of one table."""

    path: Path
    width: int
    names: tuple[str, ...] | None = None

    def find(self, column: str | int) -> int:
        """The position of a column, from its name or position."""
        if isinstance(column, int):
            if not 0 <= column < self.width:
                hint = f"positions go from 0 to {self.width - 1}"
                raise UserError(f"{self.path}: there is no column {column}: it has {self.width} columns", hint=hint)
            return column
        if self.names is None:
            message = f"{self.path}: column '{column}' was requested, but the table has no column names"
            raise UserError(message, hint=f"add a header line, or use positions 0 to {self.width - 1}")
        positions = [position for position, name in enumerate(self.names) if name == column]
        if not positions:
            raise UserError(f"{self.path}: no column '{column}'", hint=suggestion(column, set(self.names)))
        if len(positions) > 1:
            message = f"{self.path}: {len(positions)} columns are called '{column}' (positions {positions})"
            raise UserError(message, hint="rename them, or use the position")
        return positions[0]

    def label(self, position: int) -> str:
        """The name of a column in messages."""
        return str(position) if self.names is None else f"'{self.names[position]}'"


@dataclass(frozen=True)
class Picked:
    """Positions of the input and target columns of a table; `targets` is empty if there is no target."""

    columns: Columns
    inputs: list[int]
    targets: list[int]

    def source(self, inputs: np.ndarray, targets: np.ndarray, held: int = 0, first_line: int | None = None) -> Source:
        """The source with the values of these columns."""
        names = [tuple(map(self.columns.label, positions)) for positions in (self.inputs, self.targets)]
        found = targets if self.targets else None
        return Source(self.columns.path, inputs, found, held, names[0], names[1], first_line)


def pick_columns(request: ReadRequest, table: Columns, columns_of: Callable[[Path], Columns]) -> Picked:
    """The input and target columns of `table`; `columns_of` reads those of the training file, if it is another one."""
    spec = request.columns
    if request.training_path is None:
        return _pick(spec, table)
    training = columns_of(request.training_path)
    wanted = _pick(spec, training)
    if table.names != training.names and table.names and training.names:
        return _pick_by_name(wanted, table, training)
    if table.width == training.width:
        return replace(wanted, columns=table)
    if (spec is None or spec.input == "rest") and table.width == training.width - len(wanted.targets):
        return _pick(None, table)
    message = f"{table.path} has {table.width} columns, the training file {training.path} has {training.width}"
    raise UserError(message, hint="use the same columns in both, or add a header line with their names to both")


def _pick(spec: ColumnsSpec | None, table: Columns) -> Picked:
    if spec is None:
        return Picked(table, list(range(table.width)), [])
    targets = [table.find(column) for column in _as_list(spec.target)]
    if spec.input == "rest":
        inputs = [position for position in range(table.width) if position not in targets]
    else:
        inputs = [table.find(column) for column in _as_list(spec.input)]
    for position, count in Counter(targets + inputs).items():
        if count > 1:
            hint = "each column is an input or a target, once: see data.columns"
            raise UserError(f"{table.path}: column {table.label(position)} is used more than once", hint=hint)
    if not inputs:
        raise UserError(f"{table.path}: no input columns are left besides the target", hint="see data.columns")
    return Picked(table, inputs, targets)


def _as_list(value: str | int | list[str | int] | None) -> list[str | int]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _pick_by_name(wanted: Picked, table: Columns, training: Columns) -> Picked:
    known = training.names or ()
    inputs = [table.find(known[position]) for position in wanted.inputs]
    present = [position for position in wanted.targets if known[position] in (table.names or ())]
    if present and len(present) < len(wanted.targets):
        hint = "include all of them or none"
        raise UserError(f"{table.path} has some of the target columns of {training.path}, but not all", hint=hint)
    return Picked(table, inputs, [table.find(known[position]) for position in present])
