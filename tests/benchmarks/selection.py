"""Cases of selection and of many k at once: `python selection.py CASE` prints {seconds, peak, …} as JSON.

`select` computes the scores as well: their time is measured and subtracted where a case is about the search alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import problems
import torch
from ours import checked, omega_of, resnet20
from torch import Tensor, nn

from sublaplace_cli import fit_path, jacobian, select, variances

KS = [50, 100, 200, 500, 1000, 2000, 5000, 10_000]


def greedy_beyond_the_pass(n: int, k: int) -> dict:
    """Greedy over all parameters of a ResNet-20, after its Jacobian and its scores."""
    model = problems.ready(resnet20)
    x = problems.rows(n, 3, 32, 32, seed=1)
    omega = omega_of(jacobian(model, x, like=checked(model, x)))
    scores, _ = problems.timed(omega.data_diagonal)
    seconds, chosen = problems.timed(lambda: select(omega, "greedy", k), repeats=1)
    return {"seconds": seconds - scores, "k": len(chosen.indices), "scores": scores}


def uci_mlp() -> nn.Module:
    return problems.plain_mlp([8, 200, 200, 200, 1])


def plain_loop(A: Tensor, prior: float, k: int) -> Tensor:
    """Pivoted Cholesky of AᵀA + prior·I, one row at a time over the 2k best: Algorithm 2 as it is printed.

    A (N, p) holds dense rows in float64, weighted by the noise.
    """
    pool = torch.topk(A.square().sum(0), min(2 * k, A.shape[1])).indices.sort().values
    columns = A[:, pool].T.contiguous()  # (2k, N)
    d = columns.square().sum(1) + prior
    rows = torch.zeros(k, len(pool), dtype=torch.float64, device=pool.device)
    chosen: list[int] = []
    for step in range(k):
        best = int(d.argmax())
        row = columns @ columns[best] - rows[:step].T @ rows[:step, best]
        row[best] += prior
        rows[step] = row / d[best].sqrt()
        d = d - rows[step].square()
        d[best] = -torch.inf
        chosen.append(best)
    return pool[torch.tensor(chosen, device=pool.device)]


def greedy_compared_with_the_loop(n: int, k: int) -> dict:
    """All parameters, lazily, compared with the plain loop over 2k of them, whose dense rows exist beforehand."""
    model = problems.ready(uci_mlp)
    x = problems.rows(n, 8, seed=1)
    omega = omega_of(jacobian(model, x, like=checked(model, x)))
    scores, _ = problems.timed(omega.data_diagonal)
    seconds = problems.timed(lambda: select(omega, "greedy", k))[0] - scores
    A = problems.dense_rows(model, x).double() * problems.SIGMA2**-0.5
    plain, _ = problems.timed(lambda: plain_loop(A, 1.0, k), repeats=1)
    return {"seconds": seconds, "plain": plain, "ratio": plain / seconds, "scores": scores}


def many_k() -> dict:
    """Selection, fit and variance at eight k together, compared with the largest alone; both without the scores."""
    model = problems.ready(problems.mlp)
    x, x_test = problems.rows(2000, 90, seed=1), problems.rows(1000, 90, seed=2)
    few = checked(model, x)
    omega, test = omega_of(jacobian(model, x, like=few)), jacobian(model, x_test, like=few)

    def work(ks: list[int]) -> list[Tensor]:
        return variances(fit_path(omega, select(omega, "gradient", ks[-1]), ks), test)

    scores = problems.timed(omega.data_diagonal)[0]
    alone, together = (problems.timed(lambda ks=ks: work(ks))[0] - scores for ks in (KS[-1:], KS))  # type: ignore[misc]
    return {"seconds": together, "plain": alone, "ratio": together / alone, "scores": scores}


CASES: dict[str, Callable[[], dict]] = {
    "greedy-resnet20-k10000": lambda: greedy_beyond_the_pass(2000, 10_000),
    "greedy-mlp-k3000": lambda: greedy_compared_with_the_loop(900, 3000),
    "many-k": many_k,
}


def main() -> None:
    result = CASES[sys.argv[1]]()
    json.dump({**result, "peak": problems.peak_bytes()}, sys.stdout)


if __name__ == "__main__":
    main()
