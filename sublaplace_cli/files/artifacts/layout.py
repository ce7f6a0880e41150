"""The bytes of an artifact: a safetensors header with our metadata, then the tensors in the order of their names.

One metadata key, `sublaplace`, holds canonical JSON: what the file is, what it was computed from, and a sha256 of every
piece of every tensor. A piece is a range of rows, so that a part of a large tensor can be read and checked.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .atomic import canonical_json, digest_of

ARTIFACT_SCHEMA = 1
METADATA_KEY = "sublaplace"
DTYPE_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
DTYPE_OF_NAME = {name: dtype for dtype, name in DTYPE_NAMES.items()}
PIECE_BYTES = 4 * 2**20  # per checksum: small enough to read alone, large enough for a short header


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to write: its type, its shape, and the number of rows per piece."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    rows_per_piece: int

    @cached_property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @cached_property
    def n_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @cached_property
    def n_pieces(self) -> int:
        return max(1, math.ceil(self.shape[0] / self.rows_per_piece)) if self.shape else 1


def whole_plans(tensors: Mapping[str, Tensor]) -> dict[str, TensorPlan]:
    """Plans of tensors with one piece each."""
    return {name: TensorPlan(t.dtype, tuple(t.shape), max(1, len(t))) for name, t in sorted(tensors.items())}


def by_rows(dtype: torch.dtype, shape: tuple[int, ...], rows_per_write: int) -> TensorPlan:
    """The plan of a tensor that is written a few rows at a time; a piece is as many writes as fill PIECE_BYTES."""
    one_write = dtype.itemsize * math.prod(shape[1:]) * rows_per_write
    return TensorPlan(dtype, shape, rows_per_write * max(1, PIECE_BYTES // max(1, one_write)))


def header_of(
    kind: str, meta: Mapping[str, Any], plans: Mapping[str, TensorPlan], digests: Mapping[str, list[str]]
) -> tuple[bytes, str]:
    """The header of an artifact, and the digest of its metadata."""
    types = {name: {"dtype": DTYPE_NAMES[plan.dtype], "shape": list(plan.shape)} for name, plan in plans.items()}
    tensors = {
        name: {**types[name], "rows_per_piece": plan.rows_per_piece, "sha256": digests[name]}
        for name, plan in plans.items()
    }
    own = {**meta, "kind": kind, "schema": ARTIFACT_SCHEMA, "tensors": tensors}
    digest = digest_of(own)
    entries: dict[str, Any] = {"__metadata__": {METADATA_KEY: canonical_json({**own, "checksum": digest})}}
    for name, offset in offsets_of(0, plans)[0].items():
        entries[name] = {**types[name], "data_offsets": [offset, offset + plans[name].n_bytes]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format requires aligned data
    return len(text).to_bytes(8, "little") + text, digest


def offsets_of(header_bytes: int, plans: Mapping[str, TensorPlan]) -> tuple[dict[str, int], int]:
    """The position of each tensor in the file, and the size of the file."""
    offsets, position = {}, header_bytes
    for name, plan in plans.items():
        offsets[name] = position
        position += plan.n_bytes
    return offsets, position


def bytes_of_all(tensors: Mapping[str, Tensor]) -> dict[str, memoryview]:
    return {name: bytes_of(tensor) for name, tensor in tensors.items()}


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; without a copy if it is contiguous and on the CPU."""
    array: Any = tensor.detach().cpu().contiguous().numpy()
    return memoryview(array).cast("B") if tensor.numel() else memoryview(b"")
