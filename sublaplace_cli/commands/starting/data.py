"""A data file → the `data` section of the spec, and rows to try the network on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ... import catalog
from ...errors import UserError
from ...files.data.datasets import require_extra
from . import table as tables
from .arrays import ChosenArrays, choose_arrays
from .checkpoint import NetworkGuess
from .inference import Inference
from .task import class_numbers, guess_task, rows_in_order

DATA_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".npz": "npz", ".safetensors": "safetensors"}
SPREAD = 10.0  # columns are standardised if their scales differ by more, or their means exceed their spread by more
TRAIN_SHARE = 0.8


@dataclass(frozen=True)
class DataGuess:
    """The `data` section, in the order of its keys."""

    section: dict[str, Any]
    task: str
    findings: tuple[Inference, ...]
    X: np.ndarray | None  # training rows as a table of numbers, if it is one
    y: np.ndarray | None
    n_rows: int
    split_is_guessed: bool

    @property
    def scales_differ(self) -> bool:
        if self.X is None or self.X.ndim != 2:
            return False
        std = self.X.std(0)
        std = std[std > 0]
        far = np.abs(self.X.mean(0)).max(initial=0.0) > SPREAD * std.max(initial=0.0)
        return bool(len(std) and (std.max() > SPREAD * std.min() or far))


def guess_data(path: Path, shown: str, network: NetworkGuess, task: str | None, memory: int) -> DataGuess:
    """`shown` is the path as the spec names it."""
    name = DATA_SUFFIXES.get(path.suffix.lower())
    if name is None or not path.is_file():
        found = "is not a file" if not path.is_file() else f"ends in {path.suffix!a}"
        raise UserError(f"{path}: {found}, expected data ({', '.join(DATA_SUFFIXES)})", hint="write the spec by hand")
    require_extra(name)
    section: dict[str, Any] = {"format": name, "path": shown}
    if name in ("csv", "parquet"):
        return _of_table(path, section, network, task, memory)
    return _of_arrays(choose_arrays(path, name, memory), section, network, task)


def _of_table(path: Path, section: dict[str, Any], network: NetworkGuess, task: str | None, memory: int) -> DataGuess:
    is_csv = section["format"] == "csv"
    table = tables.read_csv_table(path) if is_csv else tables.read_parquet_table(path, memory)
    chosen = tables.choose_columns(table, network.takes, network.n_inputs)
    target = chosen.target
    if target is None:
        raise UserError(f"{path}: no column can be the target", hint="it needs a column without missing values")
    finding = guess_task(target.cells, network.n_outputs, task)
    if chosen.text is not None:
        section["text"] = {"column": chosen.text.name, "max_length": 128}
        section["columns"] = {"target": target.name}
    else:
        columns: dict[str, Any] = {"target": target.name, "input": "rest"}
        section["columns"] = columns | (
            {"exclude": [column.name for column in chosen.excluded]} if chosen.excluded else {}
        )
    X = np.array([column.numbers for column in chosen.inputs]).T if chosen.inputs else None
    y = target.numbers if not catalog.TASKS[finding.value].labels else class_numbers(target.cells)
    other = _sibling(path)
    if other is not None:
        section["splits"] = {"train": {}, "test": {"path": str(Path(section["path"]).with_name(other.name))}}
        split = Inference(
            "split", f"test rows from {other.name}", "likely", "the file beside it has its name with 'test'"
        )
    else:
        section["splits"], split = _row_split(table.n_rows, target.cells)
    findings = (*chosen.findings, finding, split)
    return DataGuess(section, finding.value, findings, X, y, table.n_rows, other is None)


def _of_arrays(chosen: ChosenArrays, section: dict[str, Any], network: NetworkGuess, task: str | None) -> DataGuess:
    y, cells = chosen.y, [] if chosen.y is None else [str(value) for value in chosen.y.reshape(len(chosen.y), -1)[:, 0]]
    finding = guess_task(cells[: tables.SURVEYED_ROWS], network.n_outputs, task)
    pairs = {
        split: {"input": own} | ({"target": chosen.targets[split]} if split in chosen.targets else {})
        for split, own in chosen.inputs.items()
    }
    if {"train", "test"} <= set(pairs):
        pairs.pop("", None)
        section["splits"] = {split: {"arrays": own} for split, own in pairs.items()}
        split = Inference("split", ", ".join(pairs), "sure", "names of the arrays")
    else:
        section["arrays"] = pairs.get("") or next(iter(pairs.values()))
        section["splits"], split = _row_split(chosen.n_rows, cells)
    if catalog.TASKS[finding.value].labels and y is not None:
        y = class_numbers(cells)
    X, findings = chosen.X, (*chosen.findings, finding, split)
    if X is not None and X.ndim == 4 and X.dtype == np.uint8:
        last = X.shape[-1] in (1, 3)
        section["transforms"] = [{"scale": 1 / 255}, *([{"permute": [2, 0, 1]}] if last else [])]
        value = "divide by 255" + (", channels first" if last else "")
        reason = "images of bytes; add the {normalise: …} of your training"
        return DataGuess(
            section,
            finding.value,
            (*findings, Inference("transforms", value, "check", reason)),
            *(None, None, chosen.n_rows, "arrays" in section),
        )
    X = X.astype(np.float64) if X is not None and X.ndim == 2 and X.dtype.kind in "fiub" else None
    return DataGuess(section, finding.value, findings, X, y, chosen.n_rows, "arrays" in section)


def _sibling(path: Path) -> Path | None:
    """test.csv beside train.csv."""
    other = path.with_name(path.name.replace("train", "test"))
    return other if "train" in path.name and other.is_file() else None


def _row_split(n_rows: int, cells: Any) -> tuple[dict[str, Any], Inference]:
    if n_rows < 2:
        raise UserError("the data have one row", hint="training and test rows are needed")
    if rows_in_order(cells):
        splits = {"train": {"rows": "0::2"}, "test": {"rows": "1::2"}}
        reason = "the rows are in the order of their targets; better: the split of your training"
        return splits, Inference("split", "every second row", "check", reason)
    cut = max(1, min(n_rows - 1, round(TRAIN_SHARE * n_rows)))
    splits = {"train": {"rows": f"0:{cut}"}, "test": {"rows": f"{cut}:"}}
    return splits, Inference("split", f"{cut} + {n_rows - cut} rows", "check", "better: the split of your training")
