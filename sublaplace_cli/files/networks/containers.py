"""Inspects a file that is not trusted, without running it: its kind, the members of a zip, the globals of a pickle."""

import difflib
import io
import os
import pickle
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from ...errors import UserError
from ...sizes import format_bytes
from ..reading import check_directory

LEGACY_TORCH_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
LOCAL_HEADER_BYTES = 30
MOST_PICKLE_BYTES = 8 * 2**20  # names and shapes of 50,000 tensors; each byte may cost a microsecond and 60 bytes
MOST_GLOBALS = 1000
FOREIGN = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself (run `git lfs pull`)",
    b"\x89HDF": "an HDF5 file (Keras?)",
    b"\x93NUMPY": "a numpy array",
    b"\x1f\x8b": "a gzip file (unpack it first)",
    b"<": "an HTML or XML page (a failed download?)",
}
ITEM_BYTES = {
    **dict.fromkeys(("CharStorage", "ByteStorage", "BoolStorage", "UntypedStorage"), 1),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    "ComplexDoubleStorage": 16,
}
# Only for the message: torch.load(weights_only=True) decides whether a global may be used.
TORCH_DTYPES = {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"}
HARMLESS = {"collections.OrderedDict", "collections.Counter", "torch.nn.parameter.Parameter"}
HARMLESS |= {f"torch.{name}" for name in ("Size", "device", "Tensor", *ITEM_BYTES, *TORCH_DTYPES)}
# The exceptions that a damaged pickle can cause; any other one would be a bug here.
_WRONG_CONTENT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError)
DAMAGE = (*_WRONG_CONTENT, pickle.UnpicklingError, struct.error, zipfile.BadZipFile, EOFError, OSError, MemoryError)


def check_file(path: Path, what: str, memory: int) -> None:
    """Refuse a path that cannot be a file of `what`, or a file larger than the allowed memory."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected {what}")
    if not path.exists():
        raise UserError(f"{path}: no such file, expected {what}", hint=_near_names(path))
    if not path.is_file():
        raise UserError(f"{path}: is not a regular file, expected {what}")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: cannot be read", hint="check the file's permissions")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: is empty, expected {what}")
    refuse_above(memory, path.stat().st_size, f"{path}: has")


def refuse_above(memory: int, size: int, what: str, hint: str = "raise --memory if the machine has it") -> None:
    """Refuse `size` bytes if more than `memory`; `what` begins the message."""
    if size > memory:
        allowed = f"more than the allowed memory ({format_bytes(memory)})"
        raise UserError(f"{what} {format_bytes(size)}, {allowed}", hint=hint)


def _near_names(path: Path) -> str | None:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either"
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else None


def content_kind(path: Path) -> str:
    """'zip', 'legacy' (torch before 1.6), 'safetensors', 'pickle', or a description of something else."""
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head.startswith(LEGACY_TORCH_MAGIC):
        return "legacy"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= path.stat().st_size - 8:
        return "safetensors"
    for magic, description in FOREIGN.items():
        if head.lstrip().startswith(magic):
            return description
    return "pickle" if head[:1] == b"\x80" else f"of an unknown kind (it starts with {head[:8]!r})"


def open_zip(path: Path, what: str) -> zipfile.ZipFile:
    """Open a zip archive for its member names; call `check_members` before reading a member."""
    try:
        check_directory(path)
        return zipfile.ZipFile(path)
    except DAMAGE as error:
        message = f"{path}: is a damaged or truncated zip archive ({error}), expected {what}"
        raise UserError(message, hint="copy or save it again") from error


def check_members(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse members that are compressed, overlap, occur twice or claim more than the size of the file."""
    size, end = path.stat().st_size, 0
    seen: set[str] = set()
    # zipfile and torch's reader must see the same members: no bytes outside of them, no name twice.
    if archive.comment or (archive.infolist() and min(i.header_offset for i in archive.infolist()) != 0):
        raise _suspicious(path, "has bytes before its first or after its last member")
    if len({info.filename.split("/", 1)[0] for info in archive.infolist()}) > 1:
        raise _suspicious(path, "its members are not all in one folder")
    for info in sorted(archive.infolist(), key=lambda i: i.header_offset):
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise _suspicious(path, f"member '{info.filename}' is compressed, which torch never does")
        if info.flag_bits & 0x1:
            raise _suspicious(path, f"member '{info.filename}' is encrypted")
        if info.filename.casefold() in seen:  # torch's reader ignores case
            raise _suspicious(path, f"member '{info.filename}' occurs twice")
        if info.header_offset < end:
            raise _suspicious(path, f"member '{info.filename}' overlaps another one")
        end = info.header_offset + LOCAL_HEADER_BYTES + info.file_size
        if end > size:
            raise _suspicious(path, f"member '{info.filename}' is larger than the file")
        seen.add(info.filename.casefold())


