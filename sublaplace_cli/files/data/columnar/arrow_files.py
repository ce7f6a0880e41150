"""Arrow data on disk: files and streams of Arrow IPC, and folders that the datasets package of Hugging Face saved.

A saved data set has its tables as streams beside `state.json`, which lists them; one of several splits has a folder for
each. The package itself is never needed. From 14.0.1 on, pyarrow runs no code that a file names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import UserError
from ....json_files import read_json
from ...reading import reading
from ..sources import suggestion_from_file
from .values import bounded

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
FILE_MAGIC, OLD_FEATHER_MAGIC = b"ARROW1", b"FEA1"
BAD_ARROW = "not a readable Arrow file"


@dataclass(frozen=True)
class ArrowTable:
    """Tables of the same columns, one below the other."""

    path: Path
    files: tuple[Path, ...]
    names: tuple[str, ...]
    types: tuple[Any, ...]


def is_saved_dataset(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in (STATE, SPLITS))


def split_folder(path: Path, split: str) -> Path:
    """The folder of a split, if this one holds several; else the path itself."""
    if not (path / SPLITS).is_file():
        return path
    found = saved_splits(path)
    if split not in found:
        hint = f"name the folder with data.splits.{split}.path; {suggestion_from_file(split, found)}"
        raise UserError(f"{path} holds several splits, but none is called '{split}'", hint=hint)
    return path / split


def saved_splits(path: Path) -> list[str]:
    """The splits of a folder, by the folders in it."""
    return sorted(entry.name for entry in path.iterdir() if (entry / STATE).is_file())


def arrow_files(path: Path) -> list[Path]:
    """The files with the tables: of a saved data set as its state lists them, else the file itself."""
    if not path.is_dir():
        return [path]
    if not (path / STATE).is_file() or not (path / INFO).is_file():
        hint = f"expected a file, or a folder of save_to_disk, which has {STATE} and {INFO}"
        if (path / SPLITS).is_file():
            hint = f"it holds several splits: use one of its folders ({', '.join(saved_splits(path)[:10])})"
        raise UserError(f"{path} is not a saved data set", hint=hint)
    with reading(path / STATE, "not a readable state of a data set"):
        state = read_json(path / STATE)
        if not isinstance(state, dict) or not isinstance(state.get("_data_files"), list):
            raise ValueError("it has no list '_data_files'")
        names = [entry["filename"] for entry in state["_data_files"]]
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError("'_data_files' names no file")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        hint = "save it with its rows in order: dataset.flatten_indices().save_to_disk(folder)"
        raise UserError(f"{path}: its rows are a selection from other rows (_indices_files)", hint=hint)
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise UserError(f"{path / STATE}: the file {name[:100]!r} leads out of the folder")
        if not (path / name).is_file():
            raise UserError(f"{path / STATE}: the file {name[:100]!r} is missing", hint="copy the folder again")
    return [path / name for name in names]


def open_table(path: Path, memory: int) -> ArrowTable:
    """The columns of all files, which must be the same."""
    files = arrow_files(path)
    schemas = [_schema(file, memory) for file in files]
    for file, schema in zip(files, schemas, strict=True):
        if schema != schemas[0]:
            raise UserError(f"{file} has other columns than {files[0]}", hint="save the data set again")
    names, types = zip(*schemas[0], strict=True) if schemas[0] else ((), ())
    if not names:
        raise UserError(f"{files[0]} has no columns", hint="use a file with data")
    return ArrowTable(path, tuple(files), names, types)


def _schema(file: Path, memory: int) -> list[tuple[str, Any]]:
    with _opened(file, memory, None) as reader, reading(file, BAD_ARROW):
        return [(field.name, field.type) for field in reader.schema]


def batches(table: ArrowTable, positions: list[int], memory: int) -> Iterator[list[Any]]:
    """The columns at these positions, part by part; what their buffers claim has been checked."""
    fields = sorted(set(positions))
    at = [fields.index(position) for position in positions]
    for file in table.files:
        with _opened(file, memory, fields) as reader:
            number = 0
            while True:
                with reading(file, BAD_ARROW), bounded(file, memory):
                    batch = _batch(reader, number)
                    columns = [] if batch is None else [batch.column(i) for i in at]
                    for column in columns:
                        column.validate(full=True)
                if batch is None:
                    break
                yield columns
                number += 1


def _batch(reader: Any, number: int) -> Any:
    """The next batch; None after the last one."""
    if hasattr(reader, "num_record_batches"):
        return reader.get_batch(number) if number < reader.num_record_batches else None
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None


@contextmanager
def _opened(file: Path, memory: int, fields: list[int] | None) -> Iterator[Any]:
    """A reader of a file or stream; uncompressed numbers stay in the file until they are copied."""
    import pyarrow
    from pyarrow import ipc

    with reading(file, BAD_ARROW), bounded(file, memory):
        with file.open("rb") as handle:
            start = handle.read(8)
        if start.startswith(OLD_FEATHER_MAGIC):
            raise ValueError("it is Feather of version 1; write it again with pyarrow.feather.write_feather")
        options = ipc.IpcReadOptions(use_threads=False, included_fields=fields)
        source = pyarrow.memory_map(str(file))
    with source:
        with reading(file, BAD_ARROW), bounded(file, memory):
            is_file = start.startswith(FILE_MAGIC)
            reader = (ipc.open_file if is_file else ipc.open_stream)(source, options=options)
        yield reader
