"""Artifacts: safetensors files that say what they are, and are checked whenever they are read.

One metadata key, `sublaplace`, holds canonical JSON: what the file is, what it was made from, and a sha256 of
every piece of every tensor (a piece is a run of rows, so that large tensors can be read and checked in part).
safetensors has no streaming writer, so rows are put into a file of the final size, which keeps a record of
the rows that are done beside it; the file gets its final name when all of them are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import UserError
from .atomic import (
    PART,
    canonical_json,
    digest_of,
    explain_write_errors,
    publish,
    replacing,
    sync_folder,
    write_text,
)

SCHEMA = 1
KEY = "sublaplace"
DTYPE_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written: its type, its shape, and how many rows make a piece with its own checksum."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    rows_per_piece: int

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def n_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def n_pieces(self) -> int:
        return max(1, math.ceil(self.shape[0] / self.rows_per_piece)) if self.shape else 1


def whole(tensor: Tensor) -> TensorPlan:
    """A tensor that is one piece."""
    return TensorPlan(tensor.dtype, tuple(tensor.shape), max(1, len(tensor)))


def write_artifact(path: Path, kind: str, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a small artifact in one go."""
    data = {name: _bytes_of(tensor) for name, tensor in sorted(tensors.items())}
    plans = {name: whole(tensors[name]) for name in data}
    digests = {name: [hashlib.sha256(content).hexdigest()] for name, content in data.items()}
    with replacing(path) as file:
        file.write(_header(kind, meta, plans, digests))
        for content in data.values():
            file.write(content)


class RowWriter:
    """Streams rows of several tensors into one artifact, and can go on where an earlier run was cut off."""

    def __init__(self, path: Path, kind: str, meta: Mapping[str, Any], plans: Mapping[str, TensorPlan]) -> None:
        self.path, self.kind, self.meta = path, kind, dict(meta)
        self.plans = dict(sorted(plans.items()))
        self.part = path.with_name(path.name + PART)
        self.record = path.with_name(path.name + PART + ".json")
        self.digests = {name: [NO_DIGEST] * plan.n_pieces for name, plan in self.plans.items()}
        header = _header(kind, meta, self.plans, self.digests)
        self.identity = hashlib.sha256(header).hexdigest()
        self.offsets = _offsets(len(header), self.plans)
        with explain_write_errors(path):
            self.rows_done = self._resume()
            self.file = open(self.part, "r+b" if self.rows_done else "w+b")  # noqa: SIM115 (closed in finish/abandon)
            if not self.rows_done:
                self.file.write(header)
                self.file.truncate(len(header) + sum(plan.n_bytes for plan in self.plans.values()))

    def _resume(self) -> int:
        try:
            record = json.loads(self.record.read_text())
        except (OSError, ValueError):
            return 0
        if not self.part.is_file() or record.get("identity") != self.identity:
            return 0
        self.digests = record["digests"]
        return int(record["rows_done"])

    def write(self, start: int, rows: Mapping[str, Tensor]) -> None:
        """Put rows [start, start + m) of every tensor in place; `start` must begin a piece."""
        with explain_write_errors(self.path):
            for name, tensor in rows.items():
                plan, content = self.plans[name], _bytes_of(tensor)
                self.file.seek(self.offsets[name] + start * plan.row_bytes)
                self.file.write(content)
                self.digests[name][start // plan.rows_per_piece] = hashlib.sha256(content).hexdigest()

    def checkpoint(self, rows_done: int) -> None:
        """Make the rows so far durable, so that they need not be made again."""
        with explain_write_errors(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
            write_text(
                self.record,
                canonical_json({"identity": self.identity, "rows_done": rows_done, "digests": self.digests}),
            )

    def finish(self) -> None:
        """Fill in the checksums and give the file its name."""
        with explain_write_errors(self.path):
            self.file.seek(0)
            self.file.write(_header(self.kind, self.meta, self.plans, self.digests))
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            publish(self.part, self.path)
            self.record.unlink(missing_ok=True)
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Let go of the file, finished or not; what is durable can be resumed."""
        self.file.close()


@dataclass(frozen=True)
class Artifact:
    """An open artifact: its metadata, and tensors that are checked as they are read."""

    path: Path
    meta: dict[str, Any]
    digest: str  # of the metadata, which holds the checksums of the contents

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """A whole tensor."""
        entry = self._entry(name)
        if shape is not None and tuple(entry["shape"]) != shape:
            raise self._broken(f"'{name}' has shape {tuple(entry['shape'])}, expected {shape}")
        return self.rows(name, 0, entry["shape"][0]) if entry["shape"] else self._read(name, None)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a tensor; whole pieces are read, because only they can be checked."""
        entry = self._entry(name)
        step, last = entry["rows_per_piece"], entry["shape"][0]
        first = start - start % step
        end = min(last, math.ceil(stop / step) * step)
        values = self._read(name, slice(first, end))
        for left in range(first, max(end, first + 1), step):
            piece = values[left - first : left - first + step]
            if hashlib.sha256(_bytes_of(piece)).hexdigest() != entry["sha256"][left // step]:
                raise self._broken(f"the contents of '{name}' (rows {left}…) do not match their checksum")
        return values[start - first : stop - first]

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self.meta["tensors"]:
            raise self._broken(f"it holds no tensor '{name}'")
        return self.meta["tensors"][name]

    def _read(self, name: str, rows: slice | None) -> Tensor:
        try:
            with safe_open(self.path, framework="pt") as file:
                return file.get_tensor(name) if rows is None else file.get_slice(name)[rows.start : rows.stop]
        except (SafetensorError, OSError) as error:
            raise self._broken(str(error)) from error

    def _broken(self, what: str) -> UserError:
        return broken(self.path, what)


def open_artifact(path: Path, kind: str) -> Artifact:
    """Open an artifact of this kind, or say why it is not one."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: (q.get_dtype(), q.get_shape()) for name, q in slices.items()}
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
    return Artifact(path, meta, digest_of(meta))


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


def _header(
    kind: str, meta: Mapping[str, Any], plans: Mapping[str, TensorPlan], digests: Mapping[str, list[str]]
) -> bytes:
    tensors = {
        name: {
            "dtype": DTYPE_NAMES[q.dtype],
            "shape": list(q.shape),
            "rows_per_piece": q.rows_per_piece,
            "sha256": digests[name],
        }
        for name, q in plans.items()
    }
    own = {**meta, "kind": kind, "schema": SCHEMA, "tensors": tensors}
    entries: dict[str, Any] = {"__metadata__": {KEY: canonical_json({**own, "checksum": digest_of(own)})}}
    offset = 0
    for name, q in plans.items():
        entries[name] = {
            "dtype": DTYPE_NAMES[q.dtype],
            "shape": list(q.shape),
            "data_offsets": [offset, offset + q.n_bytes],
        }
        offset += q.n_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned
    return len(text).to_bytes(8, "little") + text


def _offsets(header: int, plans: Mapping[str, TensorPlan]) -> dict[str, int]:
    offsets, at = {}, header
    for name, plan in plans.items():
        offsets[name] = at
        at += plan.n_bytes
    return offsets


def _bytes_of(tensor: Tensor) -> memoryview:
    array: Any = tensor.detach().cpu().contiguous().numpy()
    return memoryview(array).cast("B") if tensor.numel() else memoryview(b"")
