"""Calls a network on rows: one tensor, a dict or a tuple of tensors in; (rows, outputs) out."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...errors import UserError

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
State = Mapping[str, Tensor]
Ran = tuple[str, nn.Module, Any]  # name, module, output


def map_inputs(change: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply `change` to each tensor of the inputs."""
    if isinstance(inputs, dict):
        return {name: change(tensor) for name, tensor in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(change(tensor) for tensor in inputs)
    return change(inputs)


def row_count(inputs: Inputs) -> int:
    """The number of rows."""
    if isinstance(inputs, dict):
        return len(next(iter(inputs.values())))
    return len(inputs[0]) if isinstance(inputs, tuple) else len(inputs)


def evenly_spaced(inputs: Inputs, count: int) -> Inputs:
    """About this many of the rows, evenly spaced."""
    chosen = evenly_spaced_numbers(row_count(inputs), count)
    return map_inputs(lambda t: t[chosen.start : chosen.stop : chosen.step], inputs)


def evenly_spaced_numbers(n_rows: int, count: int) -> range:
    """About this many row numbers, evenly spaced."""
    return range(0, n_rows, max(1, n_rows // count))[:count]


def arguments(model: nn.Module, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of `forward`: several arrays by keyword or position if it names them, else as one dict or tuple."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    parameters = inspect.signature(model.forward).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    if isinstance(inputs, dict):
        by_name = set(inputs) <= set(parameters) or inspect.Parameter.VAR_KEYWORD in kinds
        return ((), dict(inputs)) if by_name else ((inputs,), {})
    positional = [kind for kind in kinds if kind.name.startswith("POSITIONAL")]
    variadic = inspect.Parameter.VAR_POSITIONAL in kinds
    return (inputs, {}) if variadic or len(positional) >= len(inputs) > 1 else ((inputs,), {})


def outputs(model: nn.Module, inputs: Inputs, state: State | None = None) -> Tensor:
    """f (rows, C) of a batch; `state`, if not None, replaces the model's tensors."""
    # Copies: a network may change its inputs in place, and the rows are needed again.
    args, kwargs = arguments(model, map_inputs(torch.clone, inputs))
    raw = model(*args, **kwargs) if state is None else _call_with(model, state, args, kwargs)
    return as_matrix(raw, row_count(inputs))


def _call_with(model: nn.Module, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    own = [(module, name, t) for module in model.modules() for name, t in module._parameters.items()]
    try:
        return functional_call(model, dict(state), args, kwargs)
    finally:
        # functional_call restores the wrong tensor in a module that is reachable by two names.
        for module, name, tensor in own:
            module._parameters[name] = tensor


def as_matrix(raw: Any, n_rows: int) -> Tensor:
    """(rows,) and (rows, C) both become (rows, C); everything else is refused."""
    if isinstance(raw, Tensor) and raw.ndim in (1, 2) and raw.shape[0] == n_rows and raw.is_floating_point():
        return raw.unsqueeze(1) if raw.ndim == 1 else raw
    found = f"a tensor of shape {tuple(raw.shape)} and {raw.dtype}" if isinstance(raw, Tensor) else type(raw).__name__
    problem = f"the model returned {found} for {n_rows} rows; expected a floating-point tensor of shape (rows, outputs)"
    hint = "wrap the network in a small module that returns one row of outputs per input row"
    raise UserError(problem, hint=hint)


@contextmanager
def watching_leaves(model: nn.Module, last_only: bool = False) -> Iterator[list[Ran]]:
    """Collects every module without children that runs, in order; or only the last one, to keep no other output."""
    found: list[Ran] = []

    def keep(name: str, module: nn.Module, out: Any) -> None:
        if last_only:
            found.clear()
        found.append((name, module, out))

    hooks = [
        module.register_forward_hook(lambda m, _args, out, name=name: keep(name, m, out))
        for name, module in model.named_modules()
        if not any(module.children())
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def leaf_outputs(model: nn.Module, inputs: Inputs) -> list[Ran]:
    """(name, module, output) of every module without children, in the order in which they ran."""
    with watching_leaves(model) as found, torch.no_grad():
        outputs(model, inputs)
    return found


def last_linear(model: nn.Module, inputs: Inputs) -> list[str]:
    """Names of the trainable parameters of the last `nn.Linear` that runs, on one row; empty if there is none."""
    one = map_inputs(lambda t: t[:1], inputs)
    ran = [module for _, module, _ in leaf_outputs(model, one) if isinstance(module, nn.Linear)]
    wanted = {id(tensor) for tensor in ran[-1].parameters(recurse=False)} if ran else set()
    return [name for name, tensor in model.named_parameters() if id(tensor) in wanted and tensor.requires_grad]
