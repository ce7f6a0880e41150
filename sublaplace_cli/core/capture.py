"""Network + rows → outputs and Jacobian blocks, by the general path that is right for any module.

`vmap(grad)` (one output) or `vmap(jacrev)` over `functional_call`; a network that `vmap` cannot take is
differentiated row by row. Frozen parameters and buffers are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

from ..errors import NumericsError, UserError
from .blocks import DenseBlock
from .forward import Inputs, activation_count, first_non_finite, map_inputs, outputs, row_count
from .layout import Layout

# More rows than this a pass gain no speed; a fixed number keeps the bits independent of free memory.
MOST_ROWS_PER_PASS = 64


@dataclass(frozen=True)
class Captured:
    """One pass: outputs (m, C) float64 and a block for each parameter tensor."""

    f: Tensor
    blocks: list[DenseBlock]


@dataclass(frozen=True)
class Capture:
    """The way in which this network is differentiated."""

    model: nn.Module
    layout: Layout
    n_outputs: int
    rows_per_pass: int
    batched: bool  # False: row by row, because vmap could not take the network

    def __call__(self, inputs: Inputs) -> Captured:
        differentiate = _batched_jacobian if self.batched else _rowwise_jacobian
        f, J = differentiate(self.model, self.layout, self.n_outputs, inputs)
        self._refuse_non_finite(f, J, inputs)
        blocks = [DenseBlock(q.offset, J[q.name].reshape(*f.shape, q.size)) for q in self.layout.parameters]
        return Captured(f.double(), blocks)

    def _refuse_non_finite(self, f: Tensor, J: dict[str, Tensor], inputs: Inputs) -> None:
        if not bool(torch.isfinite(f).all()):
            raise NumericsError(*_non_finite_outputs(self.model, f, inputs))
        for name, values in J.items():
            if not bool(torch.isfinite(values).all()):
                row = int((~torch.isfinite(values.flatten(1)).all(1)).nonzero()[0])
                raise NumericsError(
                    f"the gradient with respect to '{name}' is not finite (row {row} of the pass)",
                    hint="look for a division by zero, sqrt(0) or log(0) in that layer, or try --dtype float64",
                )


def prepare_capture(model: nn.Module, layout: Layout, sample: Inputs, memory: int) -> Capture:
    """Check the network on a few rows and decide how to differentiate it.

    Two reads of the same rows must agree, and a row must not depend on the others of its batch.
    """
    with torch.no_grad():
        f = outputs(model, sample)
        again = outputs(model, sample)
    if not bool(torch.isfinite(f).all()):
        raise NumericsError(*_non_finite_outputs(model, f, sample))
    _require_agreement(f, again, "the same rows gave different outputs when read twice", _random_layers(model))
    finding = "a row's output depends on the other rows of its batch"
    _require_agreement(f, _one_by_one(model, sample), finding, _batch_layers(model))
    capture = Capture(model, layout, f.shape[1], _rows_per_pass(model, layout, sample, f.shape[1], memory), True)
    try:
        capture(sample)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        # Data-dependent control flow, an operator without a batching rule, …: always right, only slower.
        return Capture(model, layout, f.shape[1], capture.rows_per_pass, False)
    return capture


def _batched_jacobian(model: nn.Module, layout: Layout, C: int, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    trainable, fixed = _split_state(model, layout)

    def one_row(parameters: dict[str, Tensor], row: Inputs) -> tuple[Tensor, Tensor]:
        f = outputs(model, map_inputs(lambda t: t.unsqueeze(0), row), {**fixed, **parameters})[0]
        return (f[0] if C == 1 else f), f

    derivative: Callable = grad(one_row, has_aux=True) if C == 1 else jacrev(one_row, has_aux=True)
    J, f = vmap(derivative, in_dims=(None, 0))(trainable, inputs)
    return f, {name: t.unsqueeze(1) if C == 1 else t for name, t in J.items()}


def _rowwise_jacobian(model: nn.Module, layout: Layout, C: int, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    trainable, fixed = _split_state(model, layout)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in trainable.items()}
    f_rows, J_rows = [], []
    for i in range(row_count(inputs)):
        f = outputs(model, map_inputs(lambda t: t[i : i + 1], inputs), {**fixed, **leaves})[0]  # noqa: B023
        each = [
            torch.autograd.grad(f[c], list(leaves.values()), retain_graph=True, materialize_grads=True)
            for c in range(C)
        ]
        f_rows.append(f.detach())
        J_rows.append([torch.stack(tensors) for tensors in zip(*each, strict=True)])
    J = {name: torch.stack(rows) for name, rows in zip(leaves, zip(*J_rows, strict=True), strict=True)}
    return torch.stack(f_rows), J


def _split_state(model: nn.Module, layout: Layout) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    state = {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    names = {q.name for q in layout.parameters}
    return {n: state[n] for n in state if n in names}, {n: state[n] for n in state if n not in names}


def _rows_per_pass(model: nn.Module, layout: Layout, sample: Inputs, C: int, memory: int) -> int:
    itemsize = next(model.parameters()).element_size()
    activations = activation_count(model, map_inputs(lambda t: t[:1], sample))
    # vmap keeps inputs and gradients of each layer, the gradients C-fold; the finished rows are copied once.
    row_bytes = itemsize * (2 * C * layout.size + (3 + 2 * C) * activations)
    rows = MOST_ROWS_PER_PASS
    while rows > 1 and rows * row_bytes > memory // 4:
        rows //= 2
    return rows


def _one_by_one(model: nn.Module, inputs: Inputs) -> Tensor:
    """Outputs of each row in a batch of its own (m, C)."""
    try:
        with torch.no_grad():
            rows = [outputs(model, map_inputs(lambda t: t[i : i + 1], inputs)) for i in range(row_count(inputs))]  # noqa: B023
        return torch.cat(rows)
    except (RuntimeError, ValueError) as error:
        suspects = _batch_layers(model)
        raise UserError(
            f"the network cannot take one row by itself: {error}"
            + (f" (suspects: {', '.join(suspects)})" if suspects else ""),
            hint="each row must be treated by itself: BatchNorm needs running statistics",
        ) from error


def _require_agreement(f: Tensor, other: Tensor, finding: str, suspects: list[str]) -> None:
    # Kernels round differently for other batch sizes; a real dependence shows at the size of f itself.
    tolerance = (1e-3 if f.dtype != torch.float64 else 1e-9) * (1.0 + f.abs().max())
    if bool(((f - other).abs() <= tolerance).all()):
        return
    named = f" (suspects: {', '.join(suspects[:5])})" if suspects else ""
    raise UserError(
        f"{finding}: largest difference {float((f - other).abs().max()):.3g}{named}",
        hint="the network is run in eval mode; it must be deterministic there and treat each row by itself: "
        "no dropout or noise inside forward, and BatchNorm with running statistics",
    )


def _random_layers(model: nn.Module) -> list[str]:
    return [f"{name} ({type(m).__name__})" for name, m in model.named_modules() if "Dropout" in type(m).__name__]


def _batch_layers(model: nn.Module) -> list[str]:
    return [
        f"{name} ({type(m).__name__} without running statistics)"
        for name, m in model.named_modules()
        if "BatchNorm" in type(m).__name__ and getattr(m, "running_mean", 0) is None
    ]


def _non_finite_outputs(model: nn.Module, f: Tensor, inputs: Inputs) -> tuple[str]:
    row = int((~torch.isfinite(f).all(1)).nonzero()[0])
    culprit = first_non_finite(model, map_inputs(lambda t: t[row : row + 1], inputs))
    layer = f"; the first layer with non-finite values is '{culprit}'" if culprit else ""
    return (f"the model's output is not finite at row {row} of the pass{layer}",)
