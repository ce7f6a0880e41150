"""Inspects a torch pickle without running it: the globals it names, the sizes its storages claim."""

import pickle
import struct
import zipfile
from dataclasses import dataclass, field
from typing import IO, Any, ClassVar, Self

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


@dataclass
class PickleFacts:
    """The full names of the globals, and the bytes that each storage key claims."""

    globals: set[str] = field(default_factory=set)
    storages: dict[str, int] = field(default_factory=dict)

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

    def find_class(self, module: str, name: str) -> type[_Inert]:
        self.facts.globals.add(f"{module}.{name}")
        return type("Inert", (_Inert,), {"origin": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) > 1 and pid[0] == "module":
            return pid[1]  # a pickled module's class and its source; find_class has recorded it
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            raise pickle.UnpicklingError(f"unknown persistent id {str(pid)[:80]}")
        storage_type = getattr(pid[1], "origin", "").rpartition(".")[2]
        numel = pid[4]
        if storage_type not in ITEM_BYTES or type(numel) is not int or numel < 0:
            raise pickle.UnpicklingError(f"unknown storage {storage_type or pid[1]!r} of {numel!r} items")
        claimed = numel * ITEM_BYTES[storage_type]
        key = str(pid[2])
        self.facts.storages[key] = max(claimed, self.facts.storages.get(key, 0))
        return _Inert()


def inspect_pickles(file: IO[bytes], count: int) -> PickleFacts:
    """The facts of `count` pickles, one after the other in `file`."""
    facts = PickleFacts()
    for _ in range(count):
        _Inspector(file, facts).load()
    return facts
