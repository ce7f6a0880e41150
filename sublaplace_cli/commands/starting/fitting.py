"""Which activation, standardisation and order of classes make the network fit its rows? The weights cannot tell."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import catalog
from ...architectures.mlp import ACTIVATIONS, mlp
from .inference import CLASSES, Certainty, Inference, NetworkGuess

FITTED_ROWS = 2000
GOOD, AHEAD = 0.2, 0.02  # share of the variance or log-likelihood that is explained; lead over the next


@dataclass(frozen=True)
class Setting:
    activation: str | None
    input: str  # none or from-train
    target: str
    classes: tuple[str, ...] = ()  # labels in the order of the outputs, where nothing else tells it


@dataclass(frozen=True)
class Fit:
    """The best setting; `explained` is 1 for a perfect network, 0 for the trivial guess."""

    setting: Setting
    explained: float
    findings: tuple[Inference, ...]


def best_fit(
    network: NetworkGuess, X: np.ndarray, y: np.ndarray, task: str, asked: str | None, labels: Sequence[str] = ()
) -> Fit | None:
    """Try all settings on the first rows; None if the network does not run on them.

    `labels` are those of the class numbers in y, where their order is open.
    """
    rows, targets = torch.as_tensor(X[:FITTED_ROWS], dtype=torch.float32), torch.as_tensor(y[:FITTED_ROWS])
    inputs = {"none": rows, "from-train": _standardised(rows)}
    found: dict[Setting, float] = {}
    for activation, run in _networks(network, asked):
        for name, kind in product(inputs, ("none",) if catalog.TASKS[task].labels else ("none", "from-train")):
            try:
                with torch.no_grad():
                    outputs = run(inputs[name])
            except Exception:  # shapes that do not fit: the evaluation will say what is wrong
                return None
            for order in _orders(outputs, targets, task, len(labels)):
                classes, numbers = tuple(labels[place] for place in order), targets
                if order:
                    numbers = torch.tensor(order).argsort()[targets.long()]
                found[Setting(activation, name, kind, classes)] = _explained(outputs, numbers, task, kind)
    best = _usual(max(found, key=lambda setting: found[setting]), found)
    return Fit(best, found[best], tuple(_findings(best, found)))


def _usual(best: Setting, found: Mapping[Setting, float]) -> Setting:
    """relu, where leaky_relu, which differs little, is hardly ahead."""
    relu = replace(best, activation="relu")
    return relu if best.activation == "leaky_relu" and found[best] - found.get(relu, -math.inf) < AHEAD else best


def _networks(network: NetworkGuess, asked: str | None) -> Iterator[tuple[str | None, Callable[[Tensor], Tensor]]]:
    if network.module is not None:
        yield None, network.module
        return
    args = network.build["args"]
    for activation in (asked,) if asked else ACTIVATIONS if args["hidden"] else ("relu",):
        module: nn.Module = mlp(**args, act=activation).eval()
        module.load_state_dict({name: tensor.float() for name, tensor in network.state.items()})
        yield activation if args["hidden"] else None, module


def _standardised(rows: Tensor) -> Tensor:
    std = rows.std(0, correction=0)
    return (rows - rows.mean(0)) / torch.where(std > 0, std, 1.0)


def _orders(outputs: Tensor, targets: Tensor, task: str, n_labels: int) -> Iterator[tuple[int, ...]]:
    """Classes in the order of the outputs: as they are, and each at the output that is largest at its rows."""
    yield tuple(range(n_labels))
    f = _logits(outputs, task)
    if n_labels < 2 or f.ndim != 2 or f.shape[1] != n_labels:
        return
    log_p, y = f.double().log_softmax(1), targets.long().flatten()
    rows = [log_p[y == number] for number in range(n_labels)]
    if not all(map(len, rows)):
        return
    at = [int(own.mean(0).argmax()) for own in rows]  # the output of each class
    if sorted(at) == list(range(n_labels)) and at != sorted(at):
        yield tuple(at.index(number) for number in range(n_labels))


def _logits(outputs: Tensor, task: str) -> Tensor:
    """One logit for each class."""
    if not catalog.TASKS[task].one_logit:
        return outputs
    return torch.cat([torch.zeros(len(outputs), 1), outputs.reshape(len(outputs), -1)], 1)


def _explained(outputs: Tensor, targets: Tensor, task: str, target_kind: str) -> float:
    """1 − loss / loss of the trivial guess: R², or the same with log-likelihoods."""
    if not catalog.TASKS[task].labels:
        y = targets.double().reshape(len(outputs), -1)
        y = _standardised(y) if target_kind == "from-train" else y
        if outputs.shape != y.shape:
            return -math.inf
        return float(1 - (outputs.double() - y).square().mean() / y.var(0, correction=0).mean())
    outputs = _logits(outputs, task)
    labels = targets.long().flatten()
    if outputs.ndim != 2 or int(labels.min()) < 0 or int(labels.max()) >= outputs.shape[1]:
        return -math.inf
    shares = torch.bincount(labels).double() / len(labels)
    trivial = -float(torch.xlogy(shares, shares).sum())
    return 1 - float(F.cross_entropy(outputs.double(), labels)) / trivial if trivial > 0 else -math.inf


def _findings(best: Setting, found: dict[Setting, float]) -> Iterator[Inference]:
    for topic, name in (("activation", "activation"), ("standardise input", "input"), ("standardise target", "target")):
        value = getattr(best, name)
        others = {share: getattr(setting, name) for setting, share in found.items() if getattr(setting, name) != value}
        if value is None or (not others and name == "target"):
            continue
        certainty = _certainty(found[best], others)
        if name == "activation" and certainty == "likely" and {value, others[max(others)]} != {"relu", "leaky_relu"}:
            certainty = "check"  # another function that explains as much gives other gradients
        yield Inference(topic, value, certainty, _reason(found[best], others))
    if best.classes:
        others = {share: ", ".join(own.classes) for own, share in found.items() if own.classes != best.classes}
        certainty = _certainty(found[best], others)  # two classes that are rarely right could be swapped: never sure
        shown = (CLASSES, ", ".join(best.classes), "likely" if certainty == "sure" else certainty)
        yield Inference(*shown, _reason(found[best], others))


def _certainty(best: float, others: Mapping[float, str]) -> Certainty:
    if best < GOOD or best <= max(others, default=-math.inf):
        return "check"
    return "sure" if best - max(others, default=-math.inf) > AHEAD else "likely"


def _reason(best: float, others: Mapping[float, str]) -> str:
    if best < GOOD:
        return "the network does not fit these rows with any setting that was tried"
    next_best = max(others, default=None)
    versus = "" if next_best is None else f"; next best: {others[next_best]}, {_percent(next_best)}"
    return f"with it the network explains {_percent(best)} of the targets' variation{versus}"


def _percent(share: float) -> str:
    return "nothing" if share < 0 else f"{share:.0%}"
