"""A data file → the `data` section of the spec, and rows to try the network on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from ... import catalog
from ...errors import UserError
from ...files.data.columnar.arrow_files import is_saved_dataset, saved_splits
from ...files.data.datasets import require_extra
from ...files.data.sources import number_in
from . import table as tables
from .arrays import TOKEN_ARRAYS, ChosenArrays, choose_arrays
from .huggingface import guess_length, labels_in
from .inference import CLASSES, Inference, NetworkGuess
from .task import MOST_CLASSES, class_numbers, guess_task, in_order, rows_in_order

DATA_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".npz": "npz"}
DATA_SUFFIXES |= {".safetensors": "safetensors"}
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

    @property
    def open_classes(self) -> tuple[str, ...]:
        """The labels of the class numbers, if their order is a guess."""
        is_open = any(finding.topic == CLASSES and finding.certainty == "check" for finding in self.findings)
        return tuple(self.section[CLASSES]) if is_open else ()

    def with_classes(self, classes: Sequence[str]) -> Self:
        """The same with the labels in this order, which something else explains."""
        others = tuple(finding for finding in self.findings if finding.topic != CLASSES)
        return replace(self, section={**self.section, CLASSES: list(classes)}, findings=others)


def guess_data(path: Path, shown: str, network: NetworkGuess, task: str | None, memory: int) -> DataGuess:
    """`shown` is the path as the spec names it."""
    is_folder = is_saved_dataset(path)
    name = "arrow" if is_folder else DATA_SUFFIXES.get(path.suffix.lower())
    if name is None or not (path.is_file() or is_folder):
        found = "is not a file" if not path.is_file() else f"ends in {path.suffix!a}"
        raise UserError(f"{path}: {found}, expected data ({', '.join(DATA_SUFFIXES)})", hint="write the spec by hand")
    require_extra(name)
    section: dict[str, Any] = {"format": name, "path": shown}
    if name in ("csv", "parquet", "arrow"):
        return _of_table(path, section, network, task, memory)
    return _of_arrays(choose_arrays(path, name, memory), section, network, task)


def _of_table(path: Path, section: dict[str, Any], network: NetworkGuess, task: str | None, memory: int) -> DataGuess:
    form = section["format"]
    read = {"parquet": tables.read_parquet_table, "arrow": tables.read_arrow_table}
    table = tables.read_csv_table(path) if form == "csv" else read[form](path, memory)
    chosen = tables.choose_columns(table, network.takes, network.n_inputs)
    target = chosen.target
    if target is None:
        raise UserError(f"{path}: no column can be the target", hint="it needs a column without missing values")
    finding = guess_task(target.cells, network.n_outputs, task)
    lengths: tuple[Inference, ...] = ()
    if chosen.text is not None and network.folder is not None:
        lengths = (guess_length(network.folder, chosen.text.cells),)
        section["text"] = {"column": chosen.text.name, "max_length": int(lengths[0].value)}
        section["columns"] = {"target": target.name}
    else:
        columns: dict[str, Any] = {"target": target.name, "input": "rest"}
        section["columns"] = columns | (
            {"exclude": [column.name for column in chosen.excluded]} if chosen.excluded else {}
        )
    X = np.array([column.numbers for column in chosen.inputs]).T if chosen.inputs else None
    lists = _list_inputs(table.lists)
    if lists is not None:
        section["columns"], X = {"target": target.name, "input": lists}, None
    found = list(chosen.findings) if lists is None else [f for f in chosen.findings if f.topic == "target"]
    if lists is not None:
        shown = lists if isinstance(lists, str) else ", ".join(lists)
        found.append(Inference("inputs", shown, "likely", "columns of lists"))
    found += _fix_order(section, finding.value, target.cells, network)
    y = (
        target.numbers
        if not catalog.TASKS[finding.value].labels
        else class_numbers(target.cells, section.get(CLASSES, ()))
    )
    other = sibling_of(path)
    saved = saved_splits(path) if path.is_dir() else []
    if {"train", "test"} <= set(saved):
        section["splits"] = {name: {} for name in ("train", "test", "validation") if name in saved}
        split = Inference("split", ", ".join(section["splits"]), "sure", "names of the saved splits")
    elif other is not None:
        section["splits"] = {"train": {}, "test": {"path": str(Path(section["path"]).with_name(other.name))}}
        split = Inference(
            "split", f"test rows from {other.name}", "likely", "the file beside it has its name with 'test'"
        )
    else:
        section["splits"], split = _row_split(table.n_rows, target.cells)
    findings = (*found, *lengths, finding, split)
    return DataGuess(section, finding.value, findings, X, y, table.n_rows, other is None and not saved)


def _list_inputs(names: Sequence[str]) -> str | dict[str, str] | None:
    """Columns of lists as the network's inputs: those of a tokenizer, or the only one."""
    tokens = {name: name for name in TOKEN_ARRAYS if name in names}
    return tokens or (names[0] if len(names) == 1 else None)


def _fix_order(section: dict[str, Any], task: str, cells: Sequence[str], network: NetworkGuess) -> list[Inference]:
    """`classes` for labels that are no class numbers, if the first rows have as many as the network has outputs."""
    labels, n_outputs = in_order(cells), network.n_outputs
    expected = len(labels) if n_outputs is None else 2 if catalog.TASKS[task].one_logit else n_outputs
    if not catalog.TASKS[task].labels or not 2 <= len(labels) <= MOST_CLASSES or len(labels) != expected:
        return []
    numbers = [number_in(label) for label in labels]
    # Numbers from 1 on, or -1 and 1, can be labels too, but only a csv file has the text of them.
    are_odd = section["format"] == "csv" and None not in numbers and numbers != [*range(expected)]
    if not are_odd and any(number is not None for number in numbers):
        return []
    section[CLASSES] = labels
    by_name = {label.casefold(): label for label in labels}
    ordered = [label.strip().casefold() for label in labels_in(network.folder)]
    if sorted(ordered) == sorted(by_name) and len(by_name) == len(labels):
        section[CLASSES] = [by_name[name] for name in ordered]
        return [Inference(CLASSES, ", ".join(section[CLASSES]), "sure", "id2label of config.json")]
    reason = "they are sorted; what counts is the order of the network's outputs"
    return [Inference(CLASSES, ", ".join(labels), "check", reason)]


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
    ordered = _fix_order(section, finding.value, cells, network)
    if catalog.TASKS[finding.value].labels and y is not None:
        y = class_numbers(cells, section.get(CLASSES, ()))
    elif y is not None and y.dtype.kind in "US":
        y = None
    X, findings = chosen.X, (*chosen.findings, *ordered, finding, split)
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


def sibling_of(path: Path) -> Path | None:
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
