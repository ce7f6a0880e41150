"""Rows whose pre-activations lie so near a kink of their activation that rounding decides the side.

A forward pass in float32 and one in float64 can take different sides of the kink of a ReLU, and gradients jump there.
Seen are the activations in `KINKS`, as a module, a function, a method or a node of an exported graph, if the first axis
of their input is the rows and a row has fewer than `MOST_UNITS` pre-activations. Not seen are ties in maxima and max
pooling, comparisons in the network's own code, and compiled or scripted parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

# Wider layers are left to the sample of rows: with so many units a good part of the rows has one near a kink, and one
# unit matters little. In an untrained ResNet-20, 2 of 100 rows had a unit on the wrong side, which moved their gradient
# by 0.8e-3 and 1.1e-3; 9 to 25 of them were near, and float64 takes five times as long.
MOST_UNITS = 4096
# How far rounding may move a pre-activation: this many times the root mean square of what it does between float32 and
# float64 in a sample of rows, which includes terms that cancel and the rounding of earlier layers. Over 100 rows the
# largest was 4 times as large in a small network (6 to 12 times in a ResNet-20, which is too wide to be watched).
# At least some eps of the layer's scale, since the sample is small.
ROUNDING_FACTOR = 8.0
LEAST_ROUNDING = 4 * torch.finfo(torch.float32).eps

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


class Watch(Generic[Measured]):
    """Calls `measure` with the inputs of activations, in the order in which they run."""

    def __init__(self, n_rows: int, measure: Measure[Measured]) -> None:
        super().__init__()
        self.n_rows, self.measure = n_rows, measure
        self.seen: list[Measured] = []
        self.n_wide = 0  # activations with too many units per row to be watched

    def look(self, z: Any, kinks: Kinks) -> None:
        if not kinks or not isinstance(z, Tensor) or not z.is_floating_point() or z.is_meta:
            return  # an exported graph runs once without values before each new shape
        if not z.ndim or len(z) != self.n_rows:
            return
        if z.numel() >= MOST_UNITS * self.n_rows:
            self.n_wide += 1
        else:
            self.seen.append(self.measure(len(self.seen), z.detach(), kinks))


class FunctionWatch(Watch[Measured], TorchFunctionMode):
    """While it is active, it looks at every activation, however it is called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kinks_of = KINKS.get(_name(func))
        if kinks_of is not None:
            named = kwargs or {}
            self.look(args[0] if args else named.get("input"), kinks_of(Options(args[1:], named)))
        return func(*args, **kwargs) if kwargs else func(*args)


class ModuleWatch(Watch[Measured]):
    """While it is active, it looks at these modules only, which costs less than looking at every function."""

    def __init__(self, modules: Mapping[nn.Module, Kinks], n_rows: int, measure: Measure[Measured]) -> None:
        super().__init__(n_rows, measure)
        self.modules = modules
        self.hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for module, kinks in self.modules.items():
            self.hooks.append(module.register_forward_pre_hook(self._hook(kinks)))
        return self

    def _hook(self, kinks: Kinks) -> Callable[[nn.Module, Any], None]:
        return lambda _module, args: self.look(args[0] if args else None, kinks)

    def __exit__(self, *error: object) -> None:
        while self.hooks:
            self.hooks.pop().remove()


def activation_modules(model: nn.Module) -> dict[nn.Module, Kinks]:
    """Activations of torch.nn in the network, with their kinks."""
    found: dict[nn.Module, Kinks] = {}
    for module in model.modules():
        if type(module).__module__ == nn.ReLU.__module__ and not any(module.children()):
            like = next(module.parameters(), torch.zeros(1))
            with torch.no_grad(), FunctionWatch(1, lambda _number, _z, kinks: kinks) as watch:
                module(like.new_zeros(1, like.numel()))
            if len(watch.seen) == 1:
                found[module] = watch.seen[0]
    return found


_names: dict[Any, str] = {}  # cached: every torch function of a forward pass is looked up


def _name(func: Any) -> str:
    name = _names.get(func)
    if name is None:
        name = _names[func] = str(getattr(func, "__name__", "")).partition(".")[0].strip("_")
    return name


@dataclass(frozen=True)
class Rounding:
    """How far rounding may move the pre-activations of one activation, from a sample of rows."""

    scale: float = 0.0  # the largest root mean square of a row in the sample
    share: float = LEAST_ROUNDING  # of that, or of the row's own root mean square if it is larger
    has_ties: bool = False  # some are exactly at the kink in float64 too, as the zeros after another ReLU


