"""Cost of a served batch: `python serving.py serve-NETWORK-BATCH` prints {seconds, plain, ratio, …} as JSON.

A predictor of a stored posterior over k = 1000 parameters, compared with a plain forward and backward of the same
batch: `ratio` is (prediction − solve) / plain. The solve is the float64 work that the stored factor requires of any
implementation. The three are measured in turns, so that none finds a cache that only its own repeats would fill, and
the medians count. `ratio_of_least`, from the least times, is less affected by other processes.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import problems
import torch
from large import images, prepare, resnet
from safetensors.torch import load_file
from torch import Tensor, nn

from sublaplace_cli import load_predictor, run_command

K, TEST_ROWS, WARM_UP = 1000, 8, 5
ROUNDS = {"serve-mlp-1": 400, "serve-mlp-64": 200, "serve-resnet20-1": 60, "serve-resnet20-64": 15}
Work = Callable[[], object]


def served_mlp(folder: Path) -> nn.Module:
    """90-200-200-200-1, fitted to 500 rows."""
    model, n_rows = problems.ready(problems.mlp).cpu(), 500
    made = np.random.default_rng(0)
    x = made.standard_normal((n_rows + TEST_ROWS, 90), dtype=np.float32)
    np.savez(folder / "rows.npz", x=x, y=made.standard_normal(len(x)))
    build = "{arch: mlp, args: {in: 90, hidden: [200, 200, 200], out: 1, act: relu}}"
    prepare(folder, model, build, "regression", n_rows, TEST_ROWS)
    return model


def served_resnet20(folder: Path) -> nn.Module:
    """One logit, fitted to 300 images."""
    model, n_rows = problems.ready(lambda: resnet(20, 1)).cpu(), 300
    images(folder, n_rows + TEST_ROWS, 2)
    build = "{arch: cifar_resnet, args: {depth: 20, out: 1, shortcut: B}}"
    prepare(folder, model, build, "binary", n_rows, TEST_ROWS)
    return model


def solver(path: Path, n_outputs: int) -> Work:
    """The product and the triangular solve with the stored tensors: A′g and L⁻¹(A′g), or L⁻¹g in the primal form."""
    stored = {name: tensor.to(problems.DEVICE) for name, tensor in load_file(path).items()}
    g = problems.rows(K, n_outputs, seed=1).double()
    L, columns = stored["factor"].T.contiguous().T, stored.get("columns")  # by columns, as LAPACK reads it

    def solve() -> Tensor:
        right = g if columns is None else columns.T @ g
        return torch.linalg.solve_triangular(L, right, upper=False).square_().sum(0)

    return solve


def in_turns(works: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, one after the other in every round."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + WARM_UP):
        for name, work in works.items():
            start = problems.now()
            work()
            seconds[name].append(problems.now() - start)
    return {name: values[WARM_UP:] for name, values in seconds.items()}


def over_plain(found: dict[str, float]) -> float:
    return (found["predict"] - found["solve"]) / found["plain"]


def measured(case: str, folder: Path) -> dict:
    network, _, batch = case.removeprefix("serve-").rpartition("-")
    model = {"mlp": served_mlp, "resnet20": served_resnet20}[network](folder)
    spec = folder / "sublaplace.yaml"
    fitted = run_command("fit", spec=spec, method="gradient", k=str(K), device=str(problems.DEVICE))
    (path,) = (Path(name) for kind, name in fitted["artifacts"].items() if kind.startswith("posterior"))
    model = model.to(problems.DEVICE)
    shape = (90,) if network == "mlp" else (3, 32, 32)
    x = problems.rows(int(batch), *shape, seed=2)
    predict = load_predictor(path, model)

    def plain() -> None:
        model.zero_grad()
        model(x).sum().backward()

    works: dict[str, Work] = {"predict": lambda: predict(x), "plain": plain, "solve": solver(path, len(x))}
    seconds = in_turns(works, ROUNDS[case])
    found = {name: statistics.median(values) for name, values in seconds.items()}
    least = over_plain({name: min(values) for name, values in seconds.items()})
    result = {"seconds": found["predict"], "plain": found["plain"], "solve": found["solve"]}
    return {**result, "ratio": over_plain(found), "ratio_of_least": least}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = measured(sys.argv[1], Path(folder))
    json.dump({**result, "peak": problems.peak_bytes()}, sys.stdout)


if __name__ == "__main__":
    main()
