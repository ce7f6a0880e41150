"""Network + rows → outputs and Jacobian blocks: formulas where a layer has one, the general path for the rest.

The formulas are compared with plain autograd on a few rows before each run; a layer that fails the comparison
(its weight is also used elsewhere, say) takes the general path, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..errors import NumericsError
from .blocks import Block, DenseBlock, kept_bytes
from .checks import non_finite_outputs, require_sound_network
from .forward import Inputs, activation_count, map_inputs, outputs
from .general import Gradients, batched_jacobian, rowwise_jacobian, summed_gradients
from .layout import Layout, Parameter
from .structure import Layer, layer_blocks, recognise

# Working memory of one pass, and its rows: more gain no speed. Fixed numbers keep the bits independent of how
# much memory happens to be free, as long as there is enough.
PASS_BYTES = 256 * 2**20
MOST_ROWS_PER_PASS = 4096
CHECKED_ROWS = 2  # rows on which the formulas are compared with plain autograd


@dataclass(frozen=True)
class Captured:
    """One pass: outputs (m, C) float64 and the blocks, in the order of the flat vector."""

    f: Tensor
    blocks: list[Block]


@dataclass(frozen=True)
class Capture:
    """The way in which this network is differentiated."""

    model: nn.Module
    layout: Layout
    n_outputs: int
    layers: tuple[Layer, ...]
    rest: tuple[Parameter, ...]  # parameters without a formula
    batched: bool = True  # False: the rest row by row, because vmap could not take the network
    rows_per_pass: int = 1
    pattern: tuple[Block, ...] = ()  # the blocks of one row
    notes: tuple[str, ...] = field(default=())

    def __call__(self, inputs: Inputs) -> Captured:
        f, blocks = self._by_formula(inputs)
        if self.rest:
            general_f, J = self._by_general_path(inputs)
            f = general_f if f is None else f
            blocks += [DenseBlock(q.offset, J[q.name].reshape(*f.shape, q.size)) for q in self.rest]
        assert f is not None, "there is at least one parameter"
        blocks.sort(key=lambda block: block.start)
        self._refuse_non_finite(f, blocks, inputs)
        return Captured(f.double(), blocks)

    def _by_formula(self, inputs: Inputs) -> tuple[Tensor | None, list[Block]]:
        return layer_blocks(self.model, self.layers, self.n_outputs, inputs) if self.layers else (None, [])

    def _by_general_path(self, inputs: Inputs) -> tuple[Tensor, Gradients]:
        differentiate = batched_jacobian if self.batched else rowwise_jacobian
        return differentiate(self.model, [q.name for q in self.rest], self.n_outputs, inputs)

    def _refuse_non_finite(self, f: Tensor, blocks: Sequence[Block], inputs: Inputs) -> None:
        if not bool(torch.isfinite(f).all()):
            raise NumericsError(non_finite_outputs(self.model, f, inputs))
        for block in blocks:
            for values in block.tensors().values():
                # A sum is finite only if all of it is, and quicker to look at.
                if not bool(torch.isfinite(values.sum())) and not bool(torch.isfinite(values).all()):
                    row = int((~torch.isfinite(values.flatten(1)).all(1)).nonzero()[0])
                    name = self._name_at(block.start)
                    raise NumericsError(
                        f"the gradient with respect to '{name}' is not finite (row {row} of the pass)",
                        hint="look for a division by zero, sqrt(0) or log(0) in that layer, or try --dtype float64",
                    )

    def _name_at(self, start: int) -> str:
        return next(q.name for q in self.layout.parameters if q.offset == start)


def prepare_capture(model: nn.Module, layout: Layout, sample: Inputs, memory: int) -> Capture:
    """Check the network on a few rows and decide how to differentiate it."""
    f = require_sound_network(model, sample)
    C = f.shape[1]
    few = map_inputs(lambda t: t[:CHECKED_ROWS], sample)
    layers, notes = _trusted_layers(model, layout, C, sample)
    covered = {name for layer in layers for name in layer.parameters}
    rest = tuple(q for q in layout.parameters if q.name not in covered)
    capture = Capture(model, layout, C, tuple(layers), rest, notes=tuple(notes))
    if rest and not _batches(capture, few):
        why = "some of it cannot be differentiated in batches (torch.func.vmap) and goes row by row, which is slower"
        capture = replace(capture, batched=False, notes=(*notes, f"the network: {why}"))
    one = map_inputs(lambda t: t[:1], few)
    capture = replace(capture, pattern=tuple(capture(one).blocks))
    return replace(capture, rows_per_pass=_rows_per_pass(capture, one, memory))


def _trusted_layers(model: nn.Module, layout: Layout, C: int, sample: Inputs) -> tuple[list[Layer], list[str]]:
    """The layers whose formula gives what plain autograd gives, and a note on each that did not.

    Row by row for a few rows, and in sum over all rows of the sample: a weight that is used once more, for some
    rows only, shows there.
    """
    layers, notes = recognise(model, layout, sample), []
    if not layers:
        return [], []
    few = map_inputs(lambda t: t[:CHECKED_ROWS], sample)
    names = [name for layer in layers for name in layer.parameters]
    _, truth = rowwise_jacobian(model, names, C, few)
    found = _by_parameter(layer_blocks(model, layers, C, few)[1], layout)
    total_truth = summed_gradients(model, names, sample)
    totals = _by_parameter(layer_blocks(model, layers, C, sample)[1], layout)
    for layer in list(layers):
        wrong = _wrong(layer, found, truth) or _wrong(layer, {n: t.sum((0, 1)) for n, t in totals.items()}, total_truth)
        if wrong:
            layers.remove(layer)
            notes.append(
                f"layer '{layer.name}': its formula does not give the gradient of {', '.join(wrong)} (is the weight "
                "used elsewhere too?); it takes the general path"
            )
    return layers, notes


def _wrong(layer: Layer, found: dict[str, Tensor], truth: Gradients) -> list[str]:
    """Parameters of a layer whose gradients differ by more than rounding, judged by the size of the layer's own."""
    size = max(float(truth[name].abs().max()) for name in layer.parameters)
    tolerance = (1e-3 if truth[layer.parameters[0]].dtype != torch.float64 else 1e-9) * size
    return [
        name
        for name in layer.parameters
        if name not in found or float((found[name] - truth[name].reshape(found[name].shape)).abs().max()) > tolerance
    ]


