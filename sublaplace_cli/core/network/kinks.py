"""Rows whose pre-activations lie so near a kink of their activation that rounding decides the side.

A forward pass in float32 and one in float64 can take different sides of the kink of a ReLU, and gradients jump there.
Seen are the activations in `KINKS`, as a module, a function, a method or a node of an exported graph, if the first axis
of their input is the rows and a row has fewer than `MOST_UNITS` pre-activations. Not seen are ties in maxima and max
pooling, comparisons in the network's own code, and compiled or scripted parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# One unit of so many moves the gradient of a row by about 1e-3 or less (a ResNet-20: 1e-3), while in so many units most
# passes have some near a kink.
MOST_UNITS = 4096
# Rounding of a pre-activation, relative to the largest of its layer. Measured between float32 and float64: at most 1.5
# eps in small networks, 6 eps in a ResNet-20; a layer whose terms cancel has more, which the sample shows. The sample
# is a few rows, hence the factor.
LEAST_ROUNDING = 4 * torch.finfo(torch.float32).eps
SAMPLE_FACTOR = 4.0

Kinks = tuple[float, ...]
Measured = TypeVar("Measured")
Measure = Callable[[int, Tensor, Kinks], Measured]  # (number of the activation, its input, its kinks)


@dataclass(frozen=True)
class Options:
    """The options with which an activation was called, by position after its input or by name."""

    by_position: Sequence[Any]
    by_name: Mapping[str, Any]

    def number(self, position: int, name: str, default: float | None = None) -> Kinks:
        value = self.by_position[position] if position < len(self.by_position) else self.by_name.get(name, default)
        return (float(value),) if isinstance(value, int | float) else ()


def _at_zero(options: Options) -> Kinks:
    return (0.0,)


def _between(low: float | None, high: float | None, names: tuple[str, str]) -> Callable[[Options], Kinks]:
    return lambda options: options.number(0, names[0], low) + options.number(1, names[1], high)


def _on_both_sides(options: Options) -> Kinks:
    return tuple(side * at for at in options.number(0, "lambd", 0.5) for side in (-1.0, 1.0))


# By name of the torch function, without leading and trailing underscores.
KINKS: dict[str, Callable[[Options], Kinks]] = {
    **dict.fromkeys(("relu", "leaky_relu", "rrelu", "prelu", "prelu_kernel", "selu", "abs"), _at_zero),
    "elu": lambda options: () if options.number(0, "alpha", 1.0) == (1.0,) else (0.0,),  # smooth for alpha = 1
    "relu6": lambda options: (0.0, 6.0),
    **dict.fromkeys(("hardswish", "hardsigmoid"), lambda options: (-3.0, 3.0)),
    "hardtanh": _between(-1.0, 1.0, ("min_val", "max_val")),
    **dict.fromkeys(("clamp", "clip"), _between(None, None, ("min", "max"))),
    "clamp_min": lambda options: options.number(0, "min"),
    "clamp_max": lambda options: options.number(0, "max"),
    "threshold": lambda options: options.number(0, "threshold"),
    **dict.fromkeys(("softshrink", "hardshrink"), _on_both_sides),
}


class ActivationWatch(TorchFunctionMode, Generic[Measured]):
    """While it is active, `measure` is called with the input of every activation that has kinks."""

    def __init__(self, n_rows: int, measure: Measure[Measured]) -> None:
        super().__init__()
        self.n_rows, self.measure = n_rows, measure
        self.seen: list[Measured] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kinks_of = KINKS.get(_name(func))
        if kinks_of is not None:
            self._look(kinks_of, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)

    def _look(self, kinks_of: Callable[[Options], Kinks], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        z = args[0] if args else kwargs.get("input")
        if not isinstance(z, Tensor) or not z.is_floating_point() or z.ndim == 0 or len(z) != self.n_rows:
            return
        kinks = kinks_of(Options(args[1:], kwargs))
        if kinks and z.numel() < MOST_UNITS * self.n_rows:
            self.seen.append(self.measure(len(self.seen), z.detach(), kinks))


_names: dict[Any, str] = {}  # cached: every torch function of a forward pass is looked up


def _name(func: Any) -> str:
    name = _names.get(func)
    if name is None:
        name = _names[func] = str(getattr(func, "__name__", "")).partition(".")[0].strip("_")
    return name


@dataclass(frozen=True)
class Rounding:
    """How far rounding may move the pre-activations of one activation, from a sample of rows."""

    scale: float = 0.0  # the largest in the sample
    share: float = LEAST_ROUNDING  # of the largest in the row or in the sample
    has_ties: bool = False  # some are exactly at the kink in float64 too, as the zeros after another ReLU

    def tolerance(self, largest: float) -> float:
        """How near a kink counts as near, where `largest` is the largest magnitude in the row."""
        return self.share * max(largest, self.scale)


UNKNOWN = Rounding()


def measured_rounding(in_float32: Sequence[tuple[Tensor, Kinks]], in_float64: Sequence[Tensor]) -> tuple[Rounding, ...]:
    """The rounding of each activation, from its inputs in both precisions at the same rows."""
    if [z.shape for z, _ in in_float32] != [z.shape for z in in_float64]:  # the network branches on numbers
        return ()
    return tuple(_rounding(z, kinks, exact) for (z, kinks), exact in zip(in_float32, in_float64, strict=True))


def _rounding(z: Tensor, kinks: Kinks, exact: Tensor) -> Rounding:
    scale, error = float(exact.abs().max()), float((z.double() - exact).abs().max())
    tied = any(bool(((z == at) & (exact == at)).any()) for at in kinks)
    return Rounding(scale, max(LEAST_ROUNDING, SAMPLE_FACTOR * error / scale if scale else 0.0), tied)


class NearKinks:
    """Looks for rows near a kink: first at whole layers, which is cheap, and only then at their rows."""

    def __init__(self, roundings: Sequence[Rounding] = ()) -> None:
        self.roundings = roundings

    def watch(self, n_rows: int, by_row: bool) -> ActivationWatch[Tensor]:
        """A watch that measures each activation: distance from a kink and largest magnitude, of each row or of all."""

        def measure(number: int, z: Tensor, kinks: Kinks) -> Tensor:
            size = z.abs()
            distance = size if kinks == (0.0,) else _distance(z, kinks)
            if self._of(number).has_ties:
                distance = distance.masked_fill(distance == 0, torch.inf)
            if by_row:
                return torch.stack([distance.flatten(1).amin(1), size.flatten(1).amax(1)])
            return torch.stack([distance.min(), size.max()])

        return ActivationWatch(n_rows, measure)

    def is_near(self, whole: ActivationWatch[Tensor]) -> bool:
        """Whether some pre-activation is near a kink; waits for the device once."""
        if not whole.seen:
            return False
        measured = torch.stack(whole.seen).tolist()
        return any(nearest <= self._of(i).tolerance(largest) for i, (nearest, largest) in enumerate(measured))

    def rows(self, each: ActivationWatch[Tensor]) -> list[int]:
        """The rows with a pre-activation near a kink."""
        near: set[int] = set()
        for number, measured in enumerate(each.seen):
            pairs = measured.T.tolist()
            near |= {row for row, (d, largest) in enumerate(pairs) if d <= self._of(number).tolerance(largest)}
        return sorted(near)

    def _of(self, number: int) -> Rounding:
        return self.roundings[number] if number < len(self.roundings) else UNKNOWN


def _distance(z: Tensor, kinks: Kinks) -> Tensor:
    """|z − kink| to the nearest kink."""
    distance = (z - kinks[0]).abs_()
    for at in kinks[1:]:
        distance = torch.minimum(distance, (z - at).abs_())
    return distance
