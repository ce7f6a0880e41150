"""A checkpoint → how its network may be built, from the names and shapes of its tensors alone."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...architectures.cifar_resnet import DEPTHS, cifar_resnet
from ...files.networks.checkpoints import PICKLE_SUFFIXES, load_state
from ...files.networks.exported import load_exported
from ...files.networks.names import natural_order, without_common_prefixes
from .huggingface import guess_from_folder
from .inference import Inference, NetworkGuess

CHECKPOINT_SUFFIXES = (".safetensors", ".pt2", *PICKLE_SUFFIXES)
MOST_ORDERS = 1000  # of layers that are tried
SHAPES_SHOWN, TRAINING_SHOWN = 40, 3
TRAINING = re.compile(r"(?:\w*_)?(?:loss(?:es)?|criterion|metrics?|accuracy)(?:_\w*)?\.", re.IGNORECASE)


def guess_network(path: Path, shown: str, memory: int) -> NetworkGuess:
    """`shown` is the path as the spec names it."""
    if path.is_dir():
        return guess_from_folder(path, shown)
    if path.suffix == ".pt2":
        module = load_exported(path, memory=memory)
        finding = Inference(
            "model", f"exported network ({_count(module)} parameters)", "sure", f"{path.name} is a .pt2"
        )
        return NetworkGuess({"exported": shown}, {}, (finding,), module=module)
    state = load_state(path, memory=memory)
    first, state = next(iter(state), ""), without_common_prefixes(state)[-1]
    prefix = first.removesuffix(next(iter(state), ""))
    weights: dict[str, Any] = {"path": shown} | ({"strip_prefix": prefix} if prefix else {})
    training, network = _without_training(state)
    if training:  # the network's own prefix, where all of its names have one
        inner = without_common_prefixes(network)[-1]
        own = prefix + next(iter(network)).removesuffix(next(iter(inner)))
        state, weights = inner, {"path": shown} | ({"strip_prefix": own} if own else {}) | {"strict": False}
    for recognise in (_cifar_resnet, _mlp):
        guess = recognise(path, state, weights)
        if guess is not None:
            left_out = ", ".join(training[:TRAINING_SHOWN]) + (" …" if len(training) > TRAINING_SHOWN else "")
            found = [Inference("left out", left_out, "likely", "tensors of the training")] if training else []
            return replace(guess, findings=(*guess.findings, *found))
    return _unknown(path, state, weights)


def _without_training(state: Mapping[str, Tensor]) -> tuple[list[str], dict[str, Tensor]]:
    """(tensors of losses and metrics, which checkpoints of Lightning may hold too; those of the network)."""
    training = [name for name in state if TRAINING.match(name)]
    network = {name: tensor for name, tensor in state.items() if name not in training}
    return (training, network) if network else ([], dict(state))


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _cifar_resnet(path: Path, state: dict[str, Tensor], weights: dict[str, Any]) -> NetworkGuess | None:
    if "layer1.0.conv1.weight" not in state or "linear.weight" not in state:
        return None
    blocks = len({name.split(".")[1] for name in state if name.startswith("layer1.")})
    args: dict[str, Any] = {"depth": 6 * blocks + 2, "out": len(state["linear.weight"])}
    args |= {"shortcut": "B" if "layer2.0.shortcut.0.weight" in state else "A"}
    if args["depth"] not in DEPTHS:
        return None
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in cifar_resnet(**args).state_dict().items()}
    counters = {name for name in {*expected, *state} if name.endswith("num_batches_tracked")}
    if {n: s for n, s in expected.items() if n not in counters} != {
        name: tensor.shape for name, tensor in state.items() if name not in counters
    }:
        return None
    value = f"cifar_resnet, depth {args['depth']}, shortcut {args['shortcut']}, {args['out']} outputs"
    finding = Inference("model", value, "sure", "names and shapes of all tensors")
    build = {"arch": "cifar_resnet", "args": args}
    return NetworkGuess(build, weights, (finding,), n_outputs=args["out"], takes="images", state=state)


def _mlp(path: Path, state: dict[str, Tensor], weights: dict[str, Any]) -> NetworkGuess | None:
    """Linear layers only, in an order in which their widths fit."""
    layers = sorted({name.rpartition(".")[0] for name in state}, key=natural_order)
    if not layers or {f"{layer}.weight" for layer in layers} - set(state):
        return None
    with_bias = [layer for layer in layers if f"{layer}.bias" in state]
    if len(state) != len(layers) + len(with_bias) or len(with_bias) not in (0, len(layers)):
        return None
    shapes = {layer: tuple(state[f"{layer}.weight"].shape) for layer in layers}
    if any(len(shape) != 2 for shape in shapes.values()):
        return None
    if any(state[f"{layer}.bias"].shape != (shapes[layer][0],) for layer in with_bias):
        return None
    orders = _orders(layers, shapes)
    order = next(orders, None)
    if order is None:
        return None
    ambiguous = next(orders, None) is not None
    widths = [shapes[order[0]][1], *(shapes[layer][0] for layer in order)]
    args: dict[str, Any] = {"in": widths[0], "hidden": widths[1:-1], "out": widths[-1]}
    args |= {} if with_bias else {"bias": False}
    value = f"mlp {'-'.join(map(str, widths))}"
    if ambiguous:
        reason = f"several orders of its layers fit; taken by name: {', '.join(order)}"
        findings = [Inference("model", value, "likely", reason)]
    else:
        findings = [Inference("model", value, "sure", f"linear layers only, widths fit: {', '.join(order)}")]
    new_names = {f"{layer}.": f"{2 * number}." for number, layer in enumerate(order)}
    if any(old != new for old, new in new_names.items()):
        weights = weights | {"rename": new_names}
        renamed = ", ".join(f"{old[:-1]} → {new[:-1]}" for old, new in new_names.items())
        findings.append(Inference("rename", renamed, findings[0].certainty, "an mlp numbers its layers 0, 2, 4, …"))
    named = {
        new + part: state[old + part]
        for old, new in new_names.items()
        for part in ("weight", "bias")[: 1 + bool(with_bias)]
    }
    build = {"arch": "mlp", "args": args}
    return NetworkGuess(build, weights, tuple(findings), widths[0], widths[-1], state=named)


def _orders(layers: list[str], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[list[str]]:
    """Orders in which each layer takes what the one before gives, the one by name first; a bounded search."""
    if all(shapes[one][0] == shapes[two][1] for one, two in pairwise(layers)):
        yield layers
    open_orders: list[list[str]] = [[layer] for layer in reversed(layers)]
    for _ in range(MOST_ORDERS):
        if not open_orders:
            return
        order = open_orders.pop()
        if len(order) == len(layers):
            if order != layers:
                yield order
            continue
        rest = [layer for layer in reversed(layers) if layer not in order]
        open_orders += [[*order, layer] for layer in rest if shapes[layer][1] == shapes[order[-1]][0]]


def _unknown(path: Path, state: dict[str, Tensor], weights: dict[str, Any]) -> NetworkGuess:
    shapes = [f"#   {name!a} {tuple(tensor.shape)}" for name, tensor in list(state.items())[:SHAPES_SHOWN]]
    more = [f"#   ... and {len(state) - SHAPES_SHOWN} more"] if len(state) > SHAPES_SHOWN else []
    stub = "\n".join([STUB, *shapes, *more, ""])
    reason = "its tensors are those of no built-in architecture"
    findings = (Inference("model", "your own code, my_network.py", "check", reason),)
    return NetworkGuess({"import": "my_network:make_network"}, weights, findings, stub=stub)


STUB = '''"""Builds the network of sublaplace.yaml; its weights are loaded by the tool."""

from torch import nn


def make_network() -> nn.Module:
    """TODO: return your network, for example: from mypackage.models import Net; return Net(width=64)."""
    raise RuntimeError("complete make_network() in my_network.py")


# The checkpoint has these tensors:'''
