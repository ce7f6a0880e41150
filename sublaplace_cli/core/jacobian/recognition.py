"""Which layers of a network have a formula: seen from two runs with different numbers of rows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..network.checks import same_outputs
from ..network.forward import Inputs, map_inputs, outputs, row_count
from ..network.layout import Layout
from .formulas import formula_of
from .layer_io import Call, Layer, RowAxis, listening

# Their formulas take any axes before the last ones as positions, so that an axis for the rows can be put in front.
ANY_AXES = (nn.Linear, nn.LayerNorm, nn.Embedding)


@dataclass(frozen=True)
class Recognised:
    """Layers that may use their formula, and notes about shared ones that may not."""

    layers: list[Layer]
    notes: tuple[str, ...] = ()


def recognise(model: nn.Module, layout: Layout, sample: Inputs) -> Recognised:
    """Layers that ran once, on all rows or on what all rows share, and whose parameters are used nowhere else."""
    candidates, rows = _with_formula(model, layout), row_count(sample)
    # One row, several times: tells an axis of rows from one that has their length by chance.
    longer = map_inputs(lambda t: t[:1].repeat(rows + 1, *[1] * (t.ndim - 1)), sample)
    (f, calls), (longer_f, others) = _calls(model, candidates, sample), _calls(model, candidates, longer)
    layers = []
    for name, call in calls.items():
        row_axis = _row_axis(call, others[name], rows) if name in others else None
        if row_axis is not None and call.out.requires_grad:
            changed = [tensor._version != v for tensor, v in zip((call.a, call.out), call.versions, strict=True)]
            placed = replace(call.layer, row_axis=row_axis, input_axes=call.a.ndim)
            layers.append(replace(placed, copy_input=changed[0], copy_output=changed[1]))
    common = [layer for layer in layers if layer.repeated]
    repeatable = _repeatable(model, common, ((sample, f), (longer, longer_f)))
    refused = [layer for layer in common if layer not in repeatable]
    return Recognised([layer for layer in layers if layer not in refused], tuple(map(_cannot_be_repeated, refused)))


def _cannot_be_repeated(layer: Layer) -> str:
    return (
        f"layer '{layer.name}': all rows share its output, and the network does more with it than broadcasting it over "
        "the rows; the general path is used instead (slower); to avoid it: repeat the layer's input for each row of "
        "the batch, e.g. ids of shape (rows, length) by `ids.expand(len(x), -1)`"
    )


def _with_formula(model: nn.Module, layout: Layout) -> list[Layer]:
    uses = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
    spans = {parameter.name: parameter.span for parameter in layout.parameters}
    found = []
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        formula = formula_of(module)
        placed = {key: spans[full] for key in own if (full := f"{name}.{key}" if name else key) in spans}
        if formula is not None and placed and all(uses[id(tensor)] == 1 for tensor in own.values()):
            found.append(Layer(name, module, formula, placed))
    return found


def _calls(model: nn.Module, candidates: Sequence[Layer], sample: Inputs) -> tuple[Tensor, dict[str, Call]]:
    """f, and the call of each layer that ran once."""
    with torch.enable_grad(), listening(candidates, row_count(sample)) as calls:
        f = outputs(model, sample).detach()
    ran = Counter(call.layer.name for call in calls)
    return f, {call.layer.name: call for call in calls if ran[call.layer.name] == 1}


def _row_axis(call: Call, other: Call, rows: int) -> RowAxis | None:
    """From runs with `rows` and one more; None where the first axis is neither theirs nor one that they share."""
    first, second = ([t.shape for t in (one.a, one.out)] for one in (call, other))
    if all(a[:1] == (rows,) and b[:1] == (rows + 1,) for a, b in zip(first, second, strict=True)):
        return RowAxis.OWN
    if first != second or not torch.equal(call.a, other.a):
        return None
    if all(len(shape) > 1 and shape[0] == 1 for shape in first):
        return RowAxis.ONE
    return RowAxis.NONE if isinstance(call.layer.module, ANY_AXES) else None


def _repeatable(model: nn.Module, common: Sequence[Layer], samples: Sequence[tuple[Inputs, Tensor]]) -> list[Layer]:
    """Those of the shared layers whose output can be given once per row; the samples come with their f."""
    if not common:
        return []

    def works(layers: Sequence[Layer]) -> bool:
        return all(_rows_stay_apart(model, layers, *pair) for pair in samples)

    if works(common):
        return list(common)
    kept: list[Layer] = []
    for layer in common:
        kept += [layer] if works([*kept, layer]) else []
    return kept


def _rows_stay_apart(model: nn.Module, layers: Sequence[Layer], sample: Inputs, expected: Tensor) -> bool:
    """Whether f is the same with one copy per row, and the last row depends on its own copy only."""
    try:
        with torch.enable_grad(), listening(layers, row_count(sample)) as calls:
            f = outputs(model, sample)
        copies = [call.out for call in calls]
        gradients = torch.autograd.grad(f[-1].sum(), copies, materialize_grads=True)
        return same_outputs(f.detach(), expected) and not any(bool(g[:-1].any()) for g in gradients)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a network may fail in any way on another shape: then the general path is right
        return False
