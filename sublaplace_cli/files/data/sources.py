"""The records between a data file and a split, and the choice of rows."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError, suggestion
from ...sizes import format_bytes
from ..spec.columns import ArraysSpec, ColumnsSpec
from ..spec.splits import IndicesSpec, SplitSpec
from .transforms import LARGEST_VALUE, row_chunks

ArrayInputs = np.ndarray | dict[str, np.ndarray] | tuple[np.ndarray, ...]

BAD_VALUES_SHOWN = 3
MISSING = -1  # the label of a row that has none
MISSING_MARKS = {"", "na", "n/a", "nan", "null", "none", "?", "-"}
FILE_NAMES_SHOWN, NAMES_SEARCHED, LONGEST_NAME = 50, 20_000, 100


@dataclass(frozen=True)
class TargetRequest:
    """What the targets of a file may be."""

    wanted: bool = True  # False: they are not read, so they may be anything
    may_lack: bool = False
    takes_labels: bool = False  # they are classes, so they may be texts or true/false
    classes: tuple[str, ...] | None = None  # all of them, if they are known already


@dataclass(frozen=True)
class ReadRequest:
    """What a reader should read, and the memory that it may allocate, which it checks first."""

    path: Path
    columns: ColumnsSpec | None
    arrays: ArraysSpec | None
    training_path: Path | None  # only if it is another file, and the training rows are read
    memory: int
    require_allowed: Callable[[Path], object] = lambda path: None  # refuses a link that leads out of the folder
    targets: TargetRequest = TargetRequest()
    rest: tuple[str, ...] | None = None  # names of the input columns, if the training file is not read


@dataclass(frozen=True)
class Source:
    """All rows of one file; the column names are only used in messages."""

    path: Path
    inputs: ArrayInputs
    targets: np.ndarray | None
    held: int = 0  # bytes of memory used (0 for a memory map)
    input_columns: tuple[str, ...] | None = None
    target_columns: tuple[str, ...] | None = None
    first_line: int | None = None  # text files: the 1-based line of row 0
    array: Callable[[str], np.ndarray] | None = None  # any array of the file by name, if it has named arrays
    labels: tuple[str, ...] | None = None  # then targets are places in it, or MISSING
    notes: tuple[str, ...] = ()  # what the user should know

    def __len__(self) -> int:
        return len(labelled(self.inputs)[0][1])

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the input columns; none if some have no name, or the same."""
        found = self.input_columns or ()
        names = tuple(label[1:-1] for label in found if label.startswith("'"))
        return names if len(set(names)) == len(found) else ()


@dataclass(frozen=True)
class ChosenRows:
    """The chosen rows of one source; all values are finite. Without targets if every row lacks its own."""

    source: Source
    rows: np.ndarray
    raw: ArrayInputs
    targets: np.ndarray | None

    def row_label(self, position: int) -> str:
        row, first_line = int(self.rows[position]), self.source.first_line
        return f"row {row}" if first_line is None else f"line {row + first_line}"


