"""A network that runs the graph of a torch.export file node by node.

torch.export.load is not used: it unpickles, evaluates expression strings, looks targets up in the whole torch module
and generates Python source from names in the file. Here a target must be listed in `aten_operators`, and names are only
dictionary keys.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError


@dataclass(frozen=True)
class Ref:
    """An earlier value, by its name in the graph."""

    name: str


class InputDevice:
    """Replaces a device in the file by that of the input, so that the network can be moved."""


@dataclass(frozen=True)
class GraphStep:
    """One node: the function, its arguments, the names of its results, and the values it is the last to use."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str, ...]
    unpack: bool
    last_use_of: tuple[str, ...] = ()
    layer: str | None = None


class AtenGraph(nn.Module):
    """Parameters and buffers under their exported names, and the steps from the inputs to the output."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        constants: Mapping[str, Any],
        stored: Mapping[str, str],
        inputs: Mapping[str, tuple[int | None, ...]],
        steps: Sequence[GraphStep],
        output: str,
        unsaved: set[str],
    ) -> None:
        """`stored`: graph → exported name; `inputs`: name → shape (None: any size); `unsaved`: not in state_dict()."""
        super().__init__()
        self._steps = _through_layers(steps, stored, tensors)
        bias_of = {step.layer: f"{step.layer}.bias" in tensors for step in self._steps if step.layer}
        for name, tensor in tensors.items():  # in the order of the file, which named_parameters() keeps
            _register(self, name, tensor, bias_of, persistent=name not in unsaved)
        self._constants = dict(constants)
        self._stored = [(name, operator.attrgetter(exported)) for name, exported in stored.items()]
        self._inputs = dict(inputs)
        self._output = output

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        values = dict(self._constants)
        values.update((name, read(self)) for name, read in self._stored)
        values.update(self._checked_inputs(args, kwargs))
        device = values[next(iter(self._inputs))].device
        for step in self._steps:
            function = step.function if step.layer is None else operator.attrgetter(step.layer)(self)
            found = function(*_filled(step.args, values, device), **_filled(step.kwargs, values, device))
            values.update(zip(step.results, found if step.unpack else (found,), strict=True))
            for name in step.last_use_of:
                del values[name]
        return values[self._output]

    def _checked_inputs(self, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = list(self._inputs)
        tensors = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(args) + len(kwargs) != len(names) or set(tensors) != set(names):
            expected = f"the exported network takes {len(names)} inputs ({', '.join(names)})"
            raise UserError(f"{expected}, found {len(args)} without a name and the names {sorted(kwargs)}")
        for name, sizes in self._inputs.items():
            found = tuple(tensors[name].shape)
            if len(found) != len(sizes) or any(size not in (None, n) for size, n in zip(sizes, found, strict=True)):
                shape = ", ".join("any" if size is None else str(size) for size in sizes)
                raise UserError(f"input '{name}' of the exported network: found shape {found}, expected ({shape})")
        return tensors


def _filled(value: Any, values: Mapping[str, Any], device: torch.device) -> Any:
    if isinstance(value, Ref):
        return values[value.name]
    if isinstance(value, InputDevice):
        return device
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(item, values, device) for item in value)
    if isinstance(value, Mapping):
        return {key: _filled(item, values, device) for key, item in value.items()}
    return value


def references(value: Any) -> Iterator[str]:
    """The names of all earlier values inside an argument."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from references(item)


def _through_layers(
    steps: Sequence[GraphStep], stored: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> list[GraphStep]:
    """Each aten.linear calls an nn.Linear if its weight and bias have no other use, so that hooks see the layer."""
    uses = Counter(name for step in steps for name in references((step.args, step.kwargs)))
    owners = Counter(id(tensor) for tensor in tensors.values())
    changed = []
    for step in steps:
        is_linear = step.function is torch.ops.aten.linear.default and not step.kwargs
        operands = [arg for arg in step.args[1:] if arg is not None] if is_linear else []
        names = [stored.get(arg.name, "") if isinstance(arg, Ref) and uses[arg.name] == 1 else "" for arg in operands]
        layer = names[0].rpartition(".")[0] if names else ""
        inside = {name for name in tensors if name.startswith(f"{layer}.")}
        expected = [f"{layer}.weight", f"{layer}.bias"][: len(names)]
        if layer and inside == set(names) and names == expected and all(owners[id(tensors[n])] == 1 for n in names):
            step = replace(step, args=step.args[:1], layer=layer)
        changed.append(step)
    return changed


def _register(root: nn.Module, name: str, tensor: Tensor, bias_of: Mapping[str, bool], *, persistent: bool) -> None:
    module, (*parts, leaf) = root, name.split(".")
    for depth, part in enumerate(parts, start=1):
        if part not in module._modules:
            path = ".".join(parts[:depth])
            module.add_module(part, _empty_linear(bias_of[path]) if path in bias_of else nn.Module())
        module = module.get_submodule(part)
    if not isinstance(tensor, nn.Parameter):
        module.register_buffer(leaf, tensor, persistent=persistent)
        return
    module.register_parameter(leaf, tensor)
    if isinstance(module, nn.Linear) and leaf == "weight":
        module.out_features, module.in_features = tensor.shape


def _empty_linear(bias: bool) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=bias, device="meta")
    # the exported tensors are registered under these names
    del layer.weight
    if bias:
        del layer.bias
    return layer
