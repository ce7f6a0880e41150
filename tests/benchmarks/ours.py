"""One case of our side in this process: `python ours.py CASE` prints {seconds, peak, …} as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import problems
import torch
from torch import Tensor, nn

from sublaplace_cli import (
    Regression,
    cifar_resnet,
    dense_jacobian,
    fit,
    full_posterior,
    jacobian,
    precision,
    select,
)

MEMORY = 8 * 2**30
ONE_PASS = 128 * 2**20  # a budget in which the rows of one pass are summed at a time, without joining several passes
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages, as the command sets it; before the first tensor


def resnet20() -> nn.Module:
    return cifar_resnet(depth=20, out=1, shortcut="B")


def checked(model: nn.Module, x: Tensor) -> Any:
    """A Jacobian of a few rows, for `like`: the network's checks are done once and outside of the measured time."""
    return jacobian(model, x[:4], memory=MEMORY)


def omega_of(rows: Any, memory: int = MEMORY) -> Any:
    return precision(rows, Regression(problems.SIGMA2), memory=memory)


def subnet(build: Callable[[], nn.Module], x: Tensor, x_test: Tensor, k: int) -> dict:
    """Jacobians of both, scores, selection, columns, fit, variance."""
    model = problems.ready(build)
    few = checked(model, x)

    def work() -> Tensor:
        omega, test = omega_of(jacobian(model, x, like=few)), jacobian(model, x_test, like=few)
        return fit(omega, select(omega, "gradient", k)).variance(test)

    seconds, variance = problems.timed(work)
    result = {"seconds": seconds, "mean_variance": float(variance.mean()), "peak": problems.peak_bytes()}
    N, M = len(x), len(x_test)
    products = [(k, N, k, 0.5)] if k <= N else [(N, k, N, 0.5), (N, k, M, 1.0)]
    floor = bare_work(products, min(k, N), M) + plain_passes(model, torch.cat([x, x_test]))
    return {**result, "floor": floor}


def bare_work(products: list[tuple[int, int, int, float]], factored: int, solved: int) -> float:
    """Seconds of the float64 products (sizes, and the share of each that is needed), of one factorisation and of the
    triangular solves that every exact posterior needs."""
    seconds = 0.0
    for n, inner, m, share in products:
        A, B = problems.rows(n, inner, seed=1).double(), problems.rows(inner, m, seed=2).double()
        out = torch.empty(n, m, dtype=torch.float64, device=problems.DEVICE)
        seconds += share * problems.timed(lambda A=A, B=B, out=out: torch.mm(A, B, out=out))[0]  # type: ignore[misc]
    X = problems.rows(factored, factored, seed=3).double()
    K = X @ X.T + factored * torch.eye(factored, dtype=torch.float64, device=problems.DEVICE)
    G = problems.rows(factored, solved, seed=4).double()
    L = torch.linalg.cholesky(K)
    seconds += problems.timed(lambda: torch.linalg.cholesky(K))[0]
    return seconds + problems.timed(lambda: torch.linalg.solve_triangular(L, G, upper=False))[0]


def plain_passes(model: nn.Module, x: Tensor, batch: int = 128) -> float:
    """Seconds of a plain forward and backward over these rows."""

    def work() -> None:
        for a in range(0, len(x), batch):
            model.zero_grad()
            model(x[a : a + batch]).sum().backward()

    return problems.timed(work)[0]


def full(build: Callable[[], nn.Module], x: Tensor, x_test: Tensor) -> dict:
    """Jacobians of both, Gram matrix, factor, variance."""
    model = problems.ready(build)
    few = checked(model, x)

    def work() -> Tensor:
        omega, test = omega_of(jacobian(model, x, like=few)), jacobian(model, x_test, like=few)
        return full_posterior(omega).variance(test)

    seconds, variance = problems.timed(work)
    result = {"seconds": seconds, "mean_variance": float(variance.mean()), "peak": problems.peak_bytes()}
    N, M = len(x), len(x_test)
    inner = [int(d) for layer in model.modules() if isinstance(layer, nn.Linear) for d in layer.weight.shape]
    products = [(N, d, m, share) for d in inner for m, share in ((N, 0.5), (M, 1.0))]
    floor = bare_work(products, N, M) + plain_passes(model, torch.cat([x, x_test]))
    return {**result, "error": full_error(model.double(), x[:300].double(), x_test[:20].double()), "floor": floor}


