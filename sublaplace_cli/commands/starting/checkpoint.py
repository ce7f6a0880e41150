"""A checkpoint → how its network may be built, from the names and shapes of its tensors alone."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...architectures.cifar_resnet import DEPTHS, cifar_resnet
from ...errors import UserError
from ...files.networks.checkpoints import PICKLE_SUFFIXES, load_state
from ...files.networks.exported import load_exported
from ...files.networks.loading import COMMON_PREFIXES
from ...json_files import parse_json
from .inference import Inference

CHECKPOINT_SUFFIXES = (".safetensors", ".pt2", *PICKLE_SUFFIXES)
MOST_CONFIG_BYTES = 2**20
MOST_ORDERS = 1000  # of layers that are tried
SHAPES_SHOWN = 40


@dataclass(frozen=True)
class NetworkGuess:
    """The `model` section of the spec."""

    build: dict[str, Any]
    weights: dict[str, Any]
    findings: tuple[Inference, ...]
    n_inputs: int | None = None  # numbers per row, if it takes a table
    n_outputs: int | None = None
    takes: str = "numbers"  # or "text", "images"
    state: dict[str, Tensor] = field(default_factory=dict)  # under the names of the built network
    module: torch.nn.Module | None = None  # an exported network
    stub: str | None = None  # Python code to complete


def guess_network(path: Path, shown: str, memory: int) -> NetworkGuess:
    """`shown` is the path as the spec names it."""
    if path.is_dir():
        return _huggingface(path, shown)
    if path.suffix == ".pt2":
        module = load_exported(path, memory=memory)
        finding = Inference(
            "model", f"exported network ({_count(module)} parameters)", "sure", f"{path.name} is a .pt2"
        )
        return NetworkGuess({"exported": shown}, {}, (finding,), module=module)
    state = load_state(path, memory=memory)
    prefix, state = _without_common_prefix(state)
    weights: dict[str, Any] = {"path": shown} | ({"strip_prefix": prefix} if prefix else {})
    for recognise in (_cifar_resnet, _mlp):
        guess = recognise(path, state, weights)
        if guess is not None:
            return guess
    return _unknown(path, state, weights)


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _without_common_prefix(state: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """What DataParallel, Lightning and torch.compile put before every key, and the state without it."""
    removed, current = "", dict(state)
    while prefix := next((p for p in COMMON_PREFIXES if current and all(n.startswith(p) for n in current)), None):
        removed += prefix
        current = {name.removeprefix(prefix): tensor for name, tensor in current.items()}
    return removed, current


def _huggingface(path: Path, shown: str) -> NetworkGuess:
    config = path / "config.json"
    if not config.is_file():
        raise UserError(f"{path}: is a folder without a config.json", hint="expected a Hugging Face folder or a file")
    if config.stat().st_size > MOST_CONFIG_BYTES:
        raise UserError(f"{config}: is larger than {MOST_CONFIG_BYTES} bytes", hint="expected a small JSON file")
    try:
        content = parse_json(config.read_text(encoding="utf-8"))
        names = content.get("architectures") or ["?"]
        labels = content.get("id2label")
    except (ValueError, AttributeError, OSError) as error:
        raise UserError(f"{config}: is not a JSON object ({error})", hint="save the model again") from error
    n_outputs = len(labels) if isinstance(labels, dict) else None
    takes = "text" if (path / "tokenizer.json").is_file() or (path / "tokenizer_config.json").is_file() else "numbers"
    finding = Inference("model", f"Hugging Face {json.dumps(names[0])[1:-1]}", "sure", "config.json")
    return NetworkGuess({"huggingface": shown}, {}, (finding,), n_outputs=n_outputs, takes=takes)


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
    layers = sorted({name.rpartition(".")[0] for name in state}, key=_natural)
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


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """fc2 before fc10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d{1,9})", name)]


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
