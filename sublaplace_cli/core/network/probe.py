"""What a network computes at a few made-up rows: this tells whether its code still is the same function.

The same weights give another function after a change of `forward`, and no digest of weights can see that. A digest of
source code would see comments too. The rows are made up from the range of the data, because a stored posterior must be
checked where its training rows are not at hand, and must not hold any of them. They run alone, in float64 and in one
thread, so that neither the number of threads nor the dtype of a run matters. Gradients are compared too: a `detach`
changes no output.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import torch
from torch import Tensor, nn

from .forward import Inputs, map_inputs, outputs, row_count

ROWS = 3
MOST_OUTPUTS = 16  # that are kept of each row; the gradients are those of a sum over all of them
STEP = 0.6180339887498949  # of the golden ratio: multiples of it, without their whole parts, fill [0, 1) evenly
DIGITS = 6  # in an identity: float64 differs between machines in the last of 15
TOLERANCE = 1e-4  # relative to the largest number: a network may use float32 inside

Measure = Callable[[nn.Module, Inputs], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Range:
    """Shape and range of one tensor of a row."""

    shape: tuple[int, ...]
    low: float
    high: float

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        return cls(tuple(rows.shape[1:]), *(float(end) for end in rows.double().aminmax()))

    def fill(self, like: Tensor, start: int) -> Tensor:
        """Made-up rows on the CPU: integers stay integers."""
        places = torch.arange(1 + start, 1 + start + ROWS * prod(self.shape), dtype=torch.float64) * STEP
        share = (places - places.floor()).reshape(ROWS, *self.shape)
        if like.is_floating_point():
            return self.low + share * (self.high - self.low)
        return (self.low + share * (self.high - self.low + 1)).floor().clamp(self.low, self.high).to(like.dtype)


@dataclass(frozen=True)
class Probe:
    """What a network computes at made-up rows."""

    ranges: tuple[Range, ...]  # of the tensors that make up a row
    outputs: tuple[float, ...]
    gradients: tuple[float, ...]  # the norm of that of each trainable parameter

    @classmethod
    def of(cls, model: nn.Module, sample: Inputs) -> Self | None:
        """In the range of some rows; None if the network cannot take made-up ones, or gives no finite numbers."""
        return cls.within(model, sample, tuple(map(Range.of, _parts(sample))))

    @classmethod
    def within(cls, model: nn.Module, like: Inputs, ranges: Sequence[Range]) -> Self | None:
        """In these ranges, for a network that takes rows like these."""
        filled = iter([part.fill(tensor, i) for i, (part, tensor) in enumerate(zip(ranges, _parts(like), strict=True))])
        rows = map_inputs(lambda _: next(filled), like)
        found = _tried(_measured, model, rows)
        return None if found is None else cls(tuple(ranges), *(tuple(values.tolist()) for values in found))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """From its fields as JSON holds them."""
        ranges = tuple(Range(tuple(own["shape"]), own["low"], own["high"]) for own in record["ranges"])
        return cls(ranges, tuple(record["outputs"]), tuple(record["gradients"]))

    def fits(self, row: Inputs) -> bool:
        """Whether a row has these shapes."""
        return [tuple(tensor.shape[1:]) for tensor in _parts(row)] == [part.shape for part in self.ranges]

    def rounded(self) -> list[list[str]]:
        """The numbers for an identity."""
        return [_rounded(self.outputs), _rounded(self.gradients)]

    def difference(self, other: Self) -> str | None:
        """How another network differs; None if the two compute the same but for rounding."""
        for what, own, theirs in (
            ("outputs", self.outputs, other.outputs),
            ("gradients", self.gradients, other.gradients),
        ):
            if len(own) != len(theirs):
                return f"other {what}"
            scale = max(map(abs, (*own, *theirs)), default=0.0)
            largest = max((abs(a - b) for a, b in zip(own, theirs, strict=True)), default=0.0)
            if largest > TOLERANCE * scale:
                return f"other {what} (by {largest / scale:.2g} of the largest)"
        return None


def rounded_outputs(model: nn.Module, rows: Inputs) -> list[str] | None:
    """Outputs at real rows, for an identity: made-up ones may not reach what a changed `forward` does to these.

    They are in no file: only a digest of them is.
    """
    found = _tried(_outputs, model, rows)
    return None if found is None else _rounded(found[0].tolist())


def _rounded(values: Sequence[float]) -> list[str]:
    scale = max(map(abs, values), default=0.0)
    shares = (round(value / scale * 10**DIGITS) if scale else 0 for value in values)
    return [f"{scale:.{DIGITS}e}", *map(str, shares)]


def _parts(inputs: Inputs) -> list[Tensor]:
    return [*inputs.values()] if isinstance(inputs, dict) else [*inputs] if isinstance(inputs, tuple) else [inputs]


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums are taken in one order, whatever number of threads a run uses."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _on_the_cpu(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy that never takes memory on the network's own device."""

    def moved(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype, copy=True)

    copies: dict[int, Any] = {id(tensor): moved(tensor) for tensor in model.buffers()}
    copies |= {id(own): nn.Parameter(moved(own), own.requires_grad) for own in model.parameters()}
    return copy.deepcopy(model, copies).eval()


def _tried(measure: Measure, model: nn.Module, rows: Inputs) -> tuple[Tensor, ...] | None:
    """What a copy of the network gives on the CPU; None if it cannot take the rows, or some number is not finite."""
    for dtype in (torch.float64, torch.float32):  # some code runs in one of them only
        try:
            own = map_inputs(lambda t: t.cpu().to(dtype if t.is_floating_point() else t.dtype), rows)  # noqa: B023
            with one_thread():
                found = measure(_on_the_cpu(model, dtype), own)
        except Exception:  # the network's own code may raise anything
            continue
        if all(bool(torch.isfinite(values).all()) for values in found):
            return found
    return None


def _outputs(model: nn.Module, rows: Inputs) -> tuple[Tensor]:
    with torch.no_grad():
        alone = [map_inputs(lambda t: t[i : i + 1], rows) for i in range(row_count(rows))]  # noqa: B023
        return (torch.cat([outputs(model, row).flatten().double() for row in alone]),)


def _measured(model: nn.Module, rows: Inputs) -> tuple[Tensor, Tensor]:
    """(some outputs of each row, the norm of the gradient of each parameter)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norms, found = torch.zeros(len(parameters), dtype=torch.float64), []
    for i in range(row_count(rows)):
        with torch.enable_grad():
            f = outputs(model, map_inputs(lambda tensor: tensor[i : i + 1], rows))[0]  # noqa: B023
            total = f @ torch.cos(torch.arange(1, len(f) + 1, dtype=torch.float64)).to(f)
        if total.requires_grad:
            gradients = torch.autograd.grad(total, parameters, materialize_grads=True)
            norms += torch.stack([torch.linalg.vector_norm(own).double() for own in gradients])
        found.append(f.detach().double()[:: max(1, len(f) // MOST_OUTPUTS)][:MOST_OUTPUTS])
    return torch.cat(found), norms
