"""Named or single arrays: npz, npy and safetensors. Nothing is ever unpickled.

Sizes are read from the headers and checked before memory is allocated: a small npz can declare terabytes.
"""

import io
import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...errors import UserError
from ...sizes import format_bytes
from ..reading import COPY_AGAIN, check_directory, check_header, reading
from .sources import ReadRequest, Source, labelled, map_inputs, refuse_if_larger, suggestion_from_file
from .tables import Columns, pick_columns

Members = dict[str, zipfile.ZipInfo]

BOMB_RATIO = 100
BOMB_BYTES = 256 * 2**20
READ_BYTES = 4 * 2**20
HEADER_BYTES = 64 * 2**10
MOST_AXES = 32  # of any numpy
SAFETENSORS_ITEM = {"BOOL": 1} | {f"{kind}{8 * size}": size for kind in "UIF" for size in (1, 2, 4, 8)}


def _wanted(request: ReadRequest, names: set[str]) -> tuple[Any, str | None]:
    """Names of the inputs (one, a tuple or a dict) and of the target; by default x or X, and y."""
    arrays = request.arrays
    if arrays is None:
        default = next((name for name in ("x", "X") if name in names), None)
        if default is None:
            hint = f"name the input in data.arrays; {suggestion_from_file('x', names or ['none'])}"
            raise UserError(f"{request.path}: data.arrays is not set, and there is no array 'x' or 'X'", hint=hint)
        return default, "y" if "y" in names else None
    inputs = tuple(arrays.input) if isinstance(arrays.input, list) else arrays.input
    return inputs, None if request.targets.may_lack and arrays.target not in names else arrays.target


def _named_source(
    request: ReadRequest, names: set[str], size: Callable[[str], int], load: Callable[[str], np.ndarray]
) -> Source:
    """The source with the wanted arrays of a file, after a check of their total size."""

    def known_size(name: str) -> int:
        if name not in names:
            raise UserError(f"{request.path}: no array '{name}'", hint=suggestion_from_file(name, names))
        return size(name)

    def other_array(name: str) -> np.ndarray:
        refuse_if_larger(known_size(name), request.memory - held, f"{request.path}: array '{name}'")
        return load(name)

    inputs, target = _wanted(request, names)
    target = target if request.targets.wanted else None
    needed = dict.fromkeys([*(name for _, name in labelled(inputs)), *filter(None, [target])])
    held = sum(map(known_size, needed))
    refuse_if_larger(held, request.memory, str(request.path))
    loaded = {name: load(name) for name in needed}
    arrays = map_inputs(loaded.__getitem__, inputs)
    return Source(request.path, arrays, None if target is None else loaded[target], held, array=other_array)


@dataclass(frozen=True)
class NpyHeader:
    """What the header of a .npy file declares, and where the numbers begin."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    offset: int

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def npy_header(head: bytes, file_bytes: int, where: str, *, texts: bool = False) -> NpyHeader:
    """The .npy header in the first HEADER_BYTES; the file must have the size that it declares.

    `texts` are allowed too where they may be labels.
    """
    # Not from the file: numpy reads a header of any declared length before it checks that length.
    stream = io.BytesIO(head)
    with reading(where, "bad .npy header", "save it again with numpy"):
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"npy version {version} is not supported")
    if dtype.hasobject:
        hint = "save it as numbers, numpy.asarray(x, dtype='float32'), or labels as text, numpy.asarray(y, dtype=str)"
        raise UserError(f"{where}: an array of Python objects is refused: reading it would run pickled code", hint=hint)
    is_text = texts and dtype.kind in "US" and dtype.itemsize > 0
    if not is_text and (dtype.kind not in "biuf" or dtype.itemsize > 8):
        raise UserError(f"{where}: dtype {dtype} is not supported", hint="save it as float32, float64 or integers")
    # Without the zeros: numpy refuses such a shape even for an array that is empty.
    nominal_bytes = math.prod(max(length, 1) for length in shape) * dtype.itemsize
    if any(length < 0 for length in shape) or nominal_bytes >= 2**63 or len(shape) > MOST_AXES:
        raise UserError(f"{where}: bad .npy header: shape {shape}", hint="save it again with numpy")
    header = NpyHeader(shape, "F" if fortran else "C", dtype, stream.tell())
    if header.offset + header.data_bytes != file_bytes:
        declared = f"{header.data_bytes} bytes (shape {shape}, {dtype})"
        message = f"{where}: its header declares {declared}, but the file has {file_bytes - header.offset}"
        raise UserError(message, hint="it is truncated or damaged: copy or save it again")
    return header


def read_npz(request: ReadRequest) -> Source:
    """Arrays of an .npz file; only the members needed are read."""
    path = request.path
    with reading(path, "not a readable npz file"):
        check_directory(path)
    with reading(path, "not a readable npz file"), zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    members = {info.filename.removesuffix(".npy"): info for info in infos}
    labels = _wanted(request, set(members))[1] if request.targets.takes_labels else None
    size, load = partial(_member_bytes, path, members, labels), partial(_load_member, path, members, labels)
    return _named_source(request, set(members), size, load)


def _member_bytes(path: Path, members: Members, labels: str | None, name: str) -> int:
    """The memory that a member needs, from its header; refuses malicious ones."""
    info, where = members[name], f"{path}: array '{name}'"
    if info.flag_bits & 0x1:
        raise UserError(f"{where} is encrypted", hint="save it without a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"{where} uses a compression that numpy does not write", hint="use numpy.savez")
    if info.file_size > BOMB_BYTES and info.file_size > BOMB_RATIO * info.compress_size:
        ratio = info.file_size // max(1, info.compress_size)
        message = f"{where} expands {ratio}-fold to {format_bytes(info.file_size)}: refused as a decompression bomb"
        raise UserError(message, hint="if you trust the file, save it again with numpy.savez (not compressed)")
    return npy_header(next(_parts(path, info), b""), info.file_size, where, texts=name == labels).data_bytes


def _parts(path: Path, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of a member: its first HEADER_BYTES, then larger parts; its checksum is verified after the last."""
    with reading(path, "not a readable npz file"), zipfile.ZipFile(path) as archive, archive.open(info) as stream:
        size = HEADER_BYTES
        while part := stream.read(size):
            yield part
            size = READ_BYTES


