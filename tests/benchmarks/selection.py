"""Cases of selection and of many k at once: `python selection.py CASE` prints {seconds, peak, …} as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import problems
import torch
from ours import MEMORY, jacobian, precision, prepared, resnet20
from torch import Tensor, nn

from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.posterior.fitting import fit_path
from sublaplace_cli.core.posterior.posterior import path_variances
from sublaplace_cli.core.selectors import Selection, SelectionProblem
from sublaplace_cli.core.selectors.gradient import gradient
from sublaplace_cli.core.selectors.greedy import greedy

KS = [50, 100, 200, 500, 1000, 2000, 5000, 10_000]


def selection_problem(omega: Precision) -> SelectionProblem:
    diagonal = omega.data_diagonal()
    return SelectionProblem(omega, diagonal, diagonal, diagonal, ())


def greedy_beyond_the_pass(n: int, k: int) -> dict:
    """Greedy over all parameters of a ResNet-20, once its Jacobian is there."""
    model = problems.ready(resnet20)
    x = problems.rows(n, 3, 32, 32, seed=1)
    problem = selection_problem(precision(jacobian(prepared(model, x), x)))
    start = problems.now()
    chosen = greedy(problem, k)
    return {"seconds": problems.now() - start, "k": len(chosen.indices)}


def uci_mlp() -> nn.Module:
    return problems.plain_mlp([8, 200, 200, 200, 1])


def plain_loop(omega: Precision, score: Tensor, k: int) -> Tensor:
    """Pivoted Cholesky a row at a time over the 2k best, as one would write Algorithm 2 down."""
    pool = torch.topk(score, min(2 * k, len(score))).indices.sort().values
    A = omega.columns(pool)  # (2k, N)
    d = A.square().sum(1) + omega.prior[pool]
    rows = torch.zeros(k, len(pool), dtype=torch.float64, device=pool.device)
    chosen: list[int] = []
    for step in range(k):
        best = int(d.argmax())
        row = A @ A[best] - rows[:step].T @ rows[:step, best]
        row[best] += omega.prior[pool[best]]
        rows[step] = row / d[best].sqrt()
        d = d - rows[step].square()
        d[best] = -torch.inf
        chosen.append(best)
    return pool[torch.tensor(chosen)]


def greedy_beside_the_loop(n: int, k: int) -> dict:
    """All parameters, lazily, beside the plain loop over 2k of them."""
    model = problems.ready(uci_mlp)
    x = problems.rows(n, 8, seed=1)
    omega = precision(jacobian(prepared(model, x), x))
    problem = selection_problem(omega)
    seconds, found = problems.timed(lambda: greedy(problem, k))
    start = problems.now()
    plain_loop(omega, problem.score, k)
    plain = problems.now() - start
    assert isinstance(found, Selection)
    return {"seconds": seconds, "plain": plain, "ratio": plain / seconds}


def many_k() -> dict:
    """Selection, fit and variance at eight k in one go, beside the largest alone."""
    model = problems.ready(problems.mlp)
    x, x_test = problems.rows(2000, 90, seed=1), problems.rows(1000, 90, seed=2)
    capture = prepared(model, x)
    omega, test = precision(jacobian(capture, x)), jacobian(capture, x_test)
    problem = selection_problem(omega)

    def work(ks: list[int]) -> list[Tensor]:
        S = gradient(problem, ks[-1]).indices
        return path_variances(fit_path(omega, S, ks), test, MEMORY)

    alone, together = problems.timed(lambda: work(KS[-1:]))[0], problems.timed(lambda: work(KS))[0]
    return {"seconds": together, "plain": alone, "ratio": together / alone}


CASES: dict[str, Callable[[], dict]] = {
    "greedy-resnet20-k10000": lambda: greedy_beyond_the_pass(2000, 10_000),
    "greedy-mlp-k3000": lambda: greedy_beside_the_loop(900, 3000),
    "many-k": many_k,
}


def main() -> None:
    result = CASES[sys.argv[1]]()
    json.dump({**result, "peak": problems.peak_bytes()}, sys.stdout)


if __name__ == "__main__":
    main()
