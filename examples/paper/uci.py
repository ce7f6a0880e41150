"""Setup D: four UCI regressions, a small and a large MLP; what a sub-network of k parameters keeps, beside its rivals.

As in the paper: features and targets standardised on the training part, Adam at 1e-2 with a cosine schedule over
1,500 epochs, prior precision 1, noise variance from the residuals of the test rows. Replication r takes the standard
split r mod 20 and the initialisation with seed r. Every epoch is one step over all training rows: the paper names no
batch size.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import (
    METRICS,
    PAPER_K,
    Part,
    Place,
    by_rescaling,
    evaluate,
    metric_lines,
    save_weights,
    train_full_batch,
    unfinished,
    write_spec,
)

from sublaplace_cli import mlp

NAME = "uci"
SETS = ("boston", "concrete", "energy", "wine-quality-red")
HIDDEN = {"small": [50, 50], "large": [200, 200, 200]}
REPLICATIONS = {"small": 50, "large": 10}
EPOCHS, RATE = 1500, 1e-2
METHODS = (
    "gradient",
    "greedy",
    "subnet-diagonal",
    "last-k",
    "random",
    "sketch",
    "gradient+sketch",
    "neural-linear",
    "kfac",
    "norm",
    "constant",
    "full",
)
RESCALED = ("gradient", "greedy", "random", "sketch", "gradient+sketch")  # shown with --rescale as well
WAYS = [*((m, "none") for m in METHODS), *((m, rescale) for rescale in ("scale", "hybrid") for m in RESCALED)]
COLUMNS = ("dataset", "model", "method", "k", "seed", "split", "rescale", "n_params", "noise_variance", *METRICS)


@dataclass(frozen=True)
class Run:
    dataset: str
    model: str
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        return self.dataset, self.model, str(self.seed)

    @property
    def split(self) -> int:
        return self.seed % 20


def runs(place: Place) -> Iterator[Run]:
    """All replications, the first of every set before the second of any."""
    models = ("small",) if place.quick else tuple(HIDDEN)
    for seed in range(1 if place.quick else max(REPLICATIONS.values())):
        for model in models:
            for dataset in ("made",) if place.data is None else SETS[:1] if place.quick else SETS:
                if seed < REPLICATIONS[model]:
                    yield Run(dataset, model, seed)


def made_data(path: Path) -> None:
    """Synthetic rows in the format of the UCI files, for quick runs without them."""
    made = np.random.RandomState(1)
    X = made.normal(size=(200, 6))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * made.normal(size=200)
    order = [made.choice(200, 200, replace=False) for _ in range(20)]
    np.savez(path, X=X, y=y, train_idx=[rows[:180] for rows in order], test_idx=[rows[180:] for rows in order])


def run(place: Place) -> None:
    """All runs, or methods of a run, that are not in the table yet."""
    table = place.table(NAME, COLUMNS, ("dataset", "model", "seed", "method", "rescale"))
    for one, folder, missing in unfinished(place, NAME, table, runs(place), lambda _: WAYS):
        table.add(replication(place, one, folder, missing))
        shutil.rmtree(folder / "run", ignore_errors=True)
        sys.stderr.write(f"uci: {one.dataset}, {one.model} network, replication {one.seed}\n")


def replication(place: Place, one: Run, folder: Path, ways: Sequence[Part]) -> list[dict]:
    """Train, evaluate, rescale."""
    rows = folder / "rows.npz" if place.data is None else place.data / f"uci_{one.dataset}.npz"
    if place.data is None:
        made_data(rows)
    spec = write_spec(folder, spec_of(rows, one))
    if not (folder / "model.safetensors").exists():
        save_weights(trained(rows, one, 100 if place.quick else EPOCHS), folder / "model.safetensors")
    common = {"dataset": one.dataset, "model": one.model, "seed": one.seed, "split": one.split}
    lines = []
    for rescale, methods in by_rescaling(ways).items():
        size = sum(parameter.numel() for parameter in mlp(**architecture(rows, one)).parameters())
        ks = [k for k in PAPER_K[:3] if place.quick] or [k for k in PAPER_K if k <= size]
        result = evaluate(spec, methods, ks, rescale=rescale, run_dir=folder / "run")
        known = {"n_params": result["n_params"], "noise_variance": result["noise_variance"], "rescale": rescale}
        lines += metric_lines(result, **common, **known)
    return lines


def architecture(rows: Path, one: Run) -> dict:
    with np.load(rows) as data:
        return {"in": data["X"].shape[1], "hidden": HIDDEN[one.model], "out": 1, "act": "relu"}


def spec_of(rows: Path, one: Run) -> dict:
    splits = {name: {"indices": {"array": f"{name}_idx", "row": one.split}} for name in ("train", "test")}
    return {
        "version": 1,
        "task": "regression",
        "model": {
            "build": {"arch": "mlp", "args": architecture(rows, one)},
            "weights": {"path": "model.safetensors"},
        },
        "data": {
            "format": "npz",
            "path": str(rows),
            "arrays": {"input": "X", "target": "y"},
            "standardise": {"input": "from-train", "target": "from-train"},
            "splits": splits,
        },
        "posterior": {"prior_precision": 1.0, "noise_variance": {"from": "test"}},
    }


def trained(rows: Path, one: Run, epochs: int) -> torch.nn.Module:
    with np.load(rows) as data:
        X, y, chosen = data["X"], data["y"].reshape(-1, 1), data["train_idx"][one.split]
    std = [np.where((s := a[chosen].std(0)) > 0, s, 1.0) for a in (X, y)]
    x, target = (
        torch.from_numpy((a[chosen] - a[chosen].mean(0)) / s).float() for a, s in zip((X, y), std, strict=True)
    )
    torch.manual_seed(one.seed)
    model = mlp(**architecture(rows, one))
    train_full_batch(model, x, target, epochs, RATE)
    return model