UNKNOWN = Rounding()


def measured_rounding(in_float32: Sequence[tuple[Tensor, Kinks]], in_float64: Sequence[Tensor]) -> tuple[Rounding, ...]:
    """The rounding of each activation, from its inputs in both precisions at the same rows."""
    if [z.shape for z, _ in in_float32] != [z.shape for z in in_float64]:  # the network branches on numbers
        return ()
    return tuple(_rounding(z, kinks, exact) for (z, kinks), exact in zip(in_float32, in_float64, strict=True))


def _rounding(z: Tensor, kinks: Kinks, exact: Tensor) -> Rounding:
    scale, error = (float(_root_mean_square(t).max()) for t in (exact, z.double() - exact))
    tied = any(bool(((z == at) & (exact == at)).any()) for at in kinks)
    return Rounding(scale, max(LEAST_ROUNDING, ROUNDING_FACTOR * error / scale if scale else 0.0), tied)


def _root_mean_square(z: Tensor) -> Tensor:
    """Of each row (m,)."""
    z = z.flatten(1)
    return torch.linalg.vector_norm(z, dim=1) * z.shape[1] ** -0.5


class _Nearness(NamedTuple):
    """‖z‖ of each row and, per kink, ‖1/(z − kink)‖: together they tell how near a row comes to a kink."""

    size: Tensor  # (m,)
    inverses: tuple[Tensor, ...]  # (m,) each
    units: int


KinkWatch = FunctionWatch[_Nearness] | ModuleWatch[_Nearness]


class NearKinks:
    """Looks for rows with a pre-activation within rounding of a kink."""

    def __init__(self, roundings: Sequence[Rounding] = (), modules: Mapping[nn.Module, Kinks] | None = None) -> None:
        self.roundings = roundings
        self.modules = modules  # if all activations are modules
        self._known_limits: dict[tuple[tuple[int, int], ...], tuple[Tensor, Tensor]] = {}

    def watch(self, n_rows: int) -> KinkWatch:
        if self.modules is None:
            return FunctionWatch(n_rows, self._measure)
        return ModuleWatch(self.modules, n_rows, self._measure)

    def _measure(self, number: int, z: Tensor, kinks: Kinks) -> _Nearness:
        # ‖1/z‖ in place of 1/min|z|, which takes two to three times as long: the same where one of them is very near.
        z, has_ties = z if z.ndim == 2 else z.flatten(1), self._of(number).has_ties
        inverses = []
        for at in kinks:
            inverse = (z - at if at else z).reciprocal()
            if has_ties:
                inverse = inverse.nan_to_num_(posinf=0.0, neginf=0.0)
            inverses.append(torch.linalg.vector_norm(inverse, dim=1))
        return _Nearness(torch.linalg.vector_norm(z, dim=1), tuple(inverses), z.shape[1])

    def rows(self, watch: KinkWatch) -> list[int]:
        """The rows with a pre-activation near a kink; if there are none, waits for the device once."""
        pairs = [(i, seen, inverse) for i, seen in enumerate(watch.seen) for inverse in seen.inverses]
        if not pairs:
            return []
        scale, share = self._limits(tuple((i, seen.units) for i, seen, _ in pairs), like=pairs[0][2])
        size, inverse = torch.stack([seen.size for _, seen, _ in pairs]), torch.stack([own for *_, own in pairs])
        nearness = torch.maximum(size, scale).mul_(share).mul_(inverse)  # (A, m)
        if float(nearness.max()) < 1.0:
            return []
        return (nearness.amax(0) >= 1.0).nonzero().flatten().tolist()

    def _limits(self, layers: tuple[tuple[int, int], ...], like: Tensor) -> tuple[Tensor, Tensor]:
        """(scale, share) of each activation (A, 1), for norms instead of root mean squares."""
        if layers not in self._known_limits:
            own = [(self._of(i), units**0.5) for i, units in layers]
            values = [
                [rounding.scale * root for rounding, root in own],
                [rounding.share / root for rounding, root in own],
            ]
            scale, share = torch.tensor(values).unsqueeze(2).to(like)
            self._known_limits[layers] = scale, share
        return self._known_limits[layers]

    def _of(self, number: int) -> Rounding:
        return self.roundings[number] if number < len(self.roundings) else UNKNOWN
