"""The candidates among which a search chooses: all parameters, or those with the largest scores."""

import torch
from torch import Tensor

from ...errors import Reason, UserError
from . import SelectionProblem, SelectorFacts, largest


def pool_size(pool: str, k: int, p: int) -> int:
    """How many candidates a pool has: "all", "2k", "paper", or a number as a string."""
    if pool == "all":
        return p
    if pool == "2k":
        return min(2 * k, p)
    if pool == "paper":
        return min(max(min(2 * k + 1000, p - 1, 30_000), k), p)
    if not pool.isdecimal():
        raise UserError(f"'{pool}' is not a pool", hint="expected all, 2k, paper or a number")
    size = int(pool)
    if size < k:
        raise UserError(f"a pool of {size} candidates is smaller than k = {k}", reason=Reason.POOL_TOO_SMALL)
    return min(size, p)


def check_pool(facts: SelectorFacts, k: int | None) -> None:
    """The pool must hold at least k candidates."""
    if k is not None:
        pool_size(facts.pool, k, facts.layout.size)


def candidates_of(problem: SelectionProblem, k: int) -> Tensor:
    """Flat indices of the candidates in rising order: those with the largest score / v."""
    p = problem.layout.size
    size = pool_size(problem.pool, k, p)
    if size == p:
        return torch.arange(p, device=problem.prior.device)
    return largest(problem.score / problem.prior, size).sort().values
