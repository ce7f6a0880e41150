"""Network + rows → outputs and Jacobian blocks: formulas where a layer has one, the general path for the rest."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from ...errors import NumericsError, Reason
from ..network.checks import non_finite_outputs, require_sound_network
from ..network.footprint import PeakMemory
from ..network.forward import Inputs, evenly_spaced, outputs, row_count
from ..network.layout import Layout, Parameter
from .autograd import Gradients, batched_jacobian, combined_gradients, rowwise_jacobian
from .blocks import Block, DenseBlock, joined
from .layer_io import Layer, layer_blocks
from .recognition import recognise

# Working memory of one pass, and its rows. Larger passes are no faster; kernels are slow with very few rows, so a few
# rows may use more memory. The numbers are fixed so that the bits do not depend on how much memory is free.
PASS_BYTES = 160 * 2**20
MOST_PASS_BYTES = 640 * 2**20
FEW_ROWS = 16
MOST_ROWS_PER_PASS = 4096
PASSES = 3  # at least this many over a split with enough rows, so that several processes can divide them
LEAST_ROWS = 8
SAMPLE_ROWS = 8  # evenly spaced over the data: the network is checked on them before the work starts
NAMED_IN_A_NOTE = 5  # layers in a note
CHECKED_ROWS = 4  # rows whose pass is measured for its memory and compared with plain autograd


@dataclass(frozen=True)
class Captured:
    """One pass: outputs (m, C) float64 and the blocks, in the order of the flat vector."""

    f: Tensor
    blocks: list[Block]

    @cached_property
    def tensors(self) -> list[dict[str, Tensor]]:
        return [block.tensors() for block in self.blocks]

    def some_rows(self, rows: Sequence[int]) -> Self:
        """These rows of the pass, by number."""
        chosen = torch.as_tensor(rows, device=self.f.device)
        parts = [{name: t.index_select(0, chosen) for name, t in own.items()} for own in self.tensors]
        blocks = [block.with_tensors(own) for block, own in zip(self.blocks, parts, strict=True)]
        return replace(self, f=self.f.index_select(0, chosen), blocks=blocks)

    def with_rows(self, rows: Sequence[int], other: Self) -> Self:
        """The pass with these rows replaced by those of another one, in its own dtype."""
        at = torch.as_tensor(rows, device=self.f.device)
        blocks = [
            block.with_tensors({name: t.index_copy(0, at, theirs[name].to(t.dtype)) for name, t in own.items()})
            for block, own, theirs in zip(self.blocks, self.tensors, other.tensors, strict=True)
        ]
        return replace(self, f=self.f.index_copy(0, at, other.f), blocks=blocks)


def joined_passes(passes: Sequence[Captured]) -> Captured:
    """Several passes over neighbouring rows as one."""
    if len(passes) == 1:
        return passes[0]
    blocks = [joined(parts) for parts in zip(*(one.blocks for one in passes), strict=True)]
    return Captured(torch.cat([one.f for one in passes]), blocks)


@dataclass(frozen=True)
class Capture:
    """How this network is differentiated."""

    model: nn.Module
    layout: Layout
    n_outputs: int
    layers: tuple[Layer, ...]
    rest: tuple[Parameter, ...]  # parameters without a formula
    batched: bool = True  # False: the rest row by row, because vmap cannot handle the network
    row_bytes: int = 0  # memory per row of a pass
    rows_per_pass: int = 1
    templates: tuple[Block, ...] = ()  # the blocks of one row
    notes: tuple[str, ...] = ()

    def rows_of_pass(self, n_rows: int) -> int:
        """Rows of each pass over a split of `n_rows`: a power of two."""
        rows = self.rows_per_pass
        while rows > LEAST_ROWS and rows * PASSES > n_rows:
            rows //= 2
        return rows

    def restricted_to(self, S: Tensor) -> Self:
        """The same for only the layers and parameters that hold some of the flat indices S."""

        def holds(span: slice) -> bool:
            return bool(((span.start <= S) & (span.stop > S)).any())

        layers = tuple(layer for layer in self.layers if any(map(holds, layer.spans.values())))
        rest = tuple(parameter for parameter in self.rest if holds(parameter.span))
        starts = {span.start for layer in layers for span in layer.spans.values()} | {part.offset for part in rest}
        templates = tuple(block for block in self.templates if block.start in starts)
        return replace(self, layers=layers, rest=rest, templates=templates)

    def __call__(
        self,
        inputs: Inputs,
        check: bool = True,
        watch: AbstractContextManager | None = None,
        U: Tensor | None = None,
    ) -> Captured:
        """Outputs and blocks of a batch, or blocks of Uₙᵀf with U (m, C, s).

        `check` refuses non-finite numbers, `watch` is active in one forward pass.
        """
        f: Tensor | None = None
        blocks: list[Block] = []
        if self.layers:
            f, blocks = layer_blocks(self.model, self.layers, self.n_outputs, inputs, watch, U)
        elif watch is not None:  # vmap hides the rows from it
            with torch.no_grad(), watch:
                outputs(self.model, inputs)
        if self.rest:
            general_f, J = self._by_general_path(inputs, U)
            f = general_f if f is None else f
            blocks += [DenseBlock(part.offset, J[part.name].reshape(len(f), -1, part.size)) for part in self.rest]
        assert f is not None, "there is at least one parameter"
        blocks.sort(key=lambda block: block.start)
        captured = Captured(f.double(), blocks)
        if check:
            self.require_finite(captured, inputs)
        return captured

    def _by_general_path(self, inputs: Inputs, U: Tensor | None = None) -> tuple[Tensor, Gradients]:
        differentiate = batched_jacobian if self.batched else rowwise_jacobian
        return differentiate(self.model, [part.name for part in self.rest], self.n_outputs, inputs, U)

    def require_finite(self, captured: Captured, inputs: Inputs) -> None:
        """Refuse outputs or gradients that are not finite, naming the row and the layer or parameter."""
        if not bool(torch.isfinite(captured.f).all()):
            raise NumericsError(non_finite_outputs(self.model, captured.f, inputs))
        for block, tensors in zip(captured.blocks, captured.tensors, strict=True):
            for values in tensors.values():
                # A sum is finite only if all its terms are, and checking it is faster.
                if not bool(torch.isfinite(values.sum())) and not bool(torch.isfinite(values).all()):
                    row = int((~torch.isfinite(values.flatten(1)).all(1)).nonzero()[0])
                    name = next(part.name for part in self.layout.parameters if part.offset == block.start)
                    problem = f"the gradient with respect to '{name}' is not finite (row {row} of the pass)"
                    raise NumericsError(problem, reason=Reason.GRADIENT_NOT_FINITE)


def prepare_capture(model: nn.Module, layout: Layout, sample: Inputs, memory: int) -> Capture:
    """Check the network on a few rows, and use the formulas that agree there with plain autograd."""
    C = require_sound_network(model, sample).shape[1]
    few = evenly_spaced(sample, CHECKED_ROWS)
    # A random u checks all of J at once: an error that it misses would have to be orthogonal to u.
    u = torch.randn(row_count(few), C, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    truth = combined_gradients(model, [part.name for part in layout.parameters], u, few)
    found = recognise(model, layout, few)
    capture = _with_layers(Capture(model, layout, C, (), layout.parameters, notes=found.notes), found.layers, few)
    while True:
        with PeakMemory() as memory_used:  # not that inside kernels
            captured = capture(few, check=False)
        capture.require_finite(captured, few)
        wrong = _wrong_layers(capture, pulled_by_name(captured.blocks, u, layout), truth)
        if not wrong:
            break
        notes = [_formula_fails(layer, names) for layer, names in wrong]
        suspects = {layer.name for layer, _ in wrong}
        trusted = [layer for layer in capture.layers if layer.name not in suspects]
        capture = _with_layers(replace(capture, notes=(*capture.notes, *notes)), trusted, few)
    row_bytes = memory_used.peak // row_count(few)
    templates = tuple(block.rows(0, 1) for block in captured.blocks)
    return replace(capture, templates=templates, row_bytes=row_bytes, rows_per_pass=rows_within(row_bytes, memory))


def _with_layers(capture: Capture, layers: Sequence[Layer], few: Inputs) -> Capture:
    """These layers by formula, everything else by the general path, in batches if possible."""
    covered = {name for layer in layers for name in layer.parameters}
    rest = tuple(part for part in capture.layout.parameters if part.name not in covered)
    capture = replace(capture, layers=tuple(layers), rest=rest)
    if not rest or not capture.batched:
        return capture
    try:
        capture._by_general_path(few)
    except torch.OutOfMemoryError:
        raise  # not caused by batching
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:  # control flow, no batching rule, …
        return replace(capture, batched=False, notes=(*capture.notes, _goes_row_by_row(capture, error)))
    return capture


def _formula_fails(layer: Layer, names: Sequence[str]) -> str:
    return (
        f"layer '{layer.name}': its formula does not give the gradient of {', '.join(names)} (is the weight also "
        "used elsewhere?); the general path is used instead (slower); to avoid it: use the weight in one call of the "
        "layer only"
    )


def _goes_row_by_row(capture: Capture, error: Exception) -> str:
    owners = list(dict.fromkeys(part.name.rpartition(".")[0] or part.name for part in capture.rest))
    kinds = [f"'{name}' ({_kind(capture.model, name)})" for name in owners[:NAMED_IN_A_NOTE]]
    more = f" and {len(owners) - NAMED_IN_A_NOTE} more" if len(owners) > NAMED_IN_A_NOTE else ""
    cause = str(error).strip().splitlines() or [type(error).__name__]
    return (
        f"{', '.join(kinds)}{more} cannot be differentiated in batches: row by row instead (slower), because "
        f"torch.func.vmap refuses the network ({cause[0][:120]}); to avoid it: no branch on the values of a tensor in "
        "forward; or only Linear, Conv1d, Conv2d, norms and Embedding, each called once with the batch as the first "
        "axis of its input; or freeze these parameters"
    )


def _kind(model: nn.Module, name: str) -> str:
    found = dict(model.named_modules()).get(name)
    return "a parameter" if found is None else type(found).__name__


def rows_within(row_bytes: int, memory: int) -> int:
    """Rows of one pass, from the memory per row: a power of two."""
    rows, few = MOST_ROWS_PER_PASS, 1
    while rows > 1 and rows * row_bytes > min(PASS_BYTES, memory // 4):
        rows //= 2
    while few < FEW_ROWS and 2 * few * row_bytes <= min(MOST_PASS_BYTES, memory // 4):
        few *= 2
    return max(rows, few)


def _wrong_layers(capture: Capture, found: Gradients, truth: Gradients) -> list[tuple[Layer, list[str]]]:
    """Layers whose formula does not agree with plain autograd, each with the parameters concerned: both are Jᵀu."""
    require_agreement([part.name for part in capture.rest], found, truth)
    judged = [(layer, _differing(layer.parameters, found, truth)) for layer in capture.layers]
    return [(layer, names) for layer, names in judged if names]


def require_agreement(names: Sequence[str], found: Gradients, truth: Gradients) -> None:
    """Refuse gradients that are not those of plain autograd."""
    if wrong := _differing(names, found, truth):
        problem = f"the gradient of {', '.join(wrong[:5])} by torch.func is not that of a plain backward pass"
        raise NumericsError(problem, reason=Reason.GRADIENTS_DISAGREE)


def _differing(names: Sequence[str], found: Gradients, truth: Gradients) -> list[str]:
    """The parameters that differ by more than rounding, relative to the largest gradient among them."""
    if not names:
        return []
    size = max(float(truth[name].abs().max()) for name in names)
    tolerance = (1e-3 if truth[names[0]].dtype != torch.float64 else 1e-9) * size
    return [n for n in names if n not in found or float((found[n] - truth[n].flatten()).abs().max()) > tolerance]


def pulled_by_name(blocks: Sequence[Block], u: Tensor, layout: Layout) -> Gradients:
    """Jᵀu by parameter name, from blocks that hold one or two parameters each."""
    found, parts = {}, [(part.name, part.span) for part in layout.parameters]
    for block in blocks:
        pulled = block.pull(u.reshape(-1, 1).to(next(iter(block.tensors().values())).device)).squeeze(1)
        stop = block.start + len(pulled)
        for name, span in parts:
            if block.start <= span.start and span.stop <= stop:
                found[name] = pulled[span.start - block.start : span.stop - block.start]
    return found