def _suspicious(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: refused, {reason}", hint="save it again with torch")


def members_without_root(archive: zipfile.ZipFile) -> dict[str, str]:
    """Member name without the top folder of the archive → full name in the zip."""
    names = archive.namelist()
    one_root = len({name.split("/", 1)[0] for name in names}) == 1
    return {name.split("/", 1)[-1] if one_root else name: name for name in names}


@dataclass
class PickleFacts:
    """The full names of the globals, the bytes that each storage key claims, and the last value."""

    globals: set[str] = field(default_factory=set)
    storages: dict[str, int] = field(default_factory=dict)
    last: Any = None

    def needs_code(self) -> list[str]:
        return sorted(name for name in self.globals - HARMLESS if not name.startswith("torch._utils._rebuild_"))


class _Inert(dict[Any, Any]):
    """Replaces any class or function of the pickle: accepts everything, does nothing."""

    origin = ""
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def append(self, item: Any) -> None:
        pass

    __setstate__ = extend = add = append


# The pure Python unpickler: its memo is a dict, while the C one allocates up to any index in the file.
class _Inspector(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Any]] = {
        # bytearray8 allocates before it reads; extension codes bypass find_class.
        code: handler
        for code, handler in pickle._Unpickler.dispatch.items()
        if bytes([code]) not in (pickle.BYTEARRAY8, pickle.EXT1, pickle.EXT2, pickle.EXT4)
    }

    def __init__(self, file: IO[bytes], facts: PickleFacts) -> None:
        super().__init__(file, encoding="utf-8")
        self.facts = facts
        self.classes: dict[str, type[_Inert]] = {}

    def find_class(self, module: str, name: str) -> type[_Inert]:
        origin = f"{module}.{name}"
        if origin not in self.classes:
            if len(self.classes) >= MOST_GLOBALS:
                raise pickle.UnpicklingError(f"it names more than {MOST_GLOBALS} classes and functions")
            self.classes[origin] = type("Inert", (_Inert,), {"origin": origin})
            self.facts.globals.add(origin)
        return self.classes[origin]

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) > 1 and pid[0] == "module":
            return pid[1]  # a pickled module's class and its source; find_class has recorded it
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            raise pickle.UnpicklingError(f"unknown persistent id {str(pid)[:80]}")
        storage_type = getattr(pid[1], "origin", "").rpartition(".")[2]
        numel = pid[4]
        if type(pid[2]) is not str:  # torch tells 5 and "5" apart
            raise pickle.UnpicklingError(f"the key of a storage is {str(pid[2])[:40]}, expected a text")
        if storage_type not in ITEM_BYTES or type(numel) is not int or numel < 0:
            raise pickle.UnpicklingError(f"unknown storage {storage_type or pid[1]!r} of {numel!r} items")
        claimed = numel * ITEM_BYTES[storage_type]
        key = pid[2]
        self.facts.storages[key] = max(claimed, self.facts.storages.get(key, 0))
        return _Inert()


def inspect_pickles(file: IO[bytes], count: int) -> PickleFacts:
    """The facts of `count` pickles, one after the other in `file`."""
    facts, content = PickleFacts(), file.read(MOST_PICKLE_BYTES + 1)
    stream = io.BytesIO(content)
    try:
        for _ in range(count):
            facts.last = _Inspector(stream, facts).load()
    except EOFError:
        if len(content) <= MOST_PICKLE_BYTES:
            raise
        raise pickle.UnpicklingError(f"its pickle is larger than {format_bytes(MOST_PICKLE_BYTES)}") from None
    return facts
