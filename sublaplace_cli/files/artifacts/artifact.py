"""Artifacts: safetensors files that say what they are, and are checked whenever they are read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import UserError
from .atomic import digest_of, replacing
from .layout import DTYPES, KEY, SCHEMA, TensorPlan, bytes_of, header_of, offsets_of, whole


def write_artifact(path: Path, kind: str, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a small artifact in one go."""
    data = {name: bytes_of(tensor) for name, tensor in sorted(tensors.items())}
    plans = {name: whole(tensors[name]) for name in data}
    digests = {name: [hashlib.sha256(content).hexdigest()] for name, content in data.items()}
    with replacing(path) as file:
        file.write(header_of(kind, meta, plans, digests))
        for content in data.values():
            file.write(content)


@dataclass(frozen=True)
class Artifact:
    """An open artifact: its metadata, and tensors that are checked as they are read.

    Rows are read by offset into memory of their own. A mapped file would be simpler, but every page that was
    looked at would count as memory of this process, and the point of an artifact is that it need not fit.
    """

    path: Path
    meta: dict[str, Any]
    digest: str  # of the metadata, which holds the checksums of the contents
    offsets: dict[str, int]
    checked: set[tuple[str, int]] = field(default_factory=set, compare=False)  # pieces (name, first row)
    room: Callable[..., Tensor] = torch.empty  # makes the memory that is read into

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """A whole tensor."""
        entry = self._entry(name)
        if shape is not None and tuple(entry["shape"]) != shape:
            raise self._broken(f"'{name}' has shape {tuple(entry['shape'])}, expected {shape}")
        return self.rows(name, 0, entry["shape"][0])

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a tensor; whole pieces the first time, because only they can be checked."""
        entry = self._entry(name)
        step, last = entry["rows_per_piece"], entry["shape"][0]
        pieces = [left for left in range(start - start % step, max(stop, 1), step) if (name, left) not in self.checked]
        if not pieces:
            return self._read(name, start, stop)
        first, end = min(start, pieces[0]), max(stop, min(last, pieces[-1] + step))
        values = self._read(name, first, end)
        for left in pieces:
            piece = values[left - first : left - first + step]
            if hashlib.sha256(bytes_of(piece)).hexdigest() != entry["sha256"][left // step]:
                raise self._broken(f"the contents of '{name}' (rows {left}…) do not match their checksum")
            self.checked.add((name, left))
        return values[start - first : stop - first]

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self.meta["tensors"]:
            raise self._broken(f"it holds no tensor '{name}'")
        return self.meta["tensors"][name]

    def _read(self, name: str, start: int, stop: int) -> Tensor:
        entry = self._entry(name)
        values = self.room(stop - start, *entry["shape"][1:], dtype=DTYPES[entry["dtype"]])
        row_bytes = values.element_size() * math.prod(values.shape[1:])
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offsets[name] + start * row_bytes)
                whole = file.readinto(bytes_of(values)) == values.nbytes
        except OSError as error:
            raise self._broken(str(error)) from error
        if not whole:
            raise self._broken(f"it ends in the midst of '{name}'")
        return values

    def _broken(self, what: str) -> UserError:
        return broken(self.path, what)


def open_artifact(path: Path, kind: str) -> Artifact:
    """Open an artifact of this kind, or say why it is not one."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: (q.get_dtype(), q.get_shape()) for name, q in slices.items()}
        with open(path, "rb") as raw:
            header = 8 + int.from_bytes(raw.read(8), "little")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise broken(path, f"it is truncated or no safetensors file ({error})") from error
    if text is None:
        raise broken(path, "it was not written by sublaplace (no 'sublaplace' metadata)")
    meta = _parsed(path, text)
    if meta.get("schema") != SCHEMA:
        raise broken(path, f"its schema version is {meta.get('schema')}, this version reads {SCHEMA}")
    if meta.get("kind") != kind:
        raise broken(path, f"it holds {meta.get('kind')}, expected {kind}")
    if {name: (entry["dtype"], entry["shape"]) for name, entry in meta["tensors"].items()} != found:
        raise broken(path, "its tensors are not those that its metadata names")
    plans = {
        name: TensorPlan(DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["rows_per_piece"])
        for name, entry in sorted(meta["tensors"].items())
    }
    return Artifact(path, meta, digest_of(meta), offsets_of(header, plans))


def broken(path: Path, what: str) -> UserError:
    """The error for an artifact that cannot be used."""
    return UserError(
        f"{path}: {what}",
        hint="delete the file, or make it anew with --force; another --run-dir also starts afresh",
    )


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        meta = json.loads(text)
        checksum = meta.pop("checksum")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise broken(path, f"its metadata cannot be read ({error!r})") from error
    if checksum != digest_of(meta):
        raise broken(path, "its metadata does not match its checksum")
    return meta