def _by_parameter(blocks: Sequence[Block], layout: Layout) -> dict[str, Tensor]:
    """Gradients by parameter name (m, C, size), out of blocks that hold one or two each."""
    found = {}
    for block in (block.dense() for block in blocks):
        for q in layout.parameters:
            if block.start <= q.offset and q.span.stop <= block.span.stop:
                found[q.name] = block.values[:, :, q.offset - block.start : q.span.stop - block.start]
    return found


def _batches(capture: Capture, few: Inputs) -> bool:
    try:
        capture._by_general_path(few)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False  # data-dependent control flow, an operator without a batching rule, …
    return True


def _rows_per_pass(capture: Capture, one: Inputs, memory: int) -> int:
    with torch.no_grad():
        itemsize = outputs(capture.model, one).element_size()
    activations, C = activation_count(capture.model, one), capture.n_outputs
    kept = sum(kept_bytes(block) for block in capture.pattern)
    # Inputs and gradients of each layer, the gradients C-fold; what is kept exists twice while it is put together.
    row_bytes = 2 * kept + itemsize * ((3 + 2 * C) * activations + 2 * C * sum(q.size for q in capture.rest))
    rows = MOST_ROWS_PER_PASS
    while rows > 1 and rows * row_bytes > min(PASS_BYTES, memory // 4):
        rows //= 2
    return rows
