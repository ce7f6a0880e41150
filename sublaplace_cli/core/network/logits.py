"""Probabilities where a classification needs logits: seen from the last layer and from the outputs of some rows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .forward import Inputs, Ran, as_matrix, map_inputs, outputs, row_count, watching_leaves

SUM_TOLERANCE = 1e-4  # of probabilities that sum to 1
# Logits of a network that knows something leave [0, 1]; those of few rows, or of an untrained network, need not.
MANY_ROWS, LEAST_SPREAD = 20, 0.25
FIRST_ROWS = 4  # an output of theirs outside [0, 1] settles it, as for most networks
SQUASHING = (nn.Softmax, nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid)  # not LogSoftmax: that shifts a row's logits


@dataclass(frozen=True)
class Doubt:
    """Why outputs do not look like logits, and what to do."""

    message: str
    hint: str
    is_certain: bool


def doubt_about_logits(model: nn.Module, rows: Inputs) -> Doubt | None:
    """What speaks against logits; None if nothing does. All rows are run only if the first ones leave it open."""
    start = map_inputs(lambda t: t[:FIRST_ROWS], rows)
    f, final = _raw_outputs(model, start)
    last, within = _squashing(*final, f) if final is not None else None, _in_unit_interval(f)
    if last is None and not within:
        return None
    if row_count(rows) > FIRST_ROWS:
        rest, _ = _raw_outputs(model, map_inputs(lambda t: t[FIRST_ROWS:], rows))
        f = torch.cat([f, rest])
        within = within and _in_unit_interval(rest)
    one = f.shape[1] == 1
    sums_to_one = within and not one and bool(((f.sum(1) - 1).abs() <= SUM_TOLERANCE).all())
    spread = len(f) >= MANY_ROWS and float(f.max() - f.min()) >= LEAST_SPREAD
    if last is None and not sums_to_one and not (within and spread):
        return None
    seen = "the network's outputs all lie in [0, 1]" if within else f"the network ends with {type(last[1]).__name__}"  # type: ignore[index]
    seen += " and sum to 1 in each row" if sums_to_one else ""
    if last is not None:
        hint = f"remove its last layer, '{last[0]}' ({type(last[1]).__name__})"
    else:
        hint = f"let forward return what goes into its {'sigmoid' if one else 'softmax'}"
    wanted = "the logit, one number of any size" if one else "one logit per class, numbers of any size"
    message = f"{seen}: the network must return logits"
    return Doubt(message, f"{hint}, so that it returns {wanted}", last is not None or sums_to_one)


def _in_unit_interval(f: Tensor) -> bool:
    return bool(((f >= 0) & (f <= 1)).all())


def _raw_outputs(model: nn.Module, rows: Inputs) -> tuple[Tensor, Ran | None]:
    """f before any hook of the network itself changes it, and the last layer that ran."""
    seen: list[Any] = []
    with watching_leaves(model, last_only=True) as ran:
        hook = model.register_forward_hook(lambda _m, _args, out: seen.append(out), prepend=True)
        try:
            with torch.no_grad():
                outputs(model, rows)
        finally:
            hook.remove()
    return as_matrix(seen[0], row_count(rows)).double(), ran[-1] if ran else None


def _squashing(name: str, layer: nn.Module, out: Any, f: Tensor) -> tuple[str, nn.Module] | None:
    """The layer, if it squashes numbers and its output is f."""
    if type(layer) not in SQUASHING or not isinstance(out, Tensor):
        return None
    is_output = out.numel() == f.numel() and torch.equal(out.double().reshape(f.shape), f)
    return (name, layer) if is_output else None
