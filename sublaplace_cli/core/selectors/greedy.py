"""Greedy-Laplace, Algorithm 2, as a lazy pivoted Cholesky factorisation of Ω.

The Schur-complement diagonal d_j never grows as S grows, so a value computed earlier is an upper bound. Only
the columns with the largest bounds are fetched and brought up to date; among the best of them, a panel,
pivots are taken for as long as the best beats every bound outside. The order is that of the literal
algorithm over all candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import NumericsError, UserError
from ..linalg import check_condition, safe_cholesky, solve_lower
from ..precision import Precision
from . import Selection, SelectionProblem, largest, rounded

PANEL = 256  # candidates among which pivots are taken in one go
SOUND = 1 - 1e-6  # d/v is at least 1; rounding may take a little of that, not more
SWEEP = 2048  # candidates whose bounds are brought up to date in one go


def greedy(problem: SelectionProblem, k: int) -> Selection:
    """The largest remaining d_j / v_j, k times, among the candidates of `--pool`."""
    p = problem.layout.size
    size = pool_size(problem.pool, k, p)
    scale = problem.prior
    candidates = largest(problem.score / scale, size) if size < p else torch.arange(p, device=scale.device)
    bounds = (problem.data_diagonal + problem.prior)[candidates] / scale[candidates]
    check_condition(float((problem.data_diagonal / scale).sum()) / problem.precision.n_rows)  # a bound from below
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


def first_width(k: int) -> int:
    """Columns that are fetched at the start, if there is room for them."""
    return max(2 * SWEEP, 4 * k)


class _Search:
    """State of one run; values are d_j / v_j throughout, i.e. everything in the prior's metric."""

    def __init__(self, precision: Precision, candidates: Tensor, bounds: Tensor, k: int) -> None:
        self.candidates = candidates  # flat indices, rising
        self.bounds = bounds.clone()  # upper bounds of d/v, aligned with `candidates`; −1 once chosen
        self.as_of = torch.zeros(len(bounds), dtype=torch.int64, device=bounds.device)  # |S| at that time
        self.k = k
        self.chosen: list[int] = []
        self.pivots: list[float] = []
        self.schur: _PrimalSchur | _DualSchur = (
            _PrimalSchur() if 2 * k <= precision.n_rows else _DualSchur(precision.n_rows, bounds)
        )
        self.cache = _ColumnCache(precision, candidates, first_width(k))

    def run(self) -> tuple[Tensor, Tensor]:
        with self.cache.precision.watch("greedy: parameters chosen", self.k) as progress:
            while len(self.chosen) < self.k:
                before = len(self.chosen)
                self._panel()
                progress.advance(len(self.chosen) - before)
        positions = torch.tensor(self.chosen, device=self.bounds.device)
        return self.candidates[positions], torch.tensor(self.pivots, dtype=torch.float64, device=self.bounds.device)

    def _panel(self) -> None:
        """Take pivots among the best candidates while nothing outside can beat them."""
        order = self._best_up_to_date()
        panel, rest = order[:PANEL].sort().values, order[PANEL:]
        A = self.cache.columns(panel, self.bounds)  # (N·C, b)
        T = self.schur.complement(A)  # (b, b)
        # Values that are up to date already decide at once: rounding must not send them round in circles.
        fresh = bool((T.diagonal() >= self.bounds[panel] * (1 - 1e-11)).all())
        outside = (float(rounded(self.bounds[rest])[0]), int(rest[0])) if len(rest) else (-1.0, 0)
        taken, pivots, remaining = _pivot_inside(T, panel, outside, self.k - len(self.chosen), sure=fresh)
        self.schur.extend(A[:, taken], T[taken][:, taken])
        self.chosen += panel[taken].tolist()
        self.pivots += pivots
        left = torch.ones(len(panel), dtype=torch.bool, device=panel.device)
        left[taken] = False
        self._update(panel[left], remaining[left])
        self.bounds[panel[taken]] = -1.0

    def _best_up_to_date(self) -> Tensor:
        """The candidates with the largest bounds, after refreshing until those of a panel are mostly exact."""
        while True:
            order = self._top(PANEL + 1)
            stale = self.as_of[order] < len(self.chosen)
            if int(stale.sum()) <= PANEL // 4:
                return order
            sweep = self._top(min(SWEEP, self.cache.most))
            sweep = sweep[self.as_of[sweep] < len(self.chosen)].sort().values
            self._update(sweep, self.schur.diagonal(self.cache.columns(sweep, self.bounds)))

    def _update(self, positions: Tensor, values: Tensor) -> None:
        require_sound(values)
        self.bounds[positions] = torch.minimum(values.clamp(min=1.0), self.bounds[positions])  # bounds never rise
        self.as_of[positions] = len(self.chosen)

    def _top(self, count: int) -> Tensor:
        """Positions of the largest bounds in falling order, ties to the lower index, none of them chosen."""
        return largest(self.bounds, min(count, len(self.bounds) - len(self.chosen)))


