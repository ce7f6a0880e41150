"""Artifacts: safetensors files with metadata and checksums, which are verified when they are read."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import UserError
from ...json_files import MOST_JSON_BYTES, open_regular, parse_json
from . import layout
from .atomic import digest_of, replacing
from .schemas import check_metadata
from .tensor_rules import TensorRule, not_finite


def write_artifact(path: Path, kind: str, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Write a small artifact at once; returns the digest that `open_artifact` finds in it."""
    plans, contents = layout.whole_plans(tensors), layout.bytes_of_all(tensors)
    digests = {name: [hashlib.sha256(contents[name]).hexdigest()] for name in plans}
    header, digest = layout.header_of(kind, meta, plans, digests)
    with replacing(path) as file:
        file.write(header)
        for name in plans:
            file.write(contents[name])
    return digest


@dataclass(frozen=True)
class Artifact:
    """An open artifact: its metadata, and tensors whose checksums are verified on reading.

    Rows are read by offset into new memory. A memory map would be simpler, but each page read would count as memory of
    this process, and an artifact may be larger than the memory.
    """

    path: Path
    meta: dict[str, Any]
    digest: str  # of the metadata, which includes the checksums of the contents
    offsets: dict[str, int]
    checked: set[tuple[str, int]] = field(default_factory=set, compare=False)  # pieces (name, first row)
    room: Callable[..., Tensor] = torch.empty  # allocates the memory to read into
    rules: Mapping[str, TensorRule] = field(default_factory=dict)  # of the tensors of this kind

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        entry = self._entry(name)
        if shape is not None and tuple(entry["shape"]) != shape:
            raise broken(self.path, f"'{name}' has shape {tuple(entry['shape'])}, expected {shape}")
        values = self.rows(name, 0, entry["shape"][0])
        if name in self.rules and (problem := self.rules[name].problem(values)):
            raise broken(self.path, f"'{name}' {problem}")
        return values

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a tensor; the first read loads whole pieces, because only these can be verified."""
        entry = self._entry(name)
        step, last = entry["rows_per_piece"], entry["shape"][0]
        pieces = [left for left in range(start - start % step, max(stop, 1), step) if (name, left) not in self.checked]
        if not pieces:
            return self._read(name, start, stop)[0]
        first, end = min(start, pieces[0]), max(stop, min(last, pieces[-1] + step))
        values, content = self._read(name, first, end)
        row_bytes = len(content) // max(1, end - first)
        for left in pieces:
            piece = content[(left - first) * row_bytes : (left - first + step) * row_bytes]
            if hashlib.sha256(piece).hexdigest() != entry["sha256"][left // step]:
                raise broken(self.path, f"the contents of '{name}' (rows {left}…) do not match their checksum")
            if problem := not_finite(values[left - first : left - first + step]):  # while the piece is in the cache
                raise broken(self.path, f"'{name}' {problem} (rows {left}…)")
            self.checked.add((name, left))
        return values[start - first : stop - first]

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self.meta["tensors"]:
            raise broken(self.path, f"it holds no tensor '{name}'")
        return self.meta["tensors"][name]

    def _read(self, name: str, start: int, stop: int) -> tuple[Tensor, memoryview]:
        entry = self._entry(name)
        values = self.room(stop - start, *entry["shape"][1:], dtype=layout.DTYPE_OF_NAME[entry["dtype"]])
        content = layout.bytes_of(values)
        if not content:
            return values, content
        row_bytes = values.element_size() * math.prod(values.shape[1:])
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offsets[name] + start * row_bytes)
                complete = file.readinto(content) == values.nbytes
        except OSError as error:
            raise broken(self.path, str(error)) from error
        if not complete:
            raise broken(self.path, f"it ends inside '{name}'")
        return values, content


def open_artifact(path: Path, kind: str) -> Artifact:
    """Open an artifact of this kind; refuses any other file, and one whose metadata cannot be right."""
    text, found, header_bytes = _read_header(path)
    try:
        meta = parse_json(text)
        digest = meta.pop("checksum")
        is_whole = digest == digest_of(meta)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise broken(path, f"its metadata cannot be read ({error!r})") from error
    if not is_whole:
        raise broken(path, "its metadata does not match its checksum")
    if meta.get("schema") != layout.ARTIFACT_SCHEMA:
        raise broken(path, f"its schema version is {meta.get('schema')}, this version reads {layout.ARTIFACT_SCHEMA}")
    if meta.get("kind") != kind:
        raise broken(path, f"it holds {meta.get('kind')}, expected {kind}")
    try:
        rules = check_metadata(kind, meta)
    except ValueError as error:
        raise broken(path, str(error)) from error
    if {name: (entry["dtype"], entry["shape"]) for name, entry in meta["tensors"].items()} != found:
        raise broken(path, "its tensors do not match its metadata")
    plans = {
        name: layout.TensorPlan(layout.DTYPE_OF_NAME[entry["dtype"]], tuple(entry["shape"]), entry["rows_per_piece"])
        for name, entry in sorted(meta["tensors"].items())
    }
    return Artifact(path, meta, digest, layout.offsets_of(header_bytes, plans)[0], rules=rules)


def _read_header(path: Path) -> tuple[str, dict[str, tuple[str, list[int]]], int]:
    """The text of our metadata, type and shape of each tensor, and the size of the header."""
    try:
        with open_regular(path) as raw:
            header_bytes = 8 + int.from_bytes(raw.read(8), "little")
        if header_bytes > MOST_JSON_BYTES:
            raise ValueError(f"its header has {header_bytes} bytes")
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(layout.METADATA_KEY)
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise broken(path, f"it is truncated or not a safetensors file ({error})") from error
    if text is None:
        raise broken(path, "it was not written by sublaplace (no 'sublaplace' metadata)")
    return text, found, header_bytes


def broken(path: Path, what: str) -> UserError:
    """The error for an artifact that cannot be used."""
    hint = "delete the file, add --recompute, or start a new run with another --run-dir"
    return UserError(f"{path}: {what}", hint=hint)
