"""A second device for a machine that has none: its tensors live on the CPU, but nothing may know.

`install()` sets up PyTorch's PrivateUse1 hook from Python, for the whole process and for good: tests use it in a
process of their own. Inside `SecondDevice()` every operator on tensors of the device `standin` runs on the CPU
tensors that they wrap, with the numbers that the CPU gives. What CUDA would refuse is refused: tensors of both
devices in one operator, other than scalars and indices. What ran on the CPU alone is counted in `on_cpu`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
NAME = "standin"
# Indices may lie on the CPU while what they index does not; these copy from one device to the other.
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
COPYING = {aten.copy_, aten._to_copy, aten._copy_from_and_resize}


class MixedDevicesError(RuntimeError):
    """What CUDA says as: expected all tensors to be on the same device."""


class DeviceTensor(Tensor):
    """A tensor on the second device; `raw` is the CPU tensor that holds its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> DeviceTensor:
        wrapper = Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        wrapper.raw = raw
        return wrapper

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return run(func, args, kwargs, tensors_in((args, kwargs)))

    def tolist(self) -> Any:
        return self.raw.tolist()  # which PyTorch refuses to subclasses

    def data_ptr(self) -> int:
        return self.raw.data_ptr()  # by which curvlinops tells parameters apart

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"DeviceTensor({self.raw!r})"


class SecondDevice(TorchDispatchMode):
    """Makes tensors on the second device, and sees what is done on the CPU meanwhile."""

    def __init__(self, largest: int | None = None) -> None:
        super().__init__()
        self.on_cpu: Counter[str] = Counter()
        self.largest = largest  # bytes of a tensor for which there is still room
        self.refused = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_in((args, kwargs))
        result = run(func, args, kwargs, inputs)
        outputs = tensors_in(result)
        for leaf in outputs if self.largest is not None else []:
            size = leaf.numel() * leaf.element_size()
            if isinstance(leaf, DeviceTensor) and size > self.largest:
                self.refused += 1
                raise torch.OutOfMemoryError(f"injected: no room for {size} bytes")
        if DeviceTensor not in map(type, inputs + outputs):
            self.on_cpu[func.overloadpacket.__name__] += 1
        return result


def run(func: Any, args: Any, kwargs: Any, inputs: list[Tensor]) -> Any:
    """One operator on the CPU tensors inside, its results wrapped where the device would have made them."""
    mine = [leaf for leaf in inputs if isinstance(leaf, DeviceTensor)]
    if len(inputs) > len(mine) > 0 and func.overloadpacket not in COPYING:
        refuse_mixes(func, args, kwargs)
    on_device = bool(mine)
    if not mine and "device" not in kwargs:
        return func(*args, **kwargs)
    if kwargs.get("device") is not None:
        on_device = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*mapped(unwrapped, args), **mapped(unwrapped, kwargs))
    if func.overloadpacket is aten.copy_:
        return args[0]
    if not on_device:
        return result
    known = {id(leaf.raw): leaf for leaf in mine}  # what worked in place gives the same tensor again

    def wrapped(leaf: Any) -> Any:
        return known[id(leaf)] if id(leaf) in known else DeviceTensor(leaf)

    return mapped(wrapped, result)


def refuse_mixes(func: Any, args: Any, kwargs: Any) -> None:
    """The rule of CUDA: CPU tensors without dimensions go with everything, others with nothing but as indices."""
    if func.overloadpacket in INDEXING and isinstance(args[0], DeviceTensor):
        args = args[2:]
    for leaf in tensors_in((args, kwargs)):
        if not isinstance(leaf, DeviceTensor) and leaf.ndim:
            raise MixedDevicesError(f"{func}: a CPU tensor of shape {tuple(leaf.shape)} among tensors of the device")


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in the arguments or results of an operator."""
    found: list[Tensor] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list)):
            waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
    return found


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """`change` applied to every tensor inside tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)([mapped(change, item) for item in value])
    if isinstance(value, dict):
        return {key: mapped(change, item) for key, item in value.items()}
    return value


def unwrapped(leaf: Any) -> Any:
    return leaf.raw if isinstance(leaf, DeviceTensor) else leaf


def install() -> torch.device:
    """Register the device with PyTorch, once in a process."""
    _setup_privateuseone_for_python_backend(NAME)
    torch.__future__.set_swap_module_params_on_conversion(True)  # else .to(device) would untie tied weights
    LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
    LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
    return torch.device(NAME, 0)


# torch.tensor([…], device=…) and x[[0, 2]] make their tensors below every mode, by these two.
LIBRARY = torch.library.Library("aten", "IMPL")


def _empty_strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, **_: Any) -> Any:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    unwrapped(target).copy_(unwrapped(source))
    return target
