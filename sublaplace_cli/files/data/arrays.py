"""Named or single arrays: npz, npy and safetensors. Nothing is ever unpickled.

Sizes come from the headers and are checked before memory is taken: a small npz can declare terabytes.
"""

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import UserError, suggestion
from ..spec.data import ArraysSpec
from .columns import Columns, pick_columns
from .sources import ArrayInputs, ReadRequest, Source, gibibytes, refuse_if_larger

BOMB_RATIO = 100
BOMB_BYTES = 256 * 2**20
READ_BYTES = 4 * 2**20
HEADER_BYTES = 64 * 2**10
SAFETENSORS_ITEM = {"BOOL": 1} | {f"{kind}{8 * size}": size for kind in "UIF" for size in (1, 2, 4, 8)}


# --- inputs and targets ----------------------------------------------------------------------------------


def _wanted(request: ReadRequest, known: Iterable[str]) -> tuple[str | dict[str, str] | list[str], str | None]:
    """Names of the input and the target; by default x or X, and y."""
    names = set(known)
    arrays: ArraysSpec | None = request.arrays
    if arrays is None:
        default = next((name for name in ("x", "X") if name in names), None)
        if default is None:
            hint = f"name the input in data.arrays; available: {', '.join(sorted(names)) or 'none'}"
            raise UserError(f"{request.path}: data.arrays is not set, and there is no array 'x' or 'X'", hint=hint)
        return default, "y" if "y" in names else None
    inputs = list(arrays.input.values()) if isinstance(arrays.input, dict) else arrays.input
    for name in [inputs] if isinstance(inputs, str) else inputs:
        _check_known(name, names, request.path)
    target_may_lack = request.training_path is not None
    if arrays.target is None or (arrays.target not in names and target_may_lack):
        return arrays.input, None
    _check_known(arrays.target, names, request.path)
    return arrays.input, arrays.target


def _check_known(name: str, names: set[str], path: Path) -> None:
    if name not in names:
        raise UserError(f"{path}: no array '{name}'", hint=suggestion(name, names))


def _named_source(
    request: ReadRequest, known: Iterable[str], size: Callable[[str], int], load: Callable[[str], np.ndarray]
) -> Source:
    """The source with the wanted arrays of a file, after a check of their total size."""
    names = set(known)
    inputs, target = _wanted(request, names)
    flat = [inputs] if isinstance(inputs, str) else list(inputs.values() if isinstance(inputs, dict) else inputs)
    needed = list(dict.fromkeys(flat + ([] if target is None else [target])))
    held = sum(size(name) for name in needed)
    refuse_if_larger(held, request.memory, str(request.path))
    loaded = {name: load(name) for name in needed}
    arrays: ArrayInputs
    if isinstance(inputs, str):
        arrays = loaded[inputs]
    elif isinstance(inputs, dict):
        arrays = {argument: loaded[name] for argument, name in inputs.items()}
    else:
        arrays = tuple(loaded[name] for name in inputs)

    def other_array(name: str) -> np.ndarray:
        _check_known(name, names, request.path)
        refuse_if_larger(size(name), request.memory - held, f"{request.path}: array '{name}'")
        return load(name)

    return Source(request.path, arrays, None if target is None else loaded[target], held, array=other_array)


# --- the .npy header -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def refuse_other_size(self, stored: int, where: str) -> None:
        """Refuse a file that does not have the size that its header declares."""
        if self.offset + self.data_bytes != stored:
            raise UserError(
                f"{where}: its header declares {self.data_bytes} bytes (shape {self.shape}, {self.dtype}), "
                f"but the file has {stored - self.offset}",
                hint="it is truncated or damaged: copy or save it again",
            )


def _read_header(stream: IO[bytes], where: str) -> _Header:
    # Only the first bytes: numpy reads a header of any declared length before it checks that length.
    stream = io.BytesIO(stream.read(HEADER_BYTES))
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"npy version {version} is not supported")
    except (ValueError, TypeError, SyntaxError, KeyError, RecursionError, MemoryError) as error:
        raise UserError(f"{where}: bad .npy header: {error}", hint="save it again with numpy") from None
    _check_dtype(dtype, where)
    if any(length < 0 for length in shape):
        raise UserError(f"{where}: bad .npy header: shape {shape}", hint="save it again with numpy")
    return _Header(shape, fortran, dtype, stream.tell())


def _check_dtype(dtype: np.dtype[Any], where: str) -> None:
    if dtype.hasobject:
        hint = "save it as numbers, e.g. numpy.savez(file, x=numpy.asarray(x, dtype='float32'))"
        raise UserError(f"{where}: an array of Python objects is refused: reading it would run pickled code", hint=hint)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise UserError(f"{where}: dtype {dtype} is not supported", hint="save it as float32, float64 or integers")


# --- npz -------------------------------------------------------------------------------------------------


