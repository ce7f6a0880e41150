"""Theorems 1 to 3 of the paper, by exhaustive search on constructed problems and along the paths of trained networks.

IPV(S) = (σ²/N)·tr((Λ + σ²V/N)_SS⁻¹ Λ_SS), the metric of the paper's section 4; Dis(S) = IPV_full − IPV(S).

    monotone   Theorem 1: along each method's path on the quickstart's network, IPV never falls (the report looks at
               the paths of Setup D's networks as well)
    optimal    Theorem 2: for Λ = D + C, C positive semi-definite and invariant under permutations, `gradient` has the
               least Dis of all subsets of its size, `subnet-diagonal` the largest
    dominant   Theorem 3: for ε-diagonally dominant Λ whose diagonal falls fast enough, `gradient` is not worse than
               `subnet-diagonal`, nor than any subset that shares no index with it
    best       how often each method has the least Dis at a given k, over random Λ without any of this structure
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from common import HERE, Place, SeedRun, evaluate, pending
from torch import Tensor

from sublaplace_cli import Regression, dense_jacobian, fit, precision, select

NAME = "theory"
COLUMNS = ("dataset", "method", "k", "seed", "ipv", "discrepancy", "rank", "subsets", "holds")
METHODS = ("gradient", "greedy", "variance", "subnet-diagonal", "last-k")
P, NOISE, PRIOR = 10, 0.1, 1.0
PATHS = ("gradient", "greedy", "variance", "subnet-diagonal", "last-k", "random", "magnitude")


def run(place: Place) -> None:
    """All runs that are not in the table yet."""
    table = place.table(NAME, COLUMNS, ("dataset", "seed"))
    studies: dict[str, Callable[[int], Iterator[dict]]] = {"optimal": optimal, "dominant": dominant, "best": best}
    runs = [SeedRun(name, seed) for name in studies for seed in range(3 if place.quick else 200)]
    for one, folder in pending(place, NAME, table, [*runs, SeedRun("monotone", 0)]):
        found = monotone(place, folder) if one.dataset == "monotone" else studies[one.dataset](one.seed)
        table.add([{"dataset": one.dataset, "seed": one.seed, **line} for line in found])
        if one.seed == 0:
            sys.stderr.write(f"theory: {one.dataset}\n")


def monotone(place: Place, folder: Path) -> Iterator[dict]:
    """Theorem 1 along real paths: `holds` says that IPV did not fall from the k before."""
    shutil.copytree(
        HERE.parent / "quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"), dirs_exist_ok=True
    )
    ks = (10, 30, 100, 300) if place.quick else (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 3151)
    paths = PATHS[:2] if place.quick else PATHS
    found = evaluate(folder / "sublaplace.yaml", paths, ks, run_dir=folder / "artifacts")
    for method in paths:
        before = None
        for row in (row for row in found["rows"] if row["method"] == method):
            holds = None if before is None else int(row["ipv"] >= before * (1 - 1e-9))
            yield {**{key: row[key] for key in ("method", "k", "ipv", "discrepancy")}, "holds": holds}
            before = row["ipv"]


@dataclass(frozen=True)
class Problem:
    """A network whose gradients at N rows are the rows of A (N, p)."""

    A: Tensor

    @cached_property
    def omega(self) -> Any:
        return precision(dense_jacobian(self.A.unsqueeze(1)), Regression(NOISE), PRIOR, memory=2**30)

    def chosen(self, method: str, k: int) -> list[int]:
        """In rising order."""
        return sorted(select(self.omega, method, k).indices.tolist())

    def ipv(self, S: Sequence[int]) -> float:
        return NOISE / len(self.A) * fit(self.omega, torch.tensor(S)).freedom


def rows_with(second_moment: Tensor) -> Tensor:
    """N = p rows whose mean outer product is just this matrix: Λ itself, without a sampling error."""
    return torch.linalg.cholesky(second_moment).T * len(second_moment) ** 0.5


def searched(problem: Problem, k: int) -> tuple[float, dict[tuple[int, ...], float]]:
    """IPV of the full network, and of every subset of size k."""
    p = problem.A.shape[1]
    return problem.ipv(range(p)), {S: problem.ipv(S) for S in itertools.combinations(range(p), k)}


def judged(problem: Problem, k: int) -> Iterator[tuple[dict, float, dict[tuple[int, ...], float]]]:
    """For each method: its line (rank 1 = least Dis), its IPV, and that of every subset."""
    full, every = searched(problem, k)
    for name in METHODS:
        own = every[tuple(problem.chosen(name, k))]
        better = sum(value > own * (1 + 1e-10) for value in every.values())
        line = {
            "method": name,
            "k": k,
            "ipv": own,
            "discrepancy": full - own,
            "rank": better + 1,
            "subsets": len(every),
        }
        yield line, own, every


def optimal(seed: int) -> Iterator[dict]:
    """Λ = D + aI + b·11ᵀ with any b ≥ −a/p, which is all of C_PI; below 0 for every other seed."""
    made = torch.Generator().manual_seed(seed)
    D = torch.rand(P, generator=made, dtype=torch.float64) * 3 + 0.05
    a, b = torch.rand(2, generator=made, dtype=torch.float64).tolist()
    b = b if seed % 2 else -b * a / P
    problem = Problem(rows_with(torch.diag(D + a) + b * torch.ones(P, P, dtype=torch.float64)))
    for line, own, every in judged(problem, 1 + seed % (P - 1)):
        holds = None
        if line["method"] == "gradient":
            holds = int(line["rank"] == 1)
        if line["method"] == "subnet-diagonal":
            holds = int(own <= min(every.values()) * (1 + 1e-10))
        yield {**line, "holds": holds}


def dominant(seed: int) -> Iterator[dict]:
    """|Λ_ij| sums in each row to ε·Λ_ii, and the diagonal falls by more than (1 + ε)/(1 − ε) at each step."""
    made, epsilon = torch.Generator().manual_seed(seed), 0.2
    steps = (1 + epsilon) / (1 - epsilon) * (1.001 + 0.3 * torch.rand(P, generator=made, dtype=torch.float64))
    diagonal = 50 / steps.cumprod(0)
    off = torch.randn(P, P, generator=made, dtype=torch.float64)
    off = (off + off.T).fill_diagonal_(0.0)
    off *= torch.minimum(diagonal.unsqueeze(0), diagonal.unsqueeze(1)) / P
    off *= epsilon * float((diagonal / off.abs().sum(1)).min())
    order = torch.randperm(P, generator=made)
    problem = Problem(rows_with((torch.diag(diagonal) + off)[order][:, order]))
    k = 1 + seed % (P // 2)
    lines = list(judged(problem, k))
    chosen = set(problem.chosen("gradient", k))
    by_method = {line["method"]: own for line, own, _ in lines}
    apart = max(value for S, value in lines[0][2].items() if not chosen & set(S))
    own = by_method["gradient"]
    holds = own >= by_method["subnet-diagonal"] * (1 - 1e-10) and own >= apart * (1 - 1e-10)
    for line, _, _ in lines:
        yield {**line, "holds": int(holds) if line["method"] == "gradient" else None}


def best(seed: int) -> Iterator[dict]:
    """Gradients with a few strong common directions: `holds` says that no subset is better."""
    made = torch.Generator().manual_seed(seed)
    mix = torch.randn(4, P, generator=made, dtype=torch.float64) * torch.rand(P, generator=made, dtype=torch.float64)
    A = torch.randn(60, 4, generator=made, dtype=torch.float64) @ mix
    A = A + 0.3 * torch.randn(60, P, generator=made, dtype=torch.float64)
    for line, _, _ in judged(Problem(A), 1 + seed % (P - 1)):
        yield {**line, "holds": int(line["rank"] == 1)}
