"""One case of our side in this process: `python ours.py CASE` prints {seconds, peak, …} as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import problems
import torch
from sublaplace_cli.core.posterior.fitting import fit_full, fit_subnet
from sublaplace_cli.core.posterior.posterior import subnet_variance
from torch import Tensor, nn

from sublaplace_cli.__main__ import prefer_large_pages
from sublaplace_cli.architectures.cifar_resnet import cifar_resnet
from sublaplace_cli.core.jacobian.blocks import DenseBlock
from sublaplace_cli.core.jacobian.capture import Capture, prepare_capture
from sublaplace_cli.core.jacobian.rows import BlockBuffer, HeldJacobian
from sublaplace_cli.core.likelihoods import regression
from sublaplace_cli.core.linalg import SYMMETRIC_STRIP
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.omega.row_sums import row_norms
from sublaplace_cli.core.selectors import SelectionProblem
from sublaplace_cli.core.selectors.gradient import gradient

MEMORY = 8 * 2**30
prefer_large_pages()  # as the command does


def resnet20() -> nn.Module:
    return cifar_resnet(depth=20, out=1, shortcut="B")


def prepared(model: nn.Module, x: Tensor) -> Capture:
    return prepare_capture(model, Layout.of(model), x[:4], MEMORY)


def jacobian(capture: Capture, x: Tensor) -> HeldJacobian:
    f, held, step = [], BlockBuffer(len(x)), capture.rows_of_pass(len(x))
    for a in range(0, len(x), step):
        made = capture(x[a : a + step])
        f.append(made.f)
        held.put(a, [block.expanded() for block in made.blocks])
    return HeldJacobian(capture.layout, torch.cat(f), held.blocks)


def precision(rows: HeldJacobian) -> Precision:
    root = regression(rows.outputs, problems.SIGMA2)
    return Precision(rows, root, torch.ones(rows.layout.size, dtype=torch.float64, device=problems.DEVICE), MEMORY)


def subnet(build: Callable[[], nn.Module], x: Tensor, x_test: Tensor, k: int) -> dict:
    """Jacobians of both, scores, selection, columns, fit, variance."""
    capture = prepared(problems.ready(build), x)

    def work() -> Tensor:
        omega, test = precision(jacobian(capture, x)), jacobian(capture, x_test)
        diagonal = omega.data_diagonal()
        chosen = gradient(SelectionProblem(omega, diagonal, diagonal, diagonal, ()), k)
        return subnet_variance(fit_subnet(omega, chosen.indices), test, MEMORY)

    seconds, variance = problems.timed(work)
    result = {"seconds": seconds, "mean_variance": float(variance.mean()), "peak": problems.peak_bytes()}
    N, M = len(x), len(x_test)
    products = [(k, N, k, 0.5)] if k <= N else [(N, k, N, 0.5), (N, k, M, 1.0)]
    floor = bare_work(products, min(k, N), M) + plain_passes(capture.model, torch.cat([x, x_test]))
    return {**result, "floor": floor}


def bare_work(products: list[tuple[int, int, int, float]], factored: int, solved: int) -> float:
    """Seconds of the float64 products (sizes, and the share of each that is needed), of one factorisation and of the
    triangular solves that no exact posterior can do without."""
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
    capture = prepared(problems.ready(build), x)

    def work() -> Tensor:
        omega, test = precision(jacobian(capture, x)), jacobian(capture, x_test)
        return fit_full(omega).variance(test, row_norms(test, omega.prior, MEMORY))

    seconds, variance = problems.timed(work)
    result = {"seconds": seconds, "mean_variance": float(variance.mean()), "peak": problems.peak_bytes()}
    N, M = len(x), len(x_test)
    inner = [int(d) for layer in capture.model if isinstance(layer, nn.Linear) for d in layer.weight.shape]
    products = [(N, d, m, share) for d in inner for m, share in ((N, 0.5), (M, 1.0))]
    floor = bare_work(products, N, M) + plain_passes(capture.model, torch.cat([x, x_test]))
    return {**result, "error": full_error(capture, x[:300], x_test), "floor": floor}


def full_error(capture: Capture, x: Tensor, x_test: Tensor) -> float:
    """Largest relative difference from a dense float64 solve with the same rows (fewer of them)."""
    omega, test = precision(jacobian(capture, x)), jacobian(capture, x_test[:20])
    found = fit_full(omega).variance(test, row_norms(test, omega.prior, MEMORY)).flatten()
    J = torch.cat([block.dense().flat.double() for block in omega.jacobian.blocks], 1)
    g = torch.cat([block.dense().flat.double() for block in test.blocks], 1)
    kernel = J @ J.T + problems.SIGMA2 * torch.eye(len(J), dtype=torch.float64, device=problems.DEVICE)
    w = torch.linalg.solve(kernel, J @ g.T)
    expected = (g - w.T @ J).square().sum(1) + problems.SIGMA2 * w.square().sum(0)
    return float(((found - expected) / expected).abs().max())


def passes(build: Callable[[], nn.Module], x: Tensor, batch: int) -> dict:
    """The Jacobian pass beside a plain forward and backward over the same rows."""
    model = problems.ready(build)
    capture = prepared(model, x)

    step = capture.rows_of_pass(len(x))

    def ours() -> None:
        for a in range(0, len(x), step):
            capture(x[a : a + step])

    ours()
    reference, seconds = plain_passes(model, x, batch), problems.timed(ours)[0]
    return {"seconds": seconds, "plain": reference, "ratio": seconds / reference}


def scores_over_many_rows(n: int) -> dict:
    """Scores of rows that are never held, beside a plain forward and backward."""
    x = problems.rows(n, 90, seed=1)
    at_start = problems.peak_bytes()
    model = problems.ready(problems.mlp)
    capture = prepared(model, x)

    step = capture.rows_of_pass(n)

    def ours() -> Tensor:
        total = torch.zeros(capture.layout.size, dtype=torch.float64, device=problems.DEVICE)
        for a in range(0, n, step):
            for block in capture(x[a : a + step]).blocks:
                total[block.span] += block.squares()
        return total

    seconds, _ = problems.timed(ours)
    above = problems.peak_bytes() - at_start

    reference = plain_passes(model, x, 1024)
    return {"seconds": seconds, "plain": reference, "ratio": seconds / reference, "above_data": above}


def gram_rate(n: int, width: int) -> dict:
    """Float64 rate of the Gram of dense columns, counting only the triangle, beside that of a plain product."""
    problems.ready(problems.mlp)
    block = DenseBlock(0, problems.rows(n, 1, width, seed=1))
    prior = torch.ones(width, dtype=torch.float64, device=problems.DEVICE)
    K = torch.zeros(n, n, dtype=torch.float64, device=problems.DEVICE)
    A = problems.rows(n, width, seed=2).double()
    plain = 2 * n * n * width / problems.timed(lambda: A @ A.T)[0]
    ours = n * n * width / problems.timed(lambda: block.add_gram(block, prior, K.zero_()))[0]
    return {"seconds": n * n * width / ours, "rate": ours, "plain": plain, "ratio": ours / plain, "strip": SYMMETRIC_STRIP}


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
