"""Setups B and C: CIFAR-10 ResNets of third parties, as one log-odds and as ten logits with the softmax Hessian.

Setup B without training: the log-odds of classes 5–9 against 0–4 of a ten-class network, which is a single-logit model
of the same weights. The paper trains single-logit networks, ten times, and takes a WRN-28-10 as oracle; here the
ResNet-56 is the oracle of the ResNet-20 and the other way round, and there is one training of each. N = 2,000 training
and 1,000 test images, prior precision 1.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import METRICS, PAPER_K, Place, evaluate, metric_lines, pending, save_weights, write_spec

from sublaplace_cli.models.cifar_resnet import cifar_resnet

NAME = "cifar"
METHODS = ("gradient", "greedy", "subnet-diagonal", "last-k", "random", "neural-linear", "norm", "constant", "full")
RESCALED = ("gradient", "greedy", "random")
COLUMNS = ("dataset", "model", "method", "k", "seed", "rescale", "n_params", "n_train", "n_test", *METRICS)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
UPPER = (5, 6, 7, 8, 9)


@dataclass(frozen=True)
class Run:
    dataset: str  # binary (Setup B) or ten-class (Setup C)
    depth: int
    n_train: int
    n_test: int

    @property
    def model(self) -> str:
        return f"resnet{self.depth}"

    @property
    def key(self) -> tuple[str, ...]:
        return self.dataset, self.model, str(self.n_train)


def runs(place: Place) -> Iterator[Run]:
    if place.quick:
        yield Run("binary", 20, 24, 8)
        return
    yield Run("binary", 20, 2000, 1000)
    yield Run("binary", 56, 2000, 1000)
    yield Run("ten-class", 20, 2000, 1000)


def run(place: Place) -> None:
    """What is not there yet."""
    table = place.table(NAME, COLUMNS, ("dataset", "model", "n_train"))
    for one, folder in pending(place, NAME, table, runs(place)):
        table.add(list(evaluated(place, one, folder)))
        shutil.rmtree(folder / "run", ignore_errors=True)
        sys.stderr.write(f"cifar: {' '.join(one.key)}\n")


def evaluated(place: Place, one: Run, folder: Path) -> Iterator[dict[str, Any]]:
    data = place.data
    if data is None:
        data = folder
        made(folder)
    spec = write_spec(folder, spec_of(data, one))
    ks = PAPER_K[:2] if place.quick else PAPER_K
    for rescale in ("none", "scale", "hybrid"):
        methods = METHODS if rescale == "none" else RESCALED
        result = evaluate(spec, methods, ks, rescale=rescale, run_dir=folder / "run", max_artifact="8GiB")
        common = {"dataset": one.dataset, "model": one.model, "seed": 0, "rescale": rescale}
        yield from metric_lines(result, **common, **{key: result[key] for key in ("n_params", "n_train", "n_test")})


def made(folder: Path) -> None:
    """Images and weights of the same names, for a quick look without the data."""
    rng = np.random.default_rng(0)
    images = {
        f"{what}_{split}": rng.integers(0, 256 if what == "x" else 10, size=shape, dtype=np.uint8)
        for split in ("train", "test")
        for what, shape in (("x", (24, 32, 32, 3)), ("y", (24,)))
    }
    np.savez(folder / "cifar10_subset_2000_1000.npz", **images)
    for depth in (20, 56):
        torch.manual_seed(depth)
        save_weights(cifar_resnet(depth=depth, out=10, shortcut="A"), folder / weights(depth))


def weights(depth: int) -> str:
    return f"resnet{depth}_cifar10_akamaster.safetensors"


def network(data: Path, depth: int, binary: bool) -> dict[str, Any]:
    build = {"arch": "cifar_resnet", "args": {"depth": depth, "out": 10, "shortcut": "A"}}
    return {"build": build, "weights": {"path": str(data / weights(depth))}} | (
        {"wrap": {"binary-logodds": {"classes": list(UPPER)}}} if binary else {}
    )


def spec_of(data: Path, one: Run) -> dict[str, Any]:
    binary = one.dataset == "binary"
    return {
        "version": 1,
        "task": "binary" if binary else "multiclass",
        "model": network(data, one.depth, binary),
        "data": {
            "format": "npz",
            "path": str(data / "cifar10_subset_2000_1000.npz"),
            "transforms": [
                {"scale": 1 / 255},
                {"permute": [2, 0, 1]},
                {"normalise": {"mean": MEAN, "std": STD, "axis": 0}},
            ],
            "splits": {
                "train": {"arrays": {"input": "x_train", "target": "y_train"}, "rows": f"0:{one.n_train}"},
                "test": {"arrays": {"input": "x_test", "target": "y_test"}, "rows": f"0:{one.n_test}"},
            },
        },
        "posterior": {"prior_precision": 1.0},
        "oracle": network(data, 56 if one.depth == 20 else 20, binary),
    }