def read_npz(request: ReadRequest) -> Source:
    """Arrays of an .npz file; only the members needed are read."""
    path = request.path
    try:
        with zipfile.ZipFile(path) as archive:
            members = {
                info.filename.removesuffix(".npy"): info
                for info in archive.infolist()
                if info.filename.endswith(".npy")
            }
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _unreadable(path, error) from None
    return _named_source(
        request,
        members,
        size=lambda name: _member_bytes(path, name, members[name]),
        load=lambda name: _load_member(path, name, members[name]),
    )


def _unreadable(path: Path, error: Exception, what: str = "npz") -> UserError:
    return UserError(f"{path}: not a readable {what} file: {error}", hint="is it complete? copy or save it again")


def _member_bytes(path: Path, name: str, info: zipfile.ZipInfo) -> int:
    """The bytes that a member will take, from its header; refuses hostile ones."""
    where = f"{path}: array '{name}'"
    if info.flag_bits & 0x1:
        raise UserError(f"{where} is encrypted", hint="save it without a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"{where} uses a compression that numpy does not write", hint="use numpy.savez")
    if info.file_size > BOMB_BYTES and info.file_size > BOMB_RATIO * info.compress_size:
        ratio = info.file_size // max(1, info.compress_size)
        message = f"{where} expands {ratio}-fold to {gibibytes(info.file_size)}: refused as a decompression bomb"
        raise UserError(message, hint="if you trust the file, save it again with numpy.savez (not compressed)")
    with _opened(path, info) as stream:
        header = _read_header(stream, where)
    header.refuse_other_size(info.file_size, where)
    return header.data_bytes


@contextmanager
def _opened(path: Path, info: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(info) as stream:
            yield stream
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise _unreadable(path, error) from None


def _load_member(path: Path, name: str, info: zipfile.ZipInfo) -> np.ndarray:
    with _opened(path, info) as stream:
        header = _read_header(stream, f"{path}: array '{name}'")
    flat = np.empty(math.prod(header.shape), dtype=header.dtype)
    target = flat.view(np.uint8)
    with _opened(path, info) as stream:
        stream.read(header.offset)
        filled = 0
        # Read to the end of the stream: only there is the checksum verified.
        while part := stream.read(READ_BYTES):
            target[filled : filled + len(part)] = np.frombuffer(part, dtype=np.uint8)
            filled += len(part)
        if filled < len(target):
            raise EOFError(f"array '{name}' ends after {filled} of {len(target)} bytes")
    if not flat.dtype.isnative:
        flat = flat.byteswap(inplace=True).view(flat.dtype.newbyteorder("="))
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


# --- npy -------------------------------------------------------------------------------------------------


def read_npy(request: ReadRequest) -> Source:
    """One array, memory-mapped; a 2-D one may be split by column positions."""
    array = _map_npy(request.path)
    if request.columns is None:
        return Source(request.path, array, None)
    table, training = _as_table(request.path, array), None
    if request.training_path is not None:
        training = _as_table(request.training_path, _map_npy(request.training_path))
    picked = pick_columns(request.columns, table, training)
    inputs = _take_columns(array, picked.inputs, request)
    targets = _take_columns(array, picked.targets, request) if picked.targets else None
    labels = table.labels(picked.inputs), table.labels(picked.targets)
    return Source(request.path, inputs, targets, input_columns=labels[0], target_columns=labels[1])


def _map_npy(path: Path) -> np.ndarray:
    with path.open("rb") as stream:
        header = _read_header(stream, str(path))
    header.refuse_other_size(path.stat().st_size, str(path))
    if header.data_bytes == 0:  # an empty file range cannot be mapped
        return np.empty(header.shape, header.dtype)
    order = "F" if header.fortran else "C"
    return np.asarray(np.memmap(path, header.dtype, "r", header.offset, header.shape, order))  # type: ignore[call-overload]


def _as_table(path: Path, array: np.ndarray) -> Columns:
    if array.ndim != 2:
        hint = "remove data.columns, or store inputs and target in one npz file"
        raise UserError(f"{path} has shape {array.shape}, but data.columns needs a 2-D array", hint=hint)
    return Columns(path, array.shape[1])


def _take_columns(array: np.ndarray, positions: list[int], request: ReadRequest) -> np.ndarray:
    # Adjacent columns stay a view of the file; all others must be copied.
    if positions == list(range(positions[0], positions[0] + len(positions))):
        return array[:, positions[0] : positions[-1] + 1]
    refuse_if_larger(len(array) * len(positions) * array.itemsize, request.memory, str(request.path))
    return array[:, positions]


# --- safetensors -----------------------------------------------------------------------------------------


def read_safetensors(request: ReadRequest) -> Source:
    """Arrays of a safetensors file; the library checks its header."""
    from safetensors import SafetensorError, safe_open

    path = request.path

    def size(name: str) -> int:
        with safe_open(path, framework="numpy") as file:
            part = file.get_slice(name)
            kind = part.get_dtype()
            if kind not in SAFETENSORS_ITEM:
                raise UserError(f"{path}: array '{name}' has dtype {kind}", hint="save it as float32 or integers")
            return math.prod(part.get_shape()) * SAFETENSORS_ITEM[kind]

    def load(name: str) -> np.ndarray:
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(name)

    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
        return _named_source(request, names, size, load)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error, "safetensors") from None
