"""Greedy-Laplace, Algorithm 2, as a lazy pivoted Cholesky factorisation of Ω.

The Schur-complement diagonal d_j never grows as S grows, so a value computed earlier is an upper bound. Only
the columns with the largest bounds are fetched and brought up to date, a panel at a time; inside a panel
pivots are taken for as long as the best of them beats every bound outside. The order is that of the literal
algorithm over all candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UserError
from ..linalg import safe_cholesky, solve_lower
from ..precision import Precision
from . import Selection, SelectionProblem, largest, rounded

PANEL = 256  # candidates brought up to date at a time


def greedy(problem: SelectionProblem, k: int) -> Selection:
    """The largest remaining d_j / v_j, k times, among the candidates of `--pool`."""
    p = problem.layout.size
    size = pool_size(problem.pool, k, p)
    scale = problem.prior
    candidates = largest(problem.score / scale, size) if size < p else torch.arange(p, device=scale.device)
    bounds = (problem.data_diagonal + problem.prior)[candidates] / scale[candidates]
    search = _Search(problem.precision, candidates.sort().values, bounds[candidates.argsort()], k)
    indices, pivots = search.run()
    return Selection(indices, pivots * scale[indices])


def pool_size(pool: str, k: int, p: int) -> int:
    """How many candidates `--pool` asks for: all, 2k, paper, or a number."""
    if pool == "all":
        return p
    if pool == "2k":
        return min(2 * k, p)
    if pool == "paper":
        return min(max(min(2 * k + 1000, p - 1, 30_000), k), p)
    size = int(pool)
    if size < k:
        raise UserError(f"--pool {size} is smaller than --k {k}", hint="a pool must hold at least k candidates")
    return min(size, p)


class _Search:
    """State of one run; values are d_j / v_j throughout, i.e. everything in the prior's metric."""

    def __init__(self, precision: Precision, candidates: Tensor, bounds: Tensor, k: int) -> None:
        self.precision = precision
        self.candidates = candidates  # flat indices, rising
        self.bounds = bounds.clone()  # upper bounds of d/v, aligned with `candidates`; −1 once chosen
        self.k = k
        self.schur: _PrimalSchur | _DualSchur = (
            _PrimalSchur(precision.n_rows) if 2 * k <= precision.n_rows else _DualSchur(precision.n_rows, bounds)
        )
        self.cache = _ColumnCache(precision, candidates)

    def run(self) -> tuple[Tensor, Tensor]:
        chosen: list[int] = []
        pivots: list[float] = []
        while len(chosen) < self.k:
            for position, pivot in self._panel(self.k - len(chosen)):
                chosen.append(position)
                pivots.append(pivot)
        positions = torch.tensor(chosen, device=self.bounds.device)
        return self.candidates[positions], torch.tensor(pivots, dtype=torch.float64, device=self.bounds.device)

    def _panel(self, most: int) -> list[tuple[int, float]]:
        """Bring the best candidates up to date and take pivots while nothing outside can beat them."""
        order = largest(self.bounds, PANEL + 1)
        order = order[self.bounds[order] > 0]  # not those chosen before
        panel, rest = order[:PANEL].sort().values, order[PANEL:]
        A = self.cache.columns(panel, self.bounds)  # (N·C, b)
        T = self.schur.complement(A)  # (b, b)
        # Values that are up to date already decide at once: rounding must not send them round in circles.
        fresh = bool((T.diagonal() >= self.bounds[panel] * (1 - 1e-11)).all())
        outside = (float(rounded(self.bounds[rest])[0]), int(rest[0])) if len(rest) else (-1.0, 0)
        taken, pivots, remaining = _pivot_inside(T, panel, outside, most, sure=fresh)
        self.bounds[panel] = remaining
        self.bounds[panel[taken]] = -1.0
        self.schur.extend(A[:, taken], T[taken][:, taken])
        return [(int(panel[t]), pivot) for t, pivot in zip(taken, pivots, strict=True)]


