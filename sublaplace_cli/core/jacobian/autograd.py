"""The general path, right for any module: torch.func over the requested parameters, with the others constant."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..network.forward import Inputs, map_inputs, outputs, row_count

Gradients = dict[str, Tensor]  # by parameter name, each (m, C, *shape)


def batched_jacobian(
    model: nn.Module, names: Sequence[str], C: int, inputs: Inputs, U: Tensor | None = None
) -> tuple[Tensor, Gradients]:
    """(f (m, C), gradients) by `vmap(grad)` for one output or column of U, `vmap(jacrev)` for several."""
    from torch.func import grad, jacrev, vmap  # slow to import (a second): it loads the compiler

    (wanted, fixed), C = _split_state(model, names), C if U is None else U.shape[2]

    def one_row(parameters: dict[str, Tensor], row: Inputs, u: Tensor | None) -> tuple[Tensor, Tensor]:
        f = outputs(model, map_inputs(lambda t: t.unsqueeze(0), row), {**fixed, **parameters})[0]
        own = f if u is None else u.to(f).T @ f
        return (own[0] if C == 1 else own), f

    derivative: Callable = grad(one_row, has_aux=True) if C == 1 else jacrev(one_row, has_aux=True)
    J, f = vmap(derivative, in_dims=(None, 0, None if U is None else 0))(wanted, inputs, U)
    return f, {name: t.unsqueeze(1) if C == 1 else t for name, t in J.items()}


def rowwise_jacobian(
    model: nn.Module, names: Sequence[str], C: int, inputs: Inputs, U: Tensor | None = None
) -> tuple[Tensor, Gradients]:
    """The same by plain autograd, one row and one output at a time: slow, and the reference for everything else."""
    leaves, fixed = _leaves(model, names)
    f_rows, J_rows = [], []
    with torch.enable_grad():
        for i in range(row_count(inputs)):
            f = outputs(model, map_inputs(lambda t: t[i : i + 1], inputs), {**fixed, **leaves})[0]  # noqa: B023
            wanted = f.unbind() if U is None else (U[i].to(f).T @ f).unbind()
            each = [_gradients(one, list(leaves.values())) for one in wanted]
            f_rows.append(f.detach())
            J_rows.append([torch.stack(tensors) for tensors in zip(*each, strict=True)])
    J = {name: torch.stack(rows) for name, rows in zip(leaves, zip(*J_rows, strict=True), strict=True)}
    return torch.stack(f_rows), J


def combined_gradients(model: nn.Module, names: Sequence[str], weights: Tensor, inputs: Inputs) -> Gradients:
    """Gradients of Σ weights · f over all rows and outputs, by one plain backward pass: Jᵀu for any u (m, C)."""
    leaves, fixed = _leaves(model, names)
    with torch.enable_grad():
        f = outputs(model, inputs, {**fixed, **leaves})
        total = (f * weights.to(f)).sum()
    return dict(zip(leaves, _gradients(total, list(leaves.values())), strict=True))


def _gradients(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    if not value.requires_grad:  # it depends on none of them
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True))


def _leaves(model: nn.Module, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    wanted, fixed = _split_state(model, names)
    return {name: tensor.clone().requires_grad_() for name, tensor in wanted.items()}, fixed


def _split_state(model: nn.Module, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    state = {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    chosen = set(names)
    return {n: state[n] for n in names}, {n: t for n, t in state.items() if n not in chosen}
