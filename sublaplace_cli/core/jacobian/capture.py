"""Network + rows → outputs and Jacobian blocks: formulas where a layer has one, the general path for the rest.

The formulas are compared with plain autograd before each run; a layer that fails the comparison (its weight is
also used elsewhere, say) takes the general path, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ...errors import NumericsError
from ..network.checks import non_finite_outputs, require_sound_network
from ..network.forward import Inputs, evenly_spaced, row_count
from ..network.layout import Layout, Parameter
from .autograd import Gradients, batched_jacobian, combined_gradients, rowwise_jacobian
from .blocks import Block, DenseBlock, joined
from .footprint import peak_bytes
from .layer_io import Layer, layer_blocks, recognise

# Working memory of one pass, and its rows: more gain no speed, but with fewer than some rows kernels are slow, so
# that these may take more. Fixed numbers keep the bits independent of how much memory happens to be free, as long
# as there is enough.
PASS_BYTES = 160 * 2**20
MOST_PASS_BYTES = 640 * 2**20
FEW_ROWS = 16
MOST_ROWS_PER_PASS = 4096
PASSES = 3  # at least so many over a split, as far as it has rows for them: several processes can share them
LEAST_ROWS = 8
CHECKED_ROWS = 4  # rows whose pass is watched for the memory it takes and compared with plain autograd


@dataclass(frozen=True)
class Captured:
    """One pass: outputs (m, C) float64 and the blocks, in the order of the flat vector."""

    f: Tensor
    blocks: list[Block]


def joined_passes(passes: Sequence[Captured]) -> Captured:
    """Several passes over neighbouring rows as one."""
    if len(passes) == 1:
        return passes[0]
    blocks = [joined(parts) for parts in zip(*(q.blocks for q in passes), strict=True)]
    return Captured(torch.cat([q.f for q in passes]), blocks)


@dataclass(frozen=True)
class Capture:
    """The way in which this network is differentiated."""

    model: nn.Module
    layout: Layout
    n_outputs: int
    layers: tuple[Layer, ...]
    rest: tuple[Parameter, ...]  # parameters without a formula
    batched: bool = True  # False: the rest row by row, because vmap could not take the network
    row_bytes: int = 0  # memory that one row of a pass takes
    rows_per_pass: int = 1
    templates: tuple[Block, ...] = ()  # the blocks of one row
    notes: tuple[str, ...] = field(default=())

    def rows_of_pass(self, n_rows: int) -> int:
        """Rows of each pass over a split of `n_rows`: a power of two that depends on nothing but the network, the
        split and, where memory is short, on that."""
        rows = self.rows_per_pass
        while rows > LEAST_ROWS and rows * PASSES > n_rows:
            rows //= 2
        return rows

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
    C = require_sound_network(model, sample).shape[1]
    few = evenly_spaced(sample, CHECKED_ROWS)
    u = torch.randn(row_count(few), C, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    truth = combined_gradients(model, [q.name for q in layout.parameters], u, few)
    capture = _with_layers(Capture(model, layout, C, (), layout.parameters), recognise(model, layout, sample), few)
    while True:
        blocks: list[Block] = []
        peak = peak_bytes(lambda: blocks.extend(capture(few).blocks))  # noqa: B023
        wrong = _wrong_layers(capture, _combined(blocks, u, layout), truth)
        if not wrong:
            break
        notes = [
            f"layer '{layer.name}': its formula does not give the gradient of {', '.join(names)} (is the weight "
            "used elsewhere too?); it takes the general path"
            for layer, names in wrong
        ]
        suspects = {layer.name for layer, _ in wrong}
        trusted = [layer for layer in capture.layers if layer.name not in suspects]
        capture = _with_layers(replace(capture, notes=(*capture.notes, *notes)), trusted, few)
    row_bytes = peak // row_count(few)
    templates = tuple(block.rows(0, 1) for block in blocks)
    return replace(capture, templates=templates, row_bytes=row_bytes, rows_per_pass=rows_within(row_bytes, memory))


def _with_layers(capture: Capture, layers: Sequence[Layer], few: Inputs) -> Capture:
    """These layers by formula, everything else by the general path, in batches if it can be."""
    covered = {name for layer in layers for name in layer.parameters}
    rest = tuple(q for q in capture.layout.parameters if q.name not in covered)
    capture = replace(capture, layers=tuple(layers), rest=rest)
    if rest and capture.batched and not _batches(capture, few):
        why = "some of it cannot be differentiated in batches (torch.func.vmap) and goes row by row, which is slower"
        capture = replace(capture, batched=False, notes=(*capture.notes, f"the network: {why}"))
    return capture


def rows_within(row_bytes: int, memory: int) -> int:
    """Rows of one pass, given what one of them takes: a power of two."""
    rows, few = MOST_ROWS_PER_PASS, 1
    while rows > 1 and rows * row_bytes > min(PASS_BYTES, memory // 4):
        rows //= 2
    while few < FEW_ROWS and 2 * few * row_bytes <= min(MOST_PASS_BYTES, memory // 4):
        few *= 2
    return max(rows, few)


def _wrong_layers(capture: Capture, found: Gradients, truth: Gradients) -> list[tuple[Layer, list[str]]]:
    """Layers whose formula does not give what plain autograd gives, each with the parameters concerned.

    Both are Jᵀu for a random u, which is enough to judge all of J, for every row and output at once: an error
    anywhere in it would have to be orthogonal to u. On the side of autograd that is one backward pass.
    """
    general = [q.name for q in capture.rest]
    if wrong := _differing(general, found, truth):
        raise NumericsError(
            f"the gradient of {', '.join(wrong[:5])} by torch.func is not that of a plain backward pass",
            hint="a custom autograd function whose backward depends on the batch can do that; try --dtype float64",
        )
    judged = [(layer, _differing(layer.parameters, found, truth)) for layer in capture.layers]
    return [(layer, names) for layer, names in judged if names]


def _differing(names: Sequence[str], found: Gradients, truth: Gradients) -> list[str]:
    """Those of these parameters that differ by more than rounding, judged by the size of the largest among them."""
    if not names:
        return []
    size = max(float(truth[name].abs().max()) for name in names)
    tolerance = (1e-3 if truth[names[0]].dtype != torch.float64 else 1e-9) * size
    return [n for n in names if n not in found or float((found[n] - truth[n].flatten()).abs().max()) > tolerance]


def _combined(blocks: Sequence[Block], u: Tensor, layout: Layout) -> Gradients:
    """Jᵀu by parameter name, out of blocks that hold one or two each."""
    found = {}
    for block in blocks:
        pulled = block.pull(u.reshape(-1, 1).to(next(iter(block.tensors().values())).device)).squeeze(1)
        for q in layout.parameters:
            if block.start <= q.offset and q.span.stop <= block.span.stop:
                found[q.name] = pulled[q.offset - block.start : q.span.stop - block.start]
    return found


def _batches(capture: Capture, few: Inputs) -> bool:
    try:
        capture._by_general_path(few)
    except torch.OutOfMemoryError:
        raise  # says nothing about batches
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False  # data-dependent control flow, an operator without a batching rule, …
    return True