def map_inputs(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Apply `function` to each of the inputs: one, or a tuple or dict of them."""
    if isinstance(inputs, dict):
        return {name: function(value) for name, value in inputs.items()}
    return tuple(map(function, inputs)) if isinstance(inputs, tuple) else function(inputs)


def labelled(inputs: Any) -> list[tuple[str, Any]]:
    """The inputs, each with a label for messages (empty if there is only one)."""
    if isinstance(inputs, tuple):
        return [(str(position), value) for position, value in enumerate(inputs)]
    return list(inputs.items()) if isinstance(inputs, dict) else [("", inputs)]


def suggestion_from_file(word: str, known: Iterable[str]) -> str:
    """`suggestion` for names of a file, which may be millions, each of any length."""
    names = sorted(known)
    close = difflib.get_close_matches(word[:LONGEST_NAME], names[:NAMES_SEARCHED], n=1)
    shown = dict.fromkeys(name[:LONGEST_NAME] for name in [*close, *names[:FILE_NAMES_SHOWN]])
    more = f" and {len(names) - len(shown)} more" if len(names) > FILE_NAMES_SHOWN else ""
    return suggestion(word[:LONGEST_NAME], shown) + more


def refuse_if_larger(size: int, memory: int, what: str) -> None:
    """Refuse data that does not fit, before memory is allocated."""
    if size > memory:
        message = f"{what} takes {format_bytes(size)}, but only {format_bytes(max(memory, 0))} may be used"
        raise UserError(message, hint="raise --memory, or store fewer rows, fewer columns or a smaller dtype")


def check_lengths(source: Source) -> None:
    """Every array of a source must have the same number of rows, and at least one."""
    parts = [(f"input '{label}'" if label else "the input", a) for label, a in labelled(source.inputs)]
    if source.targets is not None:
        parts.append(("the target", source.targets))
    for what, array in parts:
        if array.ndim == 0:
            raise UserError(f"{source.path}: {what} is a single number", hint="its first axis must be the rows")
        if 0 in array.shape[1:]:  # its number of rows could be anything, without a byte in the file
            raise UserError(f"{source.path}: {what} has shape {array.shape}", hint="each row needs a value")
        if len(array) != len(parts[0][1]):
            message = f"{source.path}: {parts[0][0]} has {len(parts[0][1])} rows, {what} has {len(array)}"
            raise UserError(message, hint="the first axis of each array is the rows: all need the same number")
    if len(source) == 0:
        raise UserError(f"{source.path} has no rows", hint="use a file with data")


def choose(source: Source, spec: SplitSpec, name: str, memory: int) -> ChosenRows:
    """The rows of one split, checked for NaN, infinity and values whose squares overflow."""
    rows = _row_numbers(spec, source, f"data.splits.{name}")

    def take(array: np.ndarray) -> np.ndarray:
        if np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
            return array[rows[0] : rows[0] + len(rows)]  # a view: the common case copies nothing
        what = f"{source.path}: split '{name}': the choice of {len(rows)} rows"
        refuse_if_larger(len(rows) * (array.nbytes // len(array)), memory, what)
        return array[rows]

    targets = None if source.targets is None else take(source.targets)
    missing = None if targets is None else _is_missing(targets, source)
    if missing is not None and missing.all():
        targets = None
    chosen = ChosenRows(source, rows, map_inputs(take, source.inputs), targets)
    for label, array in labelled(chosen.raw):
        _check_finite(array, f"input '{label}'" if label else "input", source.input_columns, chosen)
    if targets is not None and missing is not None:
        _refuse_missing(missing, chosen, name)
        _check_finite(targets, "target", source.target_columns, chosen)
    return chosen


def _is_missing(targets: np.ndarray, source: Source) -> np.ndarray:
    """Which rows (N,) have no target: all of its numbers are NaN."""
    if source.labels is not None:
        return targets == MISSING
    if targets.dtype.kind != "f":
        return np.zeros(len(targets), dtype=bool)
    return np.concatenate([np.isnan(part).reshape(len(part), -1).all(1) for part in row_chunks(targets)])


def _refuse_missing(missing: np.ndarray, chosen: ChosenRows, name: str) -> None:
    if not missing.any():
        return
    rows = np.flatnonzero(missing)
    listed = ", ".join(chosen.row_label(int(row)) for row in rows[:BAD_VALUES_SHOWN])
    columns = chosen.source.target_columns or ()
    more = (" …" if len(rows) > BAD_VALUES_SHOWN else "") + (f" (column {columns[0]})" if len(columns) == 1 else "")
    message = f"{chosen.source.path}: split '{name}': {len(rows)} of {len(missing)} rows have no target: {listed}{more}"
    hint = "fill them, remove these rows, or leave all targets of the split empty to predict without them"
    raise UserError(message, hint=hint)


def number_in(cell: str) -> float | None:
    """The number that a text is, or None."""
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_000 as a number; in a csv file it is text
    except ValueError:
        return None


def _row_numbers(spec: SplitSpec, source: Source, field: str) -> np.ndarray:
    """`rows` or `indices`, then a subsample of `n` in the same order."""
    rows: np.ndarray = np.arange(len(source), dtype=np.int64)
    if spec.rows is not None:
        rows = rows[slice(*(int(bound) if bound.strip() else None for bound in spec.rows.split(":")))]
    if spec.indices is not None:
        rows = _index_rows(spec.indices, source, f"{field}.indices")
    if spec.n is not None:
        if spec.n > len(rows):
            message = f"{field}.n is {spec.n}, but {len(rows)} rows are available"
            raise UserError(message, hint="n draws without replacement")
        rows = rows[np.sort(np.random.default_rng(spec.seed).choice(len(rows), spec.n, replace=False))]
    if len(rows) == 0:
        hint = "choose rows that are in the file"
        raise UserError(f"{field}: empty split: it selects none of the {len(source)} rows of {source.path}", hint=hint)
    return rows


def _index_rows(spec: IndicesSpec, source: Source, field: str) -> np.ndarray:
    if source.array is None:
        raise UserError(f"{field}: {source.path} has no named arrays", hint="use rows, or an npz or safetensors file")
    where = f"{field}: array '{spec.array}' of {source.path}"
    indices, row = source.array(spec.array), spec.row
    if indices.ndim != (1 if row is None else 2):
        expected = "1-D, or 2-D with `row` set" if row is None else "2-D if `row` is set"
        raise UserError(f"{where} has shape {indices.shape}", hint=f"an index array must be {expected}")
    if row is not None:
        if row >= len(indices):
            raise UserError(f"{where} has {len(indices)} rows, so no row {row}", hint="row numbers start at 0")
        indices = indices[row]
    if indices.dtype.kind not in "iu":
        hint = "save row numbers: for a mask numpy.flatnonzero(mask), for floats .astype('int64')"
        raise UserError(f"{where} has dtype {indices.dtype}, expected integers", hint=hint)
    outside = (indices < 0) | (indices >= len(source))
    if outside.any():
        hint = f"row numbers go from 0 to {len(source) - 1}"
        raise UserError(f"{where} holds {indices[outside][0]}, which is not a row of the file", hint=hint)
    values, counts = np.unique(indices, return_counts=True)
    if len(values) < len(indices):
        raise UserError(f"{where} holds row {values[counts > 1][0]} more than once", hint="a split uses each row once")
    return indices.astype(np.int64)


def _check_finite(values: np.ndarray, what: str, columns: tuple[str, ...] | None, chosen: ChosenRows) -> None:
    # By chunks, to avoid a copy of all values.
    if values.dtype.kind != "f":
        return
    shown: list[str] = []
    total, start, limit = 0, 0, False
    for chunk in row_chunks(values):
        bad = ~np.isfinite(chunk)
        if chunk.itemsize == 8:
            too_large = np.abs(chunk) > LARGEST_VALUE
            bad, limit = bad | too_large, limit or bool((too_large & ~bad).any())
        if bad.any():
            total += int(np.count_nonzero(bad))
            for row, *element in np.argwhere(bad)[: BAD_VALUES_SHOWN - len(shown)].tolist():
                where = f"{chosen.row_label(start + row)}{_element(element, columns)}"
                shown.append(f"{where}: {chunk[(row, *element)]}")
        start += len(chunk)
    if total:
        listed = "; ".join(shown) + (" …" if total > len(shown) else "")
        problem = f"not finite or beyond ±{LARGEST_VALUE:g}" if limit else "not finite"
        message = f"{chosen.source.path}: {total} {what} value{'s are' if total > 1 else ' is'} {problem}: {listed}"
        raise UserError(message, hint="remove or fill these cells, or choose other rows")


def _element(element: list[int], columns: tuple[str, ...] | None) -> str:
    if len(element) > 1:
        return f", element {tuple(element)}"
    return "".join(f", column {position if columns is None else columns[position]}" for position in element)
