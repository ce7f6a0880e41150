"""`arch: mlp`: a plain nn.Sequential of Linear, activation, …, Linear."""

from itertools import pairwise
from typing import Any

from torch import nn

from .arguments import one_of, positive_int, refuse_unknown, required, wrong_argument

MOST_HIDDEN = 1000
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "sigmoid": nn.Sigmoid,
    "leaky_relu": nn.LeakyReLU,
}


def mlp(**args: Any) -> nn.Sequential:
    """Linear, act, …, Linear (keys 0.weight, 0.bias, 2.weight, …); args: in, hidden, out (1), act (relu), bias."""
    refuse_unknown("mlp", args, ("in", "hidden", "out", "act", "bias"))
    inputs = positive_int("mlp", "in", required("mlp", args, "in", "in: 10, hidden: [50, 50], out: 1"))
    hidden = required("mlp", args, "hidden", "in: 10, hidden: [50, 50], out: 1")
    if not isinstance(hidden, (list, tuple)):
        hint = "for example hidden: [50, 50]; an empty list gives one linear layer"
        raise wrong_argument("mlp", "hidden", hidden, "a list of widths", hint)
    if len(hidden) > MOST_HIDDEN:
        raise wrong_argument("mlp", "hidden", f"{len(hidden)} widths", f"at most {MOST_HIDDEN}")
    widths = [positive_int("mlp", f"hidden[{i}]", width) for i, width in enumerate(hidden)]
    outputs = positive_int("mlp", "out", args.get("out", 1))
    activation = ACTIVATIONS[one_of("mlp", "act", args.get("act", "relu"), ACTIVATIONS)]
    bias = args.get("bias", True)
    if not isinstance(bias, bool):
        raise wrong_argument("mlp", "bias", bias, "true or false")
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise([inputs, *widths, outputs]):
        layers += [nn.Linear(width_in, width_out, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])
