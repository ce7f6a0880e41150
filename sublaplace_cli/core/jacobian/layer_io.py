"""Layers with a formula: their inputs and output gradients by one forward and C backward passes."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import RunError
from ..network.forward import Inputs, outputs, row_count
from .blocks import Block
from .formulas import Formula, Spans


class RowAxis(Enum):
    """What the first axis of a layer's input and output is."""

    OWN = "the rows"
    ONE = "of length 1: all rows share the input"  # token ids of shape (1, T)
    NONE = "something else: all rows share an input without an axis for them"  # token ids of shape (T,)


@dataclass(frozen=True)
class Layer:
    """A layer with a formula, and the positions of its trainable parameters in the flat vector."""

    name: str
    module: nn.Module
    formula: Formula
    spans: Spans
    copy_input: bool = False  # the network later changes this layer's input in place
    copy_output: bool = False  # … or its output
    row_axis: RowAxis = RowAxis.OWN
    input_axes: int = 0  # of a shared input

    @property
    def start(self) -> int:
        return min(span.start for span in self.spans.values())

    @property
    def repeated(self) -> bool:
        return self.row_axis is not RowAxis.OWN

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{own}" if self.name else own for own in self.spans)


@dataclass
class Call:
    """What went into a layer and came out of it, repeated for each row where all rows share it."""

    layer: Layer
    a: Tensor
    out: Tensor
    versions: tuple[int, int]


def layer_blocks(
    model: nn.Module,
    layers: Sequence[Layer],
    C: int,
    inputs: Inputs,
    watch: AbstractContextManager | None = None,
    U: Tensor | None = None,
) -> tuple[Tensor, list[Block]]:
    """(f (m, C), blocks of all these layers): one forward, within `watch`, one backward per output or column of U."""
    with torch.enable_grad(), listening(layers, row_count(inputs)) as calls, watch or nullcontext():
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
def listening(layers: Sequence[Layer], rows: int) -> Iterator[list[Call]]:
    """Collects the calls of these layers; what follows a shared layer gets its output once per row.

    Broadcasting gives the network the same values either way, and autograd then gives one gradient per row.
    """
    calls: list[Call] = []

    def keep(layer: Layer, args: tuple[Any, ...], out: Tensor) -> Tensor:
        a, versions = args[0].detach(), (args[0]._version, out._version)
        a = a.clone() if layer.copy_input else a
        if layer.repeated:
            new_axis = layer.row_axis is RowAxis.NONE and a.ndim == layer.input_axes
            a, out = (_per_row(tensor, rows, new_axis) for tensor in (a, out))
        calls.append(Call(layer, a, out, versions))
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


def _per_row(tensor: Tensor, rows: int, new_axis: bool) -> Tensor:
    """A view with one entry per row; a layer before this one may have repeated it already."""
    tensor = tensor.unsqueeze(0) if new_axis else tensor
    return tensor.expand(rows, *tensor.shape[1:]) if len(tensor) == 1 else tensor