def full_error(model: nn.Module, x: Tensor, x_test: Tensor) -> float:
    """Largest relative difference, for a float64 network, from a dense solve with rows by plain autograd."""
    found = full_posterior(omega_of(jacobian(model, x, memory=MEMORY))).variance(jacobian(model, x_test)).flatten()
    J, g = problems.dense_rows(model, x), problems.dense_rows(model, x_test)
    kernel = J @ J.T + problems.SIGMA2 * torch.eye(len(J), dtype=torch.float64, device=problems.DEVICE)
    w = torch.linalg.solve(kernel, J @ g.T)
    expected = (g - w.T @ J).square().sum(1) + problems.SIGMA2 * w.square().sum(0)
    return float(((found - expected) / expected).abs().max())


def passes(build: Callable[[], nn.Module], x: Tensor, batch: int) -> dict:
    """The Jacobian pass compared with a plain forward and backward over the same rows; the rows are not held."""
    model = problems.ready(build)
    rows = jacobian(model, x, hold=False, like=checked(model, x))
    step = rows.rows_per_read

    def ours() -> None:
        for a in range(0, len(x), step):
            rows.load(a, min(a + step, len(x)))

    ours()
    reference, seconds = plain_passes(model, x, batch), problems.timed(ours)[0]
    return {"seconds": seconds, "plain": reference, "ratio": seconds / reference}


def scores_over_many_rows(n: int) -> dict:
    """Scores of rows that are never held, compared with a plain forward and backward."""
    x = problems.rows(n, 90, seed=1)
    at_start = problems.peak_bytes()
    model = problems.ready(problems.mlp)
    omega = omega_of(jacobian(model, x, hold=False, like=checked(model, x)), ONE_PASS)
    seconds, _ = problems.timed(omega.data_diagonal)
    above = problems.peak_bytes() - at_start

    reference = plain_passes(model, x, 1024)
    return {"seconds": seconds, "plain": reference, "ratio": seconds / reference, "above_data": above}


def gram_rate(n: int, width: int) -> dict:
    """Float64 rate of the Gram matrix of dense rows, counting only the triangle, compared with a plain product.

    The whole matrix is measured: the triangle, and the copy of it below the diagonal.
    """
    problems.ready(problems.mlp)
    omega = omega_of(dense_jacobian(problems.rows(n, 1, width, seed=1)))
    A = problems.rows(n, width, seed=2).double()
    plain = 2 * n * n * width / problems.timed(lambda: A @ A.T)[0]
    seconds = problems.timed(omega.gram)[0]
    ours = n * n * width / seconds
    return {"seconds": seconds, "rate": ours, "plain": plain, "ratio": ours / plain}


CASES: dict[str, Callable[[], dict]] = {
    "mlp-k1000": lambda: subnet(problems.mlp, problems.rows(2000, 90, seed=1), problems.rows(1000, 90, seed=2), 1000),
    "mlp-k10000": lambda: subnet(
        problems.mlp, problems.rows(2000, 90, seed=1), problems.rows(1000, 90, seed=2), 10_000
    ),
    "mlp-full": lambda: full(problems.mlp, problems.rows(2000, 90, seed=1), problems.rows(1000, 90, seed=2)),
    "resnet20-k5000": lambda: subnet(
        resnet20, problems.rows(500, 3, 32, 32, seed=1), problems.rows(200, 3, 32, 32, seed=2), 5000
    ),
    "pass-mlp": lambda: passes(problems.mlp, problems.rows(20_000, 90, seed=1), 1024),
    "pass-resnet20": lambda: passes(resnet20, problems.rows(256, 3, 32, 32, seed=1), 64),
    "scores-463715-rows": lambda: scores_over_many_rows(463_715),
    "gram-2000": lambda: gram_rate(2000, 20_000),
}


def main() -> None:
    result = CASES[sys.argv[1]]()
    json.dump({"peak": problems.peak_bytes(), **result}, sys.stdout)


if __name__ == "__main__":
    main()