def _load_member(path: Path, members: Members, labels: str | None, name: str) -> np.ndarray:
    info, where = members[name], f"{path}: array '{name}'"
    parts = _parts(path, info)
    head = next(parts, b"")
    header = npy_header(head, info.file_size, where, texts=name == labels)
    flat = np.empty(math.prod(header.shape), dtype=header.dtype)
    target, filled = flat.view(np.uint8), 0
    for part in chain([head[header.offset :]], parts):
        target[filled : filled + len(part)] = np.frombuffer(part, dtype=np.uint8)
        filled += len(part)
    if filled < len(target):
        raise UserError(f"{where} ends after {filled} of {len(target)} bytes", hint=COPY_AGAIN)
    if not flat.dtype.isnative:
        flat = flat.byteswap(inplace=True).view(flat.dtype.newbyteorder("="))
    return flat.reshape(header.shape, order=header.order)


def read_npy(request: ReadRequest) -> Source:
    """One array, memory-mapped; a 2-D one may be split by column positions."""
    array = _map_npy(request.path)
    if request.columns is None:
        return Source(request.path, array, None)
    picked = pick_columns(request, _as_table(request.path, array), lambda path: _as_table(path, _map_npy(path)))
    inputs, targets = (_take_columns(array, positions, request) for positions in (picked.inputs, picked.targets))
    return picked.source(inputs, targets)


def _map_npy(path: Path) -> np.ndarray:
    with path.open("rb") as stream:
        header = npy_header(stream.read(HEADER_BYTES), path.stat().st_size, str(path))
    if header.data_bytes == 0:  # an empty file range cannot be mapped
        return np.empty(header.shape, header.dtype)
    return np.asarray(np.memmap(path, header.dtype, "r", header.offset, header.shape, header.order))


def _as_table(path: Path, array: np.ndarray) -> Columns:
    if array.ndim != 2:
        hint = "remove data.columns, or store inputs and target in one npz file"
        raise UserError(f"{path} has shape {array.shape}, but data.columns needs a 2-D array", hint=hint)
    return Columns(path, array.shape[1])


def _take_columns(array: np.ndarray, positions: list[int], request: ReadRequest) -> np.ndarray:
    # Adjacent columns stay a view of the file; all others must be copied.
    first = positions[0] if positions else 0
    if positions == list(range(first, first + len(positions))):
        return array[:, first : first + len(positions)]
    refuse_if_larger(len(array) * len(positions) * array.itemsize, request.memory, str(request.path))
    return array[:, positions]


def read_safetensors(request: ReadRequest) -> Source:
    """Arrays of a safetensors file; the library checks its header."""
    from safetensors import safe_open

    path, problem = request.path, "not a readable safetensors file"

    def size(name: str) -> int:
        with reading(path, problem), safe_open(path, framework="numpy") as file:
            part = file.get_slice(name)
            kind, shape = part.get_dtype(), part.get_shape()
        if kind not in SAFETENSORS_ITEM:
            raise UserError(f"{path}: array '{name}' has dtype {kind}", hint="save it as float32 or integers")
        return math.prod(shape) * SAFETENSORS_ITEM[kind]

    def load(name: str) -> np.ndarray:
        with reading(path, problem), safe_open(path, framework="numpy") as file:
            return file.get_tensor(name)

    with reading(path, problem):
        check_header(path)
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
    return _named_source(request, names, size, load)
