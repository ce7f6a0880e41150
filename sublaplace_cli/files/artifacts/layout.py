"""How an artifact lies on disk: a safetensors header with our metadata, then the tensors in the order of their names.

One metadata key, `sublaplace`, holds canonical JSON: what the file is, what it was made from, and a sha256 of
every piece of every tensor. A piece is a run of rows, so that large tensors can be read and checked in part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .atomic import canonical_json, digest_of

SCHEMA = 1
KEY = "sublaplace"
DTYPE_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
PIECE_BYTES = 4 * 2**20  # with its own checksum: small enough to read alone, large enough for a short header


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


def by_rows(dtype: torch.dtype, shape: tuple[int, ...], rows_per_write: int) -> TensorPlan:
    """A tensor that arrives some rows at a time, in pieces of as many of these writes as fill one."""
    one_write = dtype.itemsize * math.prod(shape[1:]) * rows_per_write
    return TensorPlan(dtype, shape, rows_per_write * max(1, PIECE_BYTES // max(1, one_write)))


def header_of(
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


def offsets_of(header: int, plans: Mapping[str, TensorPlan]) -> dict[str, int]:
    offsets, at = {}, header
    for name, plan in plans.items():
        offsets[name] = at
        at += plan.n_bytes
    return offsets


def bytes_of(tensor: Tensor) -> memoryview:
    array: Any = tensor.detach().cpu().contiguous().numpy()
    return memoryview(array).cast("B") if tensor.numel() else memoryview(b"")
