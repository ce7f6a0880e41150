"""Which layers of a network have a formula; their inputs and output gradients by one forward and C backward passes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import RunError
from ..network.forward import Inputs, outputs, row_count
from ..network.layout import Layout
from .blocks import Block
from .formulas import Formula, Spans, formula_of


@dataclass(frozen=True)
class Layer:
    """A layer with a formula, and the positions of its trainable parameters in the flat vector."""

    name: str
    module: nn.Module
    formula: Formula
    spans: Spans
    copy_input: bool = False  # the network later changes this layer's input in place
    copy_output: bool = False  # … or its output

    @property
    def start(self) -> int:
        return min(span.start for span in self.spans.values())

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{own}" if self.name else own for own in self.spans)


@dataclass
class _Call:
    layer: Layer
    a: Tensor
    out: Tensor
    versions: tuple[int, int]


def recognise(model: nn.Module, layout: Layout, sample: Inputs) -> list[Layer]:
    """Layers that ran once, on all rows, and whose parameters are used nowhere else."""
    uses = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
    spans = {parameter.name: parameter.span for parameter in layout.parameters}
    candidates = []
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        formula = formula_of(module)
        placed = {key: spans[full] for key in own if (full := f"{name}.{key}" if name else key) in spans}
        if formula is not None and placed and all(uses[id(tensor)] == 1 for tensor in own.values()):
            candidates.append(Layer(name, module, formula, placed))
    with torch.enable_grad(), _listening(candidates) as calls:
        outputs(model, sample)
    ran = Counter(call.layer.name for call in calls)
    rows, layers = row_count(sample), []
    for call in calls:
        if ran[call.layer.name] == 1 and len(call.a) == rows == len(call.out) and call.out.requires_grad:
            changed = [tensor._version != v for tensor, v in zip((call.a, call.out), call.versions, strict=True)]
            layers.append(replace(call.layer, copy_input=changed[0], copy_output=changed[1]))
    return layers


def layer_blocks(
    model: nn.Module,
    layers: Sequence[Layer],
    C: int,
    inputs: Inputs,
    watch: AbstractContextManager | None = None,
    U: Tensor | None = None,
) -> tuple[Tensor, list[Block]]:
    """(f (m, C), blocks of all these layers): one forward, within `watch`, one backward per output or column of U."""
    with torch.enable_grad(), _listening(layers) as calls, watch or nullcontext():
        f = outputs(model, inputs)
    for layer in layers:
        seen = [len(call.a) for call in calls if call.layer.name == layer.name]
        if seen != [len(f)]:
            raise RunError(
                f"layer '{layer.name}' ran {len(seen)} times, on {seen} of {len(f)} rows; on the rows that were "
                "checked at the start it ran once, on all of them",
                hint="a network that treats some rows differently cannot be differentiated in batches: write it so "
                "that every row passes through the same layers",
            )
    probes = [call.out for call in calls]
    count = C if U is None else U.shape[2]

    def wanted(i: int) -> Tensor:
        return f[:, i].sum() if U is None else (f * U[:, :, i].to(f)).sum()

    each = [  # by output, the gradients of all layers
        torch.autograd.grad(wanted(i), probes, retain_graph=i < count - 1, materialize_grads=True) for i in range(count)
    ]
    blocks: list[Block] = []
    for i, call in enumerate(calls):
        of_layer = [gradients[i] for gradients in each]
        deltas = of_layer[0].unsqueeze(1) if count == 1 else torch.stack(of_layer, dim=1)  # (m, C, …)
        blocks += call.layer.formula(call.layer.module, call.layer.spans, call.a, deltas)
    return f.detach(), blocks


@contextmanager
def _listening(layers: Sequence[Layer]) -> Iterator[list[_Call]]:
    calls: list[_Call] = []

    def keep(layer: Layer, args: tuple[Any, ...], out: Tensor) -> Tensor:
        a = args[0].detach()
        calls.append(_Call(layer, a.clone() if layer.copy_input else a, out, (a._version, out._version)))
        # Later layers may change the output in place: they get a copy, and the gradient is taken at the original.
        return out.clone() if layer.copy_output else out

    hooks = [
        layer.module.register_forward_hook(
            lambda _m, args, named, out, layer=layer: keep(layer, (*args, *named.values()), out), with_kwargs=True
        )
        for layer in layers
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
