"""Setup A: YearPredictionMSD, a 3 × 200 MLP on 90 features of a song, and what it costs at full size.

As in the paper: targets standardised on the training part, Adam at 1e-3 with batches of 256 and a cosine schedule over
100 epochs, prior precision 1, noise variance the mean square of the residuals, at least 1e-3; ten seeds, the
first 10,000 test rows, an oracle of the same architecture with a longer schedule, and the ensemble of all seeds.
Ω comes from N training rows drawn afresh for each seed (the appendix says so, with N = 2,000, for Setups A and B).
The features are standardised too: their sizes differ by a factor of a thousand. The paper standardises the target and
speaks of no further feature engineering. How much longer the oracle's schedule is, it does not say: here three times.
Nor whose residuals: those of the training rows here, and once more those of the test rows (`…-test-noise`, as Setup D
has it).

Three sets of rows: `full`, where the data folder has YearPredictionMSD.txt (as the UCI archive has it); `subset`, the
genuine rows in year_subset1176.npz, 1,000 of them for training; `made`, made-up rows in the numbers of the full set
for what it costs, trained for an epoch, with Ω from all 463,715 rows and bounds in place of the full posterior.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    METRICS,
    PAPER_K,
    Place,
    SeedRun,
    claimed,
    evaluate,
    metric_lines,
    save_weights,
    unfinished,
    write_spec,
)
from safetensors.torch import load_file
from torch import Tensor, nn

from sublaplace_cli import mlp

NAME = "year"
FULL_FILE, SUBSET_FILE = "YearPredictionMSD.txt", "year_subset1176.npz"
TRAIN_ROWS, FEATURES = 463_715, 90
ARCHITECTURE = {"in": FEATURES, "hidden": [200, 200, 200], "out": 1, "act": "relu"}
EPOCHS, LONGER, BATCH, RATE = 100, 3, 256, 1e-3
ORACLE_SEED = 1000
LEAST_NOISE = 1e-3
BOUNDS = ("w2_low", "w2_high")  # of `--full bracket`
PAPER_METHODS = ("gradient", "greedy", "subnet-diagonal", "last-k", "neural-linear")
METHODS = (*PAPER_METHODS, "random", "sketch", "gradient+sketch", "kfac", "norm", "constant", "ensemble", "full")
COLUMNS = (
    *("dataset", "model", "method", "k", "seed", "n_params", "n_train", "n_test", "noise_variance", *METRICS),
    *(*BOUNDS, "train_seconds", "run_seconds", "peak_gb", "threads"),
)


@dataclass(frozen=True)
class Set:
    """A data set and its settings."""

    rows: str  # full, subset or made
    n_train: int  # rows of Ω
    n_test: int
    epochs: int
    seeds: int
    ks: tuple[int, ...] = PAPER_K
    methods: tuple[str, ...] = METHODS
    full: str = "exact"
    noise: str = "train"  # the rows whose residuals give the noise variance


SETS = {
    "subset": Set("subset", 1000, 176, EPOCHS, 10),
    "subset-test-noise": Set("subset", 1000, 176, EPOCHS, 10, noise="test"),
    "full": Set("full", 2000, 10_000, EPOCHS, 10),
    "full-test-noise": Set("full", 2000, 10_000, EPOCHS, 10, noise="test"),
    "made": Set("made", TRAIN_ROWS, 10_000, 1, 1, PAPER_K[:5], PAPER_METHODS, "bracket"),
}
QUICK = {"made": Set("made", 300, 50, 2, 2, PAPER_K[:2])}


def sets(place: Place) -> dict[str, Set]:
    if place.quick:
        return QUICK
    there = {"made": True, "subset": _exists(place, SUBSET_FILE), "full": _exists(place, FULL_FILE)}
    return {name: one for name, one in SETS.items() if there[one.rows]}


def _exists(place: Place, name: str) -> bool:
    return place.data is not None and (place.data / name).exists()


def run(place: Place) -> None:
    """All runs, or methods of a run, that are not in the table yet."""
    table, known = place.table(NAME, COLUMNS, ("dataset", "seed", "method")), sets(place)
    todo = [SeedRun(name, seed) for name, one in known.items() for seed in range(one.seeds)]
    methods = {name: [(method,) for method in one.methods] for name, one in known.items()}
    for one, folder, missing in unfinished(place, NAME, table, todo, lambda one: methods[one.dataset]):
        wanted = [method for (method,) in missing]
        table.add(list(replication(place, one, known[one.dataset], folder, wanted)))
        shutil.rmtree(folder / "run", ignore_errors=True)
        sys.stderr.write(f"year: {one.dataset}, seed {one.seed}\n")


def replication(
    place: Place, one: SeedRun, what: Set, folder: Path, methods: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Train the network, the oracle and, for the ensemble, those of the other seeds; evaluate."""
    rows = prepared(place, what.rows)
    members = [trained(place, rows, what, f"seed{seed}", seed, what.epochs) for seed in range(what.seeds)]
    oracle = trained(place, rows, what, "oracle", ORACLE_SEED, LONGER * what.epochs)
    spec = write_spec(folder, spec_of(rows, [path for path, _ in members], oracle[0], one, what))
    if what.full != "exact":  # this run measures the cost: a resumed run would be too short
        shutil.rmtree(folder / "run", ignore_errors=True)
    fresh, start = not (folder / "run").exists(), time.perf_counter()
    options = {} if what.full == "exact" else {"full": what.full, "pool": "2k"}
    result = evaluate(spec, methods, what.ks, run_dir=folder / "run", max_artifact="1GiB", **options)
    timing = {
        "train_seconds": members[one.seed][1],
        "run_seconds": round(time.perf_counter() - start, 1) if fresh else None,
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "threads": torch.get_num_threads(),
    }
    known = {name: result[name] for name in ("n_params", "n_train", "n_test", "noise_variance")}
    lines = metric_lines(result, dataset=one.dataset, model="mlp-3x200", seed=one.seed, **known)
    for line, row in zip(lines, result["rows"], strict=True):
        yield line | {name: row.get(name) for name in BOUNDS} | timing


