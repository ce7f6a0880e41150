"""Checks before a network's gradients can be trusted: finite, deterministic, and rows independent."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...errors import NumericsError, UserError
from .forward import Inputs, leaf_outputs, map_inputs, outputs

SINGLE_ROWS = 4  # rows of the sample that are also run alone


def require_sound_network(model: nn.Module, sample: Inputs) -> Tensor:
    """f of the sample (m, C); refused unless two runs agree and no row depends on the other rows of its batch."""
    with torch.no_grad():
        f, again = outputs(model, sample), outputs(model, sample)
    if not bool(torch.isfinite(f).all()):
        raise NumericsError(non_finite_outputs(model, f, sample))
    random = [f"{name} ({type(m).__name__})" for name, m in model.named_modules() if "Dropout" in type(m).__name__]
    _require_agreement(f, again, "the same rows gave different outputs in two runs", random)
    finding = "a row's output depends on the other rows of its batch"
    chosen = range(0, len(f), max(1, len(f) // SINGLE_ROWS))
    _require_agreement(f[chosen], _one_by_one(model, sample, chosen), finding, _batch_layers(model))
    return f


def non_finite_outputs(model: nn.Module, f: Tensor, inputs: Inputs) -> str:
    """A message that names the first bad row and the first layer with non-finite values."""
    row = int((~torch.isfinite(f).all(1)).nonzero()[0])
    ran = leaf_outputs(model, map_inputs(lambda t: t[row : row + 1], inputs))
    floats = [(name, out) for name, _, out in ran if isinstance(out, Tensor) and out.is_floating_point()]
    culprit = next((name for name, out in floats if not bool(torch.isfinite(out).all())), None)
    layer = f"; the first layer with non-finite values is '{culprit}'" if culprit else ""
    return f"the model's output is not finite at row {row} of the pass{layer}"


def same_outputs(f: Tensor, other: Tensor) -> bool:
    """Whether two runs gave the same but for rounding."""
    # Kernels round differently for other batch sizes; a real dependence is as large as f itself.
    tolerance = (1e-3 if f.dtype != torch.float64 else 1e-9) * (1.0 + f.abs().max())
    return f.shape == other.shape and bool(((f - other).abs() <= tolerance).all())


def _one_by_one(model: nn.Module, inputs: Inputs, chosen: Sequence[int]) -> Tensor:
    try:
        with torch.no_grad():
            rows = [outputs(model, map_inputs(lambda t: t[i : i + 1], inputs)) for i in chosen]  # noqa: B023
        return torch.cat(rows)
    except (RuntimeError, ValueError) as error:
        suspects = _batch_layers(model)
        named = f" (suspects: {', '.join(suspects)})" if suspects else ""
        hint = "each row must be processed independently: BatchNorm needs running statistics"
        raise UserError(f"the network cannot process a batch of one row: {error}{named}", hint=hint) from error


def _require_agreement(f: Tensor, other: Tensor, finding: str, suspects: list[str]) -> None:
    if same_outputs(f, other):
        return
    named = f" (suspects: {', '.join(suspects[:5])})" if suspects else ""
    raise UserError(
        f"{finding}: largest difference {float((f - other).abs().max()):.3g}{named}",
        hint="the network runs in eval mode; there it must be deterministic and process each row independently: "
        "no dropout or noise inside forward, and BatchNorm with running statistics",
    )


def _batch_layers(model: nn.Module) -> list[str]:
    return [
        f"{name} ({type(m).__name__} without running statistics)"
        for name, m in model.named_modules()
        if "BatchNorm" in type(m).__name__ and getattr(m, "running_mean", 0) is None
    ]
