"""Passes that compute only some columns of the Jacobian, for predictions; in linear layers of one position, δ ∘ a."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import NumericsError, Reason, RunError
from .jacobian.blocks import Block
from .jacobian.capture import Capture
from .jacobian.linear import LinearBlock
from .network.forward import Inputs, outputs
from .omega.row_sums import BlockPositions


class ColumnPass:
    """f (m, C) and J_Sᵀ (k, m·C) of a batch. Not thread-safe; hooks stay in the network: only this pass may use it."""

    def __init__(self, capture: Capture, S: Tensor) -> None:
        self.capture = capture.restricted_to(S)
        self.positions = BlockPositions.of(self.capture.templates, S)
        layers = self.capture.layers
        copies = any(layer.copy_input or layer.copy_output for layer in layers)
        picked = None if self.capture.rest or copies else _picked(self.capture.templates, S)
        self.picked = picked if len(layers) == len(self.capture.templates) else None
        self._seen: dict[int, list[tuple[Tensor, Tensor]]] = {}  # by number of the layer in flat order
        if self.picked is not None:
            for number, layer in enumerate(sorted(layers, key=lambda layer: layer.start)):
                layer.module.register_forward_hook(partial(self._keep, number))

    def _keep(self, number: int, _module: Any, args: tuple[Any, ...], out: Tensor) -> None:
        self._seen.setdefault(number, []).append((args[0], out))

    def __call__(self, inputs: Inputs, watch: AbstractContextManager | None = None) -> tuple[Tensor, Tensor]:
        if self.picked is None:
            captured = self.capture(inputs, watch=watch)
            blocks = [captured.blocks[i] for i in self.positions.blocks]
            return captured.f, self.positions.gather(blocks, captured.f.numel())
        self._seen.clear()
        with torch.enable_grad(), watch or nullcontext():
            f = outputs(self.capture.model, inputs)
        layers, (m, C) = self._in_flat_order(len(f)), f.shape
        probes = [out for _, out in layers]
        each = [
            torch.autograd.grad(f[:, c].sum() if C > 1 else f.sum(), probes, retain_graph=c < C - 1) for c in range(C)
        ]
        # One position per row: (d, m) each, so that a column of J is contiguous. Products are float64.
        ones, (in_a, in_delta) = f.new_ones(1, m), self.picked
        a = torch.cat([*(seen.detach().reshape(m, -1).T for seen, _ in layers), ones]).index_select(0, in_a)
        deltas = [torch.cat([d.reshape(m, -1).T for d in own]).index_select(0, in_delta) for own in each]
        J_S = (deltas[0] if C == 1 else torch.stack(deltas, 2)).double()  # (k, m) or (k, m, C)
        return f.detach().double(), J_S.mul_(a) if C == 1 else J_S.mul_(a.unsqueeze(2)).flatten(1)

    def _in_flat_order(self, rows: int) -> list[tuple[Tensor, Tensor]]:
        """(input, output) of each layer in the order of the flat vector; each must have run once, on all rows."""
        calls = [self._seen.get(number, []) for number in range(len(self.capture.layers))]
        if any(len(own) != 1 or len(own[0][1]) != rows for own in calls):
            raise RunError("a layer did not run exactly once on all rows, unlike in the check at the start")
        return [own[0] for own in calls]


def require_finite(variance: Tensor) -> None:
    """Refuse variances from gradients that are not finite."""
    if not bool(torch.isfinite(variance.sum())):
        raise NumericsError("the gradient of a row is not finite", reason=Reason.GRADIENT_NOT_FINITE)


def _picked(blocks: Sequence[Block], S: Tensor) -> tuple[Tensor, Tensor] | None:
    """Positions of the columns S in [a₁, a₂, …, 1] and in [δ₁, δ₂, …] (k,); None unless all blocks are δ ∘ a."""
    a, delta = torch.full_like(S, -1), torch.zeros_like(S)
    inputs_before = outputs_before = 0
    n_inputs = sum(block.inputs.shape[2] for block in blocks if isinstance(block, LinearBlock))
    for block in blocks:
        if not isinstance(block, LinearBlock) or block.inputs.shape[1] != 1:
            return None
        d_in, d_out = block.inputs.shape[2], block.deltas.shape[3]
        local, inside = S - block.start, (block.start <= S) & (block.start + block.width > S)
        is_weight = local < d_in * d_out
        a = torch.where(inside, torch.where(is_weight, inputs_before + local % d_in, n_inputs), a)
        own = torch.where(is_weight, local // d_in, local - d_in * d_out)
        delta = torch.where(inside, outputs_before + own, delta)
        inputs_before, outputs_before = inputs_before + d_in, outputs_before + d_out
    return (a, delta) if bool((a >= 0).all()) else None
