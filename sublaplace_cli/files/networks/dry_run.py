"""Runs an exported graph on tensors without values, to find wrong arguments and results that are too large in time."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import UserError
from .aten_steps import GraphStep, Ref, filled
from .containers import refuse_above

META = torch.device("meta")


def without_values(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and type that takes no memory."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=META)


Values = Mapping[str, Any]


def dry_run(steps: Sequence[GraphStep], stored: Values, inputs: Values, masks: Mapping[str, int], memory: int) -> None:
    """Run the steps with torch's meta functions; at no time may the results need more than `memory` bytes.

    `masks`: how many entries of a stored mask are true. No step may change a stored tensor, not even through a view.
    """
    current = {**stored, **inputs}
    budget = _Budget(memory, current, frozenset(tensor.untyped_storage()._cdata for tensor in _tensors(stored)))
    with torch.no_grad(), budget:
        for step in steps:
            args, kwargs = filled(step.args, current, META), filled(step.kwargs, current, META)
            if step.function is torch.ops.aten.index.Tensor:
                args = (args[0], _without_masks(step.args[1], args[1], masks), *args[2:])
            found = _meta_function(step.function)(*args, **_on_meta(step.function, args, kwargs))
            results = dict(zip(step.results, found if step.unpack else (found,), strict=True))
            budget.add(results)
            current.update(results)
            budget.remove([current.pop(name) for name in step.last_use_of])


def _without_masks(named: Any, indices: Any, masks: Mapping[str, int]) -> list[Any]:
    """The indices, with each mask replaced by as many positions as it selects: one index per axis of the mask."""
    found: list[Any] = []
    for item, index in zip(named, indices, strict=True):
        is_mask = isinstance(item, Ref) and item.name in masks
        positions = torch.empty(masks[item.name], dtype=torch.int64, device=META) if is_mask else index
        found += [positions] * (index.dim() if is_mask else 1)
    return found


def _meta_function(function: Callable[..., Any]) -> Callable[..., Any]:
    # Real tensors may have other strides, with which a view is possible; torch refuses an impossible one there.
    return torch.ops.aten.reshape.default if function is torch.ops.aten.view.default else function


def _on_meta(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; an operator that makes a tensor out of numbers only is given the device."""
    if not isinstance(function, torch._ops.OpOverload) or next(_tensors((args, kwargs)), None) is not None:
        return kwargs
    takes_device = any(argument.name == "device" for argument in function._schema.arguments)
    return {**kwargs, "device": META} if takes_device else kwargs


def _tensors(values: Any) -> Iterator[Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, Tensor))


class _Budget(TorchDispatchMode):
    """Bounds each result, also those inside of an operator, together with the results that are still needed."""

    def __init__(self, memory: int, initial: Mapping[str, Any], frozen: frozenset[int]) -> None:
        super().__init__()
        self._memory, self._bytes, self._frozen = memory, 0, frozen
        # The number of values in each storage (views share one). Those of the caller are never released: one more.
        self._users = Counter(2 * [tensor.untyped_storage()._cdata for tensor in _tensors(initial)])

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # its import takes seconds, and nothing is compiled here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable and any(t.untyped_storage()._cdata in self._frozen for t in _tensors(args[:1])):
            raise UserError(f"{func} changes a stored tensor", hint="call model.eval() before exporting it")
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default and found.dtype == torch.float64:
            # The kernel writes out every patch of the input.
            patches = args[0].shape[1] * math.prod(args[1].shape[2:]) * found.numel() // max(1, found.shape[1])
            refuse_above(self._memory, 8 * patches, "the patches of a convolution need")
        for tensor in _tensors(found):
            others = 0 if self._users[tensor.untyped_storage()._cdata] else self._bytes
            needed = others + tensor.numel() * tensor.element_size()
            refuse_above(self._memory, needed, f"the results up to {func} need")
        return found

    def add(self, values: Any) -> None:
        for storage in (tensor.untyped_storage() for tensor in _tensors(values)):
            self._bytes += 0 if self._users[storage._cdata] else storage.nbytes()
            self._users[storage._cdata] += 1

    def remove(self, values: Any) -> None:
        for storage in (tensor.untyped_storage() for tensor in _tensors(values)):
            self._users[storage._cdata] -= 1
            self._bytes -= 0 if self._users[storage._cdata] else storage.nbytes()
