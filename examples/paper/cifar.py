"""Setups B and C: CIFAR-10 ResNets, as one log-odds and as ten logits with the softmax Hessian.

`binary`: the log-odds of classes 5–9 against 0–4 of a given ten-class network, which is a single-logit model of the
same weights. `single-logit`: a network with one output, fine-tuned from those (see `cifar_training`). `ten-class`: the
given network as it is. N training images (2,000 where nothing else is said), 1,000 test images, prior precision 1. The
oracle of coverage is the given ResNet-56, and for itself the ResNet-20; the paper's is a WRN-28-10. One training of
each network and one choice of images; the paper has ten.
"""

from __future__ import annotations

import csv
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cifar_training import MEAN, STD, UPPER, normalised, train, weights_name
from common import (
    METRICS,
    PAPER_K,
    Notes,
    Part,
    Place,
    by_rescaling,
    evaluate,
    metric_lines,
    save_weights,
    unfinished,
    write_spec,
)
from safetensors.torch import load_file

from sublaplace_cli import cifar_resnet

NAME = "cifar"
PAPER_METHODS = ("gradient", "greedy", "subnet-diagonal", "last-k", "neural-linear")
SKETCHES = ("sketch", "gradient+sketch")
METHODS = (*PAPER_METHODS, "random", *SKETCHES, "kfac", "norm", "constant", "full")
TEN_CLASS_METHODS = (*PAPER_METHODS, "random", *SKETCHES, "kfac", "full")
RESCALED = ("gradient", "greedy", "random", *SKETCHES)
SUBSET = "cifar10_subset_2000_1000.npz"
CLASSES = 10
PER_CLASS = tuple(f"coverage95_class{c}" for c in range(CLASSES))
COLUMNS = (
    *("dataset", "model", "method", "k", "seed", "rescale", "n_params", "n_train", "n_test", *METRICS),
    *(*PER_CLASS, "run_seconds", "threads"),
)


@dataclass(frozen=True)
class Run:
    dataset: str  # binary or single-logit (Setup B), or ten-class (Setup C)
    depth: int
    n_train: int
    n_test: int

    @property
    def model(self) -> str:
        return f"resnet{self.depth}"

    @property
    def key(self) -> tuple[str, ...]:
        return self.dataset, self.model, str(self.n_train)

    @property
    def ten(self) -> bool:
        return self.dataset == "ten-class"

    @property
    def ways(self) -> list[Part]:
        """(method, rescaling) of this run."""
        if self.ten:
            return [(method, "none") for method in TEN_CLASS_METHODS]
        return [*((m, "none") for m in METHODS), *((m, rescale) for rescale in ("scale", "hybrid") for m in RESCALED)]


def runs(place: Place) -> Iterator[Run]:
    if place.quick:
        yield Run("binary", 20, 24, 8)
        yield Run("single-logit", 20, 24, 8)
        yield Run("ten-class", 20, 6, 3)
        return
    yield Run("binary", 20, 2000, 1000)
    yield Run("binary", 56, 2000, 1000)
    yield Run("single-logit", 20, 2000, 1000)
    yield Run("ten-class", 20, 2000, 1000)
    yield Run("ten-class", 56, 500, 1000)
    yield Run("single-logit", 110, 2000, 1000)
    yield Run("ten-class", 56, 1000, 500)


def run(place: Place) -> None:
    """All runs, or methods of a run, that are not in the table yet."""
    table = place.table(NAME, COLUMNS, ("dataset", "model", "n_train", "method", "rescale"))
    for one, folder, missing in unfinished(place, NAME, table, runs(place), lambda one: one.ways):
        table.add(list(evaluated(place, one, folder, missing)))
        shutil.rmtree(folder / "run", ignore_errors=True)
        sys.stderr.write(f"cifar: {' '.join(one.key)}\n")


def evaluated(place: Place, one: Run, folder: Path, ways: Sequence[Part]) -> Iterator[dict[str, Any]]:
    data = place.data
    if data is None:
        data = folder
        made(folder)
    spec = write_spec(folder, spec_of(place, data, one, folder))
    ks = PAPER_K[:2] if place.quick else PAPER_K
    # Ten classes give A 20,000 rows: products in float32, whose error the tool checks. The columns of all
    # candidates do not fit into memory: greedy has the paper's 2k + 1,000 candidates.
    options = {"gram_dtype": "float32", "pool": "paper"} if one.ten else {}
    reporter = None if place.quick else Notes()  # a run takes hours: show what it does
    measured = {"run_seconds": None, "threads": torch.get_num_threads()}
    for rescale, methods in by_rescaling(ways).items():
        file = folder / "predictions.csv"
        file.unlink(missing_ok=True)
        fresh, start = not (folder / "run").exists(), time.perf_counter()
        files = {"run_dir": folder / "run", "max_artifact": "32GiB", "predictions": file if one.ten else None}
        result = evaluate(spec, methods, ks, reporter, rescale=rescale, **files, **options)
        if fresh:  # the time of a resumed run would be too short
            measured["run_seconds"] = round(time.perf_counter() - start, 1)
        common = {"dataset": one.dataset, "model": one.model, "seed": 0, "rescale": rescale}
        common |= {key: result[key] for key in ("n_params", "n_train", "n_test")}
        covered = coverage_by_class(file, oracle_outputs(data, one)) if one.ten else {}
        for line in metric_lines(result, **common):
            yield line | covered.get((line["method"], line["k"]), {}) | measured


