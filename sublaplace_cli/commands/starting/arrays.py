"""An npz or safetensors file → its arrays: inputs and targets, of one split or of several."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ... import catalog
from ...errors import UserError
from ...files.data.sources import ReadRequest, TargetRequest
from ...files.reading import check_directory, check_header, reading
from ...files.spec.columns import ArraysSpec
from .inference import Inference

SPLIT_WORDS = {"train": "train", "training": "train", "test": "test", "val": "validation", "valid": "validation"}
SPLIT_WORDS |= {"validation": "validation"}
INPUT_ARRAYS = ("x", "input", "inputs", "features", "data", "images", "image")
TARGET_ARRAYS = ("y", "target", "targets", "label", "labels", "outputs")
TOKEN_ARRAYS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class ChosenArrays:
    """By split, or under "" if one pair holds all rows."""

    inputs: dict[str, str | dict[str, str]]
    targets: dict[str, str]
    X: np.ndarray | None  # of the training rows
    y: np.ndarray | None
    n_rows: int
    findings: tuple[Inference, ...]


def choose_arrays(path: Path, format_name: str, memory: int) -> ChosenArrays:
    names = _names(path, format_name)
    inputs: dict[str, str | dict[str, str]] = {}
    targets: dict[str, str] = {}
    for name in names:
        split, kind = _role(name)
        if kind in INPUT_ARRAYS:
            inputs.setdefault(split, name)
        elif kind in TOKEN_ARRAYS:
            tokens = inputs.setdefault(split, {})
            if isinstance(tokens, dict):
                tokens[kind] = name
        elif kind in TARGET_ARRAYS:
            targets.setdefault(split, name)
    if not inputs:
        hint = f"name them x and y, or write the spec by hand; it has {', '.join(map(ascii, names[:20]))}"
        raise UserError(f"{path}: none of its arrays is called like an input ({', '.join(INPUT_ARRAYS)})", hint=hint)
    first = "train" if "train" in inputs else next(iter(inputs))
    chosen = ArraysSpec(input=inputs[first], target=targets.get(first))
    request = ReadRequest(path, None, chosen, None, memory, targets=TargetRequest(takes_labels=True))
    source = catalog.load(catalog.DATA_FORMATS[format_name])(request)
    X = source.inputs if isinstance(source.inputs, np.ndarray) else None
    shown = inputs[first] if isinstance(inputs[first], str) else ", ".join(inputs[first])
    findings = [Inference("inputs", str(shown), "likely", "names of the arrays")]
    if first in targets:
        findings.append(Inference("target", targets[first], "likely", "names of the arrays"))
    return ChosenArrays(inputs, targets, X, source.targets, len(source), tuple(findings))


def _names(path: Path, format_name: str) -> list[str]:
    with reading(path, f"not a readable {format_name} file"):
        if format_name == "safetensors":
            from safetensors import safe_open

            check_header(path)
            with safe_open(path, framework="numpy") as file:
                return list(file.keys())
        check_directory(path)
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _role(name: str) -> tuple[str, str]:
    """(split, kind) by the words of a name: x_train and train_X are (train, x)."""
    words = name.lower().split("_")
    split = next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")
    return split, "_".join(word for word in words if word not in SPLIT_WORDS)