# --- rows ---------------------------------------------------------------------------------------------------


def prepared(place: Place, name: str) -> Path:
    """x_train, y_train, x_test, y_test as float32 in one file, made once."""
    with claimed(place, f"{NAME}/rows-{name}", wait=True) as folder:
        assert folder is not None
        path = folder / "rows.npz"
        if not path.exists():
            X, y, train = rows_of(place, name)
            X, y = X.astype(np.float32), y.astype(np.float32).reshape(-1, 1)
            part = path.with_suffix(".part.npz")
            np.savez(part, x_train=X[:train], y_train=y[:train], x_test=X[train:], y_test=y[train:])
            part.replace(path)
    return path


def rows_of(place: Place, name: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Features, years, and how many of the rows are for training: the first."""
    if name == "made":
        train, test = (300, 50) if place.quick else (TRAIN_ROWS, 51_630)
        return *made_rows(train + test), train
    assert place.data is not None
    if name == "full":
        table = np.loadtxt(place.data / FULL_FILE, delimiter=",", dtype=np.float32)
        if table.shape[1] != 1 + FEATURES or len(table) <= TRAIN_ROWS:
            raise SystemExit(f"{place.data / FULL_FILE}: expected 515345 lines of a year and 90 features")
        return table[:, 1:], table[:, 0], TRAIN_ROWS  # the archive's own split
    with np.load(place.data / SUBSET_FILE) as data:
        order = np.random.default_rng(0).permutation(len(data["X"]))
        return data["X"][order], data["y"][order], 1000


def made_rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of very different sizes and a year that depends on some of them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((count, FEATURES), dtype=np.float32)
    signal = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
    y = 1998 + 6 * signal + 8 * rng.standard_normal(count, dtype=np.float32)
    return X * np.logspace(0, 3, FEATURES, dtype=np.float32), y


def scaling(rows: Path) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation of the whole training part: Ω may be made from fewer rows."""
    with np.load(rows) as data:
        parts = {"input": data["x_train"].astype(np.float64), "target": data["y_train"].astype(np.float64)}
    return {name: {"mean": a.mean(0).tolist(), "std": a.std(0).tolist()} for name, a in parts.items()}


def standardised(rows: Path, part: str = "train") -> tuple[Tensor, Tensor]:
    with np.load(rows) as data:
        pairs = ((data[f"x_{part}"], "input"), (data[f"y_{part}"], "target"))
        scale = scaling(rows)
        x, y = (torch.from_numpy((a - scale[s]["mean"]) / scale[s]["std"]).float() for a, s in pairs)
    return x, y


# --- networks -----------------------------------------------------------------------------------------------


def trained(place: Place, rows: Path, what: Set, name: str, seed: int, epochs: int) -> tuple[Path, float]:
    """(weights, seconds that the training took); trained once, by the first process that needs it."""
    with claimed(place, f"{NAME}/rows-{what.rows}-{name}", wait=True) as folder:
        assert folder is not None
        path, took = folder / "model.safetensors", folder / "seconds"
        if not path.exists():
            start = time.perf_counter()
            model = fitted(rows, seed, epochs)
            took.write_text(f"{time.perf_counter() - start:.1f}")
            save_weights(model, path)
        return path, float(took.read_text())


def fitted(rows: Path, seed: int, epochs: int) -> nn.Module:
    x, y = standardised(rows)
    torch.manual_seed(seed)
    model = mlp(**ARCHITECTURE)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad(set_to_none=True)
            nn.functional.mse_loss(model(x[batch]), y[batch]).backward()
            optimiser.step()
        schedule.step()
    return model


def residual_noise(rows: Path, weights: Path, part: str) -> float:
    """Mean square of the residuals on the training or the test part, not below the paper's floor."""
    x, y = standardised(rows, part)
    model = mlp(**ARCHITECTURE)
    model.load_state_dict(load_file(weights))
    with torch.no_grad():
        squares = [(model(a) - b).double().square().sum() for a, b in zip(x.split(4096), y.split(4096), strict=True)]
    return max(float(sum(squares)) / len(x), LEAST_NOISE)


def spec_of(rows: Path, members: Sequence[Path], oracle: Path, one: SeedRun, what: Set) -> dict[str, Any]:
    weights = members[one.seed]
    train: dict[str, Any] = {"arrays": {"input": "x_train", "target": "y_train"}}
    with np.load(rows) as data:
        if what.n_train < len(data["y_train"]):
            train |= {"n": what.n_train, "seed": one.seed}
    return {
        "version": 1,
        "task": "regression",
        "model": {"build": {"arch": "mlp", "args": ARCHITECTURE}, "weights": {"path": str(weights)}},
        "data": {
            "format": "npz",
            "path": str(rows),
            "standardise": scaling(rows),
            "splits": {
                "train": train,
                "test": {"arrays": {"input": "x_test", "target": "y_test"}, "rows": f"0:{what.n_test}"},
            },
        },
        "posterior": {"prior_precision": 1.0, "noise_variance": residual_noise(rows, weights, what.noise)},
        "oracle": {"weights": {"path": str(oracle)}},
    } | ({"ensemble": {"checkpoints": [str(path) for path in members]}} if len(members) > 1 else {})