def coverage_by_class(file: Path, oracle: np.ndarray) -> Mapping[tuple[str, int | None], dict[str, float]]:
    """Share of the oracle's logits within 1.96 σ, per class, of every method in a file of predictions."""
    found: dict[tuple[str, int | None], list[list[bool]]] = {}
    with open(file, newline="") as opened:
        for line in csv.DictReader(opened):
            way = line["method"], int(line["k"]) if line["k"] else None
            row, c = int(line["row"]), int(line["output"])
            inside = abs(oracle[row, c] - float(line["mean"])) <= 1.96 * float(line["std"])
            found.setdefault(way, [[] for _ in PER_CLASS])[c].append(inside)
    return {
        way: {name: float(np.mean(inside)) for name, inside in zip(PER_CLASS, classes, strict=True)}
        for way, classes in found.items()
    }


def oracle_outputs(data: Path, one: Run) -> np.ndarray:
    """Logits of the test images by the other network."""
    model = cifar_resnet(depth=oracle_depth(one), out=CLASSES, shortcut="A")
    model.load_state_dict(load_file(data / weights_name(oracle_depth(one))))
    with np.load(data / SUBSET) as rows:
        x = torch.from_numpy(rows["x_test"][: one.n_test]).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        return torch.cat([model.eval()(normalised(part)) for part in x.split(100)]).double().numpy()


def made(folder: Path) -> None:
    """Random images and weights in files of the same names, for quick runs without the data."""
    rng = np.random.default_rng(0)
    images = {
        f"{what}_{split}": rng.integers(0, 256 if what == "x" else CLASSES, size=shape, dtype=np.uint8)
        for split in ("train", "test")
        for what, shape in (("x", (24, 32, 32, 3)), ("y", (24,)))
    }
    np.savez(folder / SUBSET, **images)
    np.savez(folder / "cifar10_train_10000.npz", x=images["x_train"], y=images["y_train"])
    for depth in (20, 56):
        torch.manual_seed(depth)
        save_weights(cifar_resnet(depth=depth, out=CLASSES, shortcut="A"), folder / weights_name(depth))


def oracle_depth(one: Run) -> int:
    return 20 if one.depth == 56 else 56


def ten_class_network(data: Path, depth: int, ten: bool) -> dict[str, Any]:
    build = {"arch": "cifar_resnet", "args": {"depth": depth, "out": CLASSES, "shortcut": "A"}}
    wrap = {} if ten else {"wrap": {"binary-logodds": {"classes": list(UPPER)}}}
    return {"build": build, "weights": {"path": str(data / weights_name(depth))}} | wrap


def single_logit_network(place: Place, data: Path, depth: int, folder: Path) -> dict[str, Any]:
    train(data, depth, folder / "model.safetensors", place.quick)
    build = {"arch": "cifar_resnet", "args": {"depth": depth, "out": 1, "shortcut": "A"}}
    return {"build": build, "weights": {"path": "model.safetensors"}}


def two_groups(data: Path, folder: Path) -> Path:
    """The images with the labels of a network with one output: 1 for the upper classes."""
    path = folder / "two_groups.npz"
    with np.load(data / SUBSET) as rows:
        y = {name: np.isin(rows[name], UPPER).astype(np.int64) for name in ("y_train", "y_test")}
        np.savez(path, x_train=rows["x_train"], x_test=rows["x_test"], **y)
    return path


def spec_of(place: Place, data: Path, one: Run, folder: Path) -> dict[str, Any]:
    single = one.dataset == "single-logit"
    model = (
        single_logit_network(place, data, one.depth, folder) if single else ten_class_network(data, one.depth, one.ten)
    )
    return {
        "version": 1,
        "task": "multiclass" if one.ten else "binary",
        "model": model,
        "data": {
            "format": "npz",
            "path": str(two_groups(data, folder) if single else data / SUBSET),
            "transforms": [
                {"scale": 1 / 255},
                {"permute": [2, 0, 1]},
                {"normalise": {"mean": list(MEAN), "std": list(STD), "axis": 0}},
            ],
            "splits": {
                "train": {"arrays": {"input": "x_train", "target": "y_train"}, "rows": f"0:{one.n_train}"},
                "test": {"arrays": {"input": "x_test", "target": "y_test"}, "rows": f"0:{one.n_test}"},
            },
        },
        "posterior": {"prior_precision": 1.0},
        "oracle": ten_class_network(data, oracle_depth(one), one.ten),
    }