def require_sound(values: Tensor) -> None:
    """d_j ≥ v_j always: a smaller one is rounding, and then the order means nothing."""
    if not bool((values > SOUND).all()):
        raise NumericsError(
            f"greedy: a Schur complement fell to {float(values.min()):.3g} times the prior precision, which it can "
            "never go below: the data term is too large beside the prior for float64",
            hint="raise posterior.prior_precision or posterior.noise_variance, or choose a smaller k",
        )


def _pivot_inside(
    T: Tensor, panel: Tensor, outside: tuple[float, int], most: int, sure: bool
) -> tuple[list[int], list[float], Tensor]:
    """Pivots of T in order, while the best beats (value, position) of the best bound outside.

    The first is taken in any case where `sure`.
    """
    d = T.diagonal().clone()  # −∞ once taken
    rows = torch.empty(min(most, len(T)), len(T), dtype=T.dtype, device=T.device)
    positions = panel.tolist()
    taken: list[int] = []
    pivots: list[float] = []
    while len(taken) < len(rows):
        best = _first_largest(d)
        pivot = float(d[best])
        if _beaten(pivot, positions[best], outside) and not (sure and not taken):
            break
        require_sound(d[best])
        t = len(taken)
        column = T[best] - rows[:t, best] @ rows[:t] if t else T[best]
        torch.div(column, pivot**0.5, out=rows[t])
        d -= rows[t].square()
        d[best] = -torch.inf
        taken.append(best)
        pivots.append(pivot)
    return taken, pivots, d


def _first_largest(d: Tensor) -> int:
    """Place of the largest after rounding, the first of equals; only what is next to the largest need be rounded."""
    near = (d >= d.max() * (1 - 2e-11)).nonzero().squeeze(1)
    return int(near[0]) if len(near) == 1 else int(near[int(rounded(d[near]).argmax())])


def _beaten(value: float, position: int, outside: tuple[float, int]) -> bool:
    """Whether the best bound outside comes first, after rounding; ties go to the lower index."""
    if abs(value - outside[0]) > 2e-11 * value:
        return value < outside[0]
    own = float(rounded(torch.tensor([value], dtype=torch.float64)))
    return own < outside[0] or (own == outside[0] and position > outside[1])


class _PrimalSchur:
    """I + AᵀA − XᵀX with X = L⁻¹ A_Sᵀ A: cheaper while S is small beside the rows."""

    def __init__(self) -> None:
        self.A_S: Tensor | None = None
        self.L: Tensor | None = None

    def _half(self, A: Tensor) -> Tensor | None:
        return None if self.A_S is None or self.L is None else solve_lower(self.L, self.A_S.T @ A)

    def complement(self, A: Tensor) -> Tensor:
        T = A.T @ A
        T.diagonal().add_(1.0)
        X = self._half(A)
        return T if X is None else T - X.T @ X

    def diagonal(self, A: Tensor) -> Tensor:
        d = 1.0 + A.square().sum(0)
        X = self._half(A)
        return d if X is None else d - X.square().sum(0)

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

    def diagonal(self, A: Tensor) -> Tensor:
        return 1.0 + solve_lower(self.L, A).square().sum(0)

    def extend(self, A: Tensor, _T: Tensor) -> None:
        if A.shape[1]:
            self.outer.addmm_(A, A.T)
            self.L = safe_cholesky(self.outer.clone())  # from scratch: no drift, and no dearer than the panel


class _ColumnCache:
    """Columns of A V^(−½) that were fetched, widened a batch at a time: one pass over the rows a batch."""

    def __init__(self, precision: Precision, candidates: Tensor, first: int) -> None:
        self.precision, self.candidates, self.first = precision, candidates, first
        self.most = max(PANEL, precision.memory // 6 // (8 * precision.n_rows))
        self.slot = torch.full((len(candidates),), -1, dtype=torch.int64, device=candidates.device)
        self.held = torch.empty(0, precision.n_rows, dtype=torch.float64, device=candidates.device)

    def columns(self, positions: Tensor, bounds: Tensor) -> Tensor:
        """(N·C, len(positions)); `bounds` decide which others are fetched along with them."""
        if bool((self.slot[positions] < 0).any()):
            self._fetch(bounds)
        return self.held[self.slot[positions]].T

    def _fetch(self, bounds: Tensor) -> None:
        """Hold the candidates with the largest bounds: twice as many as before, as far as memory allows."""
        width = min(self.most, max(self.first, 2 * len(self.held)), len(bounds))
        wanted = largest(bounds, width)
        S = self.candidates[wanted]
        self.held = self.held[:0]  # let go of the old ones first
        self.held = self.precision.columns(S)
        self.slot.fill_(-1)
        self.slot[wanted] = torch.arange(width, device=self.slot.device)
