"""Compares a state dict with the network it is meant for, and copies it in."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ...errors import UserError

# Added to each name by DataParallel, torch.compile and training frameworks.
COMMON_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.")
HALF = (torch.float16, torch.bfloat16)
NAMES_SHOWN = 10


def checked_weights(
    module: nn.Module, state: Mapping[str, Tensor], *, path: Path, field: str, strict: bool
) -> dict[str, Tensor]:
    """The tensors of `state` under the module's names; one error lists everything that does not fit."""
    expected = module.state_dict()
    state = _without_prefix(state, expected)
    found = {name: tensor for name, tensor in state.items() if name in expected}
    unexpected = [name for name in state if name not in expected] if strict else []
    missing = _missing(module, found, strict)
    wrong = [name for name, tensor in found.items() if tensor.shape != expected[name].shape]
    if missing or unexpected or wrong:
        problems = [
            _listing("missing", missing, lambda name: _shape(expected[name])),
            _listing("unexpected", unexpected, lambda name: _shape(state[name])),
            _listing("wrong shape", wrong, lambda n: f"{_shape(found[n])}, expected {_shape(expected[n])}"),
        ]
        message = f"{path}: the weights do not fit {field}.build\n" + "\n".join(filter(None, problems))
        raise UserError(message, hint=_hint(_fitting_prefix(state, expected), missing, unexpected, wrong))
    for name, tensor in found.items():
        _check_values(path, name, tensor, expected[name])
    return found


def put_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy checked weights in; keeps requires_grad and ties; a float64 file makes the network float64."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    if any(weights[name].dtype == torch.float64 for name in parameters & set(weights)):
        module.double()
    elif any(parameter.dtype in HALF for parameter in module.parameters()):
        module.float()
    module.load_state_dict(dict(weights), strict=False)


def _without_prefix(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Drop prefixes common to all keys, one after the other, while that makes more names fit."""
    best, best_fit = state, sum(name in expected for name in state)
    current: Mapping[str, Tensor] = state
    while best_fit < len(expected) and current:
        prefix = next((p for p in COMMON_PREFIXES if all(name.startswith(p) for name in current)), None)
        if prefix is None:
            break
        current = {name.removeprefix(prefix): tensor for name, tensor in current.items()}
        fit = sum(name in expected for name in current)
        if fit > best_fit:
            best, best_fit = current, fit
    return best


def _missing(module: nn.Module, found: Mapping[str, Tensor], strict: bool) -> list[str]:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    # a tied parameter needs only one of its names
    present = {id(parameter) for name, parameter in parameters.items() if name in found}
    needed = [name for name in module.state_dict() if strict or (name in parameters and parameters[name].requires_grad)]
    needed = [name for name in needed if name not in found and not name.endswith("num_batches_tracked")]
    return [name for name in needed if id(parameters.get(name)) not in present]


def _check_values(path: Path, name: str, tensor: Tensor, expected: Tensor) -> None:
    if expected.is_floating_point() != tensor.is_floating_point():
        kind = "floating point" if expected.is_floating_point() else expected.dtype
        raise UserError(f"{path}: '{name}' holds {tensor.dtype} values, expected {kind}")
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        count = int((~torch.isfinite(tensor)).sum())
        message = f"{path}: '{name}' has {count} values that are NaN or infinite, expected finite weights"
        raise UserError(message, hint="the training diverged, or the file is damaged; use an earlier checkpoint")


def _listing(title: str, names: list[str], detail: Callable[[str], str]) -> str:
    if not names:
        return ""
    rest = f" ... and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"  {title}: " + ", ".join(f"{name} {detail(name)}" for name in names[:NAMES_SHOWN]) + rest


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def _hint(prefix: str | None, missing: list[str], unexpected: list[str], wrong: list[str]) -> str:
    if prefix:
        return f"some keys would fit without '{prefix}': weights: {{…, strip_prefix: {prefix}}}"
    if missing and unexpected:
        return "is it another architecture, depth or shortcut? weights.rename maps old names to new ones"
    if wrong:
        return "check the widths, depth and number of outputs in build.args"
    if missing:
        return "check depth and layers in build.args; weights.key picks another part of the file"
    return "check depth and layers in build.args; weights: {…, strict: false} ignores unexpected keys"


def _fitting_prefix(state: Iterable[str], expected: Mapping[str, Tensor]) -> str | None:
    for name in state:
        for position in [i for i, letter in enumerate(name) if letter == "."]:
            if name[position + 1 :] in expected and name not in expected:
                return name[: position + 1]
    return None