def _pivot_inside(
    T: Tensor, panel: Tensor, outside: tuple[float, int], most: int, sure: bool
) -> tuple[list[int], list[float], Tensor]:
    """Pivots of T in order, while the best beats (value, position) of the best bound outside.

    The first is taken in any case where `sure`.
    """
    T = T.clone()
    taken: list[int] = []
    pivots: list[float] = []
    alive = torch.ones(len(T), dtype=torch.bool, device=T.device)
    while len(taken) < min(most, len(T)):
        d = torch.where(alive, rounded(T.diagonal()), torch.full_like(T.diagonal(), -1.0))
        best = int(d.argmax())  # the first of equals: the panel is in rising order of index
        value = float(d[best])
        beaten = value < outside[0] or (value == outside[0] and int(panel[best]) > outside[1])
        if beaten and not (sure and not taken):
            break
        pivot = float(T[best, best])
        column = T[:, best].clone()
        T -= torch.outer(column, column) / pivot
        alive[best] = False
        taken.append(best)
        pivots.append(pivot)
    return taken, pivots, T.diagonal().clone()


class _PrimalSchur:
    """I + AᵀA − XᵀX with X = L⁻¹ A_Sᵀ A: cheaper while S is small beside the rows."""

    def __init__(self, n_rows: int) -> None:
        self.A_S: Tensor | None = None
        self.L: Tensor | None = None

    def _half(self, A: Tensor) -> Tensor | None:
        return None if self.A_S is None or self.L is None else solve_lower(self.L, self.A_S.T @ A)

    def complement(self, A: Tensor) -> Tensor:
        T = A.T @ A
        T.diagonal().add_(1.0)
        X = self._half(A)
        return T if X is None else T - X.T @ X

    def extend(self, A: Tensor, T: Tensor) -> None:
        if A.shape[1] == 0:
            return
        X, corner = self._half(A), safe_cholesky(T)
        if X is None or self.L is None or self.A_S is None:
            self.A_S, self.L = A.clone(), corner
            return
        zeros = torch.zeros(len(self.L), len(corner), dtype=T.dtype, device=T.device)
        self.L = torch.cat([torch.cat([self.L, zeros], 1), torch.cat([X.T, corner], 1)])
        self.A_S = torch.cat([self.A_S, A], 1)


class _DualSchur:
    """I + AᵀMA with M = (I + A_S A_Sᵀ)⁻¹ kept as a Cholesky factor: its size does not grow with S."""

    def __init__(self, n_rows: int, like: Tensor) -> None:
        self.outer = torch.eye(n_rows, dtype=torch.float64, device=like.device)  # I + A_S A_Sᵀ
        self.L = self.outer.clone()

    def complement(self, A: Tensor) -> Tensor:
        X = solve_lower(self.L, A)
        T = X.T @ X
        T.diagonal().add_(1.0)
        return T

    def extend(self, A: Tensor, _T: Tensor) -> None:
        if A.shape[1]:
            self.outer.addmm_(A, A.T)
            self.L = safe_cholesky(self.outer)  # from scratch: no drift, and no dearer than the panel


@dataclass
class _ColumnCache:
    """Columns of A V^(−½) that were fetched, widened a batch at a time: one pass over the rows a batch."""

    precision: Precision
    candidates: Tensor

    def __post_init__(self) -> None:
        device = self.candidates.device
        self.slot = torch.full((len(self.candidates),), -1, dtype=torch.int64, device=device)
        self.held = torch.empty(self.precision.n_rows, 0, dtype=torch.float64, device=device)
        self.width = max(4 * PANEL, self.precision.memory // 4 // (8 * self.precision.n_rows))

    def columns(self, positions: Tensor, bounds: Tensor) -> Tensor:
        if bool((self.slot[positions] < 0).any()):
            self._fetch(bounds)
        return self.held[:, self.slot[positions]]

    def _fetch(self, bounds: Tensor) -> None:
        """Hold the candidates with the largest bounds: twice as many as before, as far as memory allows."""
        width = min(self.width, max(4 * PANEL, 2 * self.held.shape[1]), len(bounds))
        wanted = largest(bounds, width)
        S = self.candidates[wanted]
        self.held = torch.empty(0)  # let go of the old ones first
        self.held = self.precision.columns(S) * self.precision.prior[S].rsqrt()
        self.slot.fill_(-1)
        self.slot[wanted] = torch.arange(width, device=self.slot.device)
