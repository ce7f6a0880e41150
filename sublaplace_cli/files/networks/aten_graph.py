"""A network that runs the graph of a torch.export file node by node.

torch.export.load is not used: it unpickles, evaluates expression strings, looks targets up in the whole torch module
and generates Python source from names in the file. Here a target must be listed in `aten_operators`, and names are only
dictionary keys.
"""

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from .aten_steps import GraphStep, Ref, filled, references
from .dry_run import dry_run, without_values

MOST_LEVELS = 50
SLACK = 1 << 29  # bytes above the limit for more rows than one: the caller bounds its rows by other means
FAILURES = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError)


@dataclass(frozen=True)
class GraphSignature:
    """What goes into and out of a graph, by the names in it."""

    stored: Mapping[str, str]  # parameters, buffers and constants: graph → exported name
    unsaved: set[str]  # exported names that are not in state_dict()
    constants: Mapping[str, Any]
    inputs: Mapping[str, tuple[int | None, ...]]  # shapes (None: any size)
    output: str


class AtenGraph(nn.Module):
    """Parameters and buffers under their exported names, and the steps from the inputs to the output."""

    def __init__(
        self, tensors: Mapping[str, Tensor], steps: Sequence[GraphStep], signature: GraphSignature, memory: int
    ) -> None:
        super().__init__()
        self._plain_steps, self._steps = steps, _through_layers(steps, signature.stored, tensors)
        bias_of = {step.layer: f"{step.layer}.bias" in tensors for step in self._steps if step.layer}
        for name, tensor in tensors.items():  # in the order of the file, which named_parameters() keeps
            _register(self, name, tensor, bias_of, persistent=name not in signature.unsaved)
        self._constants, self._inputs, self._output = signature.constants, signature.inputs, signature.output
        self._stored = [(name, operator.attrgetter(exported)) for name, exported in signature.stored.items()]
        self._memory = memory
        self._checked: set[tuple[Any, ...]] = set()
        self._has_run = False

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        inputs = self._checked_inputs(args, kwargs)
        try:
            self.check_shapes(inputs, self._memory + SLACK)
            found = self._run(inputs)
        except FAILURES as error:
            # The caller tries the first row in several ways, and batched derivatives.
            if not self._has_run or torch._C._are_functorch_transforms_active():
                raise
            shapes = " and ".join(str(tuple(tensor.shape)) for tensor in inputs.values())
            message = f"the exported network fails for an input of shape {shapes}: {str(error)[:200]}"
            raise UserError(message, hint="export it again with a free batch dimension") from error
        self._has_run = True
        return found

    def check_shapes(self, inputs: Mapping[str, Tensor], memory: int, with_gradients: bool = False) -> None:
        """Refuse inputs with which an operator gets wrong arguments or the results need more than `memory` bytes.

        With gradients, no result is released before the end; as with more rows than one, there is some slack.
        """
        stored = {name: read(self) for name, read in self._stored}
        masks = {name: int(tensor.sum()) for name, tensor in stored.items() if tensor.dtype == torch.bool}
        shapes = (*((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()), *masks.items())
        if shapes in self._checked:
            return
        own, rows = ({name: without_values(t) for name, t in tensors.items()} for tensors in (stored, inputs))
        steps, allowed = self._plain_steps, memory
        if with_gradients:
            steps, allowed = [replace(step, last_use_of=()) for step in steps], memory + SLACK
        dry_run(steps, {**self._constants, **own}, rows, masks, allowed)
        self._checked.add(shapes)

    def _run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        values = {**self._constants, **{name: read(self) for name, read in self._stored}, **inputs}
        device = next(iter(inputs.values())).device
        for step in self._steps:
            function = step.function if step.layer is None else operator.attrgetter(step.layer)(self)
            found = function(*filled(step.args, values, device), **filled(step.kwargs, values, device))
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


def _through_layers(
    steps: Sequence[GraphStep], stored: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> list[GraphStep]:
    """Each aten.linear calls an nn.Linear if its weight and bias have no other use, so that hooks see the layer."""
    uses = Counter(name for step in steps for name in references((step.args, step.kwargs)))
    owners = Counter(id(tensor) for tensor in tensors.values())
    inside = Counter(chain.from_iterable(_layers_around(name) for name in tensors))
    changed = []
    for step in steps:
        is_linear = step.function is torch.ops.aten.linear.default and not step.kwargs
        operands = [arg for arg in step.args[1:] if arg is not None] if is_linear else []
        names = [stored.get(arg.name, "") if isinstance(arg, Ref) and uses[arg.name] == 1 else "" for arg in operands]
        layer = names[0].rpartition(".")[0] if names else ""
        expected = [f"{layer}.weight", f"{layer}.bias"][: len(names)]
        is_alone = inside[layer] == len(names) and all(owners[id(tensors[name])] == 1 for name in names if name)
        if layer and names == expected and is_alone:
            step = replace(step, args=step.args[:1], layer=layer)
        changed.append(step)
    return changed


def _layers_around(name: str) -> Iterator[str]:
    """`a`, `a.b` for `a.b.weight`; a layer is not nested deeper than MOST_LEVELS."""
    parts = name.split(".", MOST_LEVELS)
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _register(root: nn.Module, name: str, tensor: Tensor, bias_of: Mapping[str, bool], *, persistent: bool) -> None:
    module, (*parts, leaf) = root, name.split(".")
    if len(parts) > MOST_LEVELS:
        raise UserError(f"'{name[:40]}…' is nested deeper than {MOST_LEVELS} levels")
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
