"""Greedy-Laplace, Algorithm 2, as a lazy pivoted Cholesky factorisation of Ω.

The Schur-complement diagonal d_j never grows with S, so an earlier value is an upper bound. Only the columns with the
largest bounds are fetched; among a panel of the best, pivots are taken while the best one beats every bound outside.
The order is that of the literal algorithm. A bound is lowered by what later pivots subtracted, with a margin for
rounding; where that margin hides the order, values are computed from scratch. With a pool that is not much larger than
k, bounds save nothing: its sub-matrix of Ω is formed and factored as a whole.
"""

import numpy as np
import torch
from torch import Tensor

from ...errors import NumericsError, Reason
from ..linalg import check_condition, column_squares, mirrored
from ..omega.precision import Precision
from . import SearchCost, SearchSize, Selection, SelectionProblem, largest, rounded
from .pool import candidates_of, check_pool, pool_size
from .search.column_cache import ColumnCache
from .search.device_pivots import pivots_on_device
from .search.schur import Complement, DualSchur, PrimalSchur

GREEDY_PANEL = 512  # candidates among which pivots are taken at once
SOUND = 1 - 1e-6  # d/v is at least 1, up to a little rounding
SWEEP = 3072  # candidates whose bounds are updated at once
NO_BOUND = (-1.0, 0)  # the best bound outside a panel that holds all candidates
FIRST_UPDATE = 64  # pivots that a candidate's first update includes: enough to rule out most
SMALL_POOL = 2048, 4  # a pool is factored as a whole up to this many candidates, and this many times k
PARTS = 100  # of the way to enough degrees of freedom that progress shows
LOOSE = 1e-3  # a bound whose margin for rounding is a larger part of it is computed from scratch

check = check_pool


def advise(problem: SelectionProblem, k: int) -> str | None:
    """A note if columns will probably be dropped and recomputed."""
    size, precision = pool_size(problem.pool, k, problem.layout.size), problem.precision
    if _is_small(size, k, precision) or columns_held(precision) >= min(first_width(k), size):
        return None
    return (
        f"greedy: the memory budget has room for the columns of {columns_held(precision)} of {size} candidates, and "
        "fetching others takes a pass over all rows; a smaller pool (2k, paper) or more memory is faster"
    )


def greedy(problem: SelectionProblem, k: int) -> Selection:
    """The largest remaining d_j / v_j, k times, among the candidates of the pool."""
    precision, candidates = problem.precision, candidates_of(problem, k)
    trace = float((problem.data_diagonal / problem.prior).sum())
    check_condition(trace / precision.n_rows)  # a bound from below
    if _is_small(len(candidates), k, precision):
        indices, pivots = _whole_pool(precision, candidates, k)
    else:
        bounds = (problem.data_diagonal + problem.prior)[candidates] / problem.prior[candidates]
        indices, pivots = _Search(precision, candidates, bounds, k, trace).run()
    return Selection(indices, pivots * problem.prior[indices])


def path_until(problem: SelectionProblem, freedom: float, most: int) -> tuple[Selection, Tensor]:
    """The same without a k: in panels until the posterior over S has so many degrees of freedom, or all candidates are
    chosen; with the degrees of freedom that each choice adds."""
    precision, candidates = problem.precision, candidates_of(problem, most)
    trace = float((problem.data_diagonal / problem.prior).sum())
    check_condition(trace / precision.n_rows)
    bounds = (problem.data_diagonal + problem.prior)[candidates] / problem.prior[candidates]
    search = _Search(precision, candidates, bounds, len(candidates), trace, freedom)
    indices, pivots = search.run()
    return Selection(indices, pivots * problem.prior[indices]), search.gains()


def cost(size: SearchSize) -> SearchCost:
    """Columns of the best candidates, their bounds, and a panel of them against the pivots so far, again and again."""
    P, k, columns = size.rows, size.k, min(size.candidates, first_width(size.k))
    return SearchCost(P * k * (columns + 2 * min(k, P)), 4 * P * columns, columns / GREEDY_PANEL)


def first_width(k: int) -> int:
    """Columns that are fetched at the start, if there is room."""
    return max(2 * SWEEP, 4 * k)


def columns_room(memory: int) -> int:
    """Bytes for cached columns; fetching a dropped column again takes a pass over all rows."""
    return memory // 4


def columns_held(precision: Precision) -> int:
    """The number of columns that can be cached."""
    return max(GREEDY_PANEL, columns_room(precision.memory) // (8 * precision.n_rows))


def _is_small(size: int, k: int, precision: Precision) -> bool:
    """Whether factoring the sub-matrix of all candidates is fastest; with few rows the search uses smaller matrices."""
    most, times = SMALL_POOL
    return size <= min(most, times * k, precision.n_rows) and 3 * 8 * size**2 <= precision.memory


def _whole_pool(precision: Precision, candidates: Tensor, k: int) -> tuple[Tensor, Tensor]:
    B = mirrored(precision.submatrix(candidates))
    B.diagonal().add_(1.0)
    taken, pivots, remaining = _pivot_inside(B, torch.arange(len(candidates)), NO_BOUND, k, sure=True)
    left = torch.ones(len(candidates), dtype=torch.bool, device=B.device)
    left[taken] = False
    require_sound(remaining[left])
    return candidates[taken], remaining.new_tensor(pivots)


class _Search:
    """State of one search; all values are d_j / v_j, i.e. in the prior's metric."""

    def __init__(
        self,
        precision: Precision,
        candidates: Tensor,
        bounds: Tensor,
        k: int,
        trace: float,
        enough: float | None = None,  # degrees of freedom that end it before k
    ) -> None:
        rows, device = precision.n_rows, bounds.device
        self.progress = precision.progress
        self.candidates = candidates  # flat indices, rising
        self.bounds = bounds.clone()  # upper bounds of d/v by position in `candidates`; −1 once chosen
        self.as_of = torch.zeros(len(bounds), dtype=torch.int64, device=device)  # |S| when the bound was computed
        self.exact = torch.ones(len(bounds), dtype=torch.bool, device=device)  # the bound has no margin for rounding
        self.margin = 8 * torch.finfo(torch.float64).eps * max(trace, 1e4)  # relative error of an updated bound
        self.careful = False  # margins hide the order: only exact values are used
        self.k = k
        self.chosen: list[int] = []
        self.pivots: list[float] = []
        self.enough, self.freedom = enough, 0.0
        at_first = k if enough is None else min(k, GREEDY_PANEL)
        primal = 2 * at_first <= rows
        self.schur: PrimalSchur | DualSchur = PrimalSchur(rows, bounds) if primal else DualSchur(rows, bounds)
        self.directions = torch.empty(at_first, rows, dtype=torch.float64, device=device)  # Z of every pivot
        self.cache = ColumnCache(precision, candidates, first_width(at_first), columns_held(precision))

    def run(self) -> tuple[Tensor, Tensor]:
        total = self.k if self.enough is None else PARTS
        label = "greedy: parameters chosen" if self.enough is None else "greedy: per cent of what is to be retained"
        done = 0
        with self.progress(label, total) as bar:
            while len(self.chosen) < self.k and (self.enough is None or self.freedom < self.enough):
                self._panel()
                now = len(self.chosen) if self.enough is None else int(PARTS * min(1, self.freedom / self.enough))
                bar.advance(now - done)
                done = now
        positions = torch.tensor(self.chosen, device=self.bounds.device)
        return self.candidates[positions], torch.tensor(self.pivots, dtype=torch.float64, device=self.bounds.device)

    def _panel(self) -> None:
        """Take pivots among the best candidates while none outside can beat them."""
        order = self._best_up_to_date()
        panel, rest = order[:GREEDY_PANEL].sort().values, order[GREEDY_PANEL:]
        self.cache.hold(panel, self.bounds)
        A = self.cache.columns(panel)  # (N·C, b)
        complement = self.schur.complement(A)
        B = complement.B  # (b, b)
        # With values that are all up to date one pivot is always taken; otherwise rounding could cause an endless loop.
        fresh = bool((B.diagonal() >= self.bounds[panel] * (1 - 1e-11)).all())
        outside = (float(rounded(self.bounds[rest])[0]), int(rest[0])) if len(rest) else NO_BOUND
        taken, pivots, remaining = _pivot_inside(B, panel, outside, self.k - len(self.chosen), sure=fresh)
        self.careful = len(taken) < GREEDY_PANEL // 8
        if taken:
            some = torch.tensor(taken, device=panel.device)
            chosen = Complement(B[some][:, some], complement.half.index_select(1, some))
            self._keep(self.schur.extend(A.index_select(1, some), chosen))
        self.chosen += panel[taken].tolist()
        self.pivots += pivots
        left = torch.ones(len(panel), dtype=torch.bool, device=panel.device)
        left[taken] = False
        require_sound(remaining[left])
        self._update(panel[left], remaining[left], len(self.chosen), exact=True)
        self.bounds[panel[taken]] = -1.0

    def _keep(self, directions: Tensor) -> None:
        """R becomes R − ZᵀZ: so many degrees of freedom are lost there, and found in the posterior."""
        first, stop = len(self.chosen), len(self.chosen) + len(directions)
        if stop > len(self.directions):
            longer = self.directions.new_empty(min(self.k, max(stop, 2 * len(self.directions))), directions.shape[1])
            longer[:first] = self.directions[:first]
            self.directions = longer
        self.directions[first:stop] = directions
        self.freedom += float(directions.square().sum())
        if self.enough is not None and 2 * stop > directions.shape[1]:  # otherwise the form suits k from the start
            self.schur = self.schur.as_dual()

    def gains(self) -> Tensor:
        """Degrees of freedom that each pivot added (k,)."""
        return self.directions[: len(self.chosen)].square().sum(1)

    def _best_up_to_date(self) -> Tensor:
        """The candidates with the largest bounds, updated until most of a panel are up to date."""
        while True:
            order = self._top(GREEDY_PANEL + 1)
            if int(self._stale(order).sum()) <= GREEDY_PANEL // 4:
                return order
            sweep = self._top(min(SWEEP, self.cache.most))
            self._refresh(sweep[self._stale(sweep)])

    def _stale(self, positions: Tensor) -> Tensor:
        old = self.as_of[positions] < len(self.chosen)
        return old | ~self.exact[positions] if self.careful else old

    def _refresh(self, sweep: Tensor) -> None:
        """Lower these bounds, each in the cheaper way: by the pivots since its last value, or from scratch."""
        self.cache.hold(sweep, self.bounds)
        sweep = sweep[self.cache.slot[sweep].argsort()]  # in the order of the cache
        since = self.as_of[sweep]
        until = torch.where(since == 0, min(FIRST_UPDATE, len(self.chosen)), len(self.chosen))
        scratch = 2 * self.directions.shape[1] * (until - since) >= self.schur.cost()
        if self.careful:
            scratch.fill_(True)
        for then in since[~scratch].unique().tolist():
            group = ((since == then) & ~scratch).nonzero().squeeze(1)
            loose = self._lower(sweep[group], then, int(until[group[0]]))
            scratch[group[loose]] = True
        rest = sweep[scratch]
        if len(rest):
            values = self.schur.diagonal(self.cache.columns(rest))
            require_sound(values)
            self._update(rest, values, len(self.chosen), exact=True)

    def _lower(self, positions: Tensor, then: int, until: int) -> Tensor:
        """Subtract what the pivots from `then` to `until` took; returns a mask of those too loose for it."""
        before = self.bounds[positions]
        lost = column_squares(self.directions[then:until] @ self.cache.columns(positions))
        values = before - lost + self.margin * before
        loose = self.margin * before > LOOSE * values
        self._update(positions[~loose], values[~loose], until, exact=False)
        return loose

    def _update(self, positions: Tensor, values: Tensor, as_of: int, exact: bool) -> None:
        self.bounds[positions] = torch.minimum(values.clamp(min=1.0), self.bounds[positions])  # bounds never rise
        self.as_of[positions] = as_of
        self.exact[positions] = exact

    def _top(self, count: int) -> Tensor:
        """Positions of the largest bounds of candidates not yet chosen, in falling order, ties to the lower index."""
        return largest(self.bounds, min(count, len(self.bounds) - len(self.chosen)))


def require_sound(values: Tensor) -> None:
    """d_j ≥ v_j always holds; a smaller value is caused by rounding, and then the order means nothing."""
    if not bool((values > SOUND).all()):
        found = f"a Schur complement fell to {float(values.min()):.3g} times the prior precision"
        why = "it is never below 1: the data term is too large relative to the prior for float64"
        raise NumericsError(f"{found}, but {why}", reason=Reason.SCHUR_COMPLEMENT_LOST)


def _pivot_inside(
    B: Tensor, panel: Tensor, outside: tuple[float, int], most: int, sure: bool
) -> tuple[list[int], list[float], Tensor]:
    """Pivots of B in order, while the best beats the best bound outside (value, position); with `sure` at least one."""
    positions = panel.tolist()

    def ends(before: int, pivot: float, column: int) -> bool:
        if _beaten(pivot, positions[column], outside) and not (sure and before == 0):
            return True
        if not pivot > SOUND:
            require_sound(torch.tensor(pivot))
        return False

    if B.device.type != "cpu":
        return pivots_on_device(B, most, ends)
    matrix = B.numpy()  # a pivot is a few calls on a few hundred numbers: torch calls would cost several times more
    d = matrix.diagonal().copy()  # −∞ once taken
    rows = np.empty((min(most, len(d)), len(d)))
    taken: list[int] = []
    pivots: list[float] = []
    while len(taken) < len(rows):
        best = _first_largest(d)
        pivot = float(d[best])
        if ends(len(taken), pivot, best):
            break
        t, row = len(taken), rows[len(taken)]
        np.subtract(matrix[best], rows[:t, best] @ rows[:t], out=row)
        row *= pivot**-0.5
        d -= row * row
        d[best] = -np.inf
        taken.append(best)
        pivots.append(pivot)
    return taken, pivots, torch.from_numpy(d)


def _first_largest(d: np.ndarray) -> int:
    """Index of the largest after rounding, the first among equals; only values near the largest are rounded."""
    near = (d >= d.max() * (1 - 2e-11)).nonzero()[0]
    return int(near[0]) if len(near) == 1 else int(near[int(rounded(torch.from_numpy(d[near])).argmax())])


def _beaten(value: float, position: int, outside: tuple[float, int]) -> bool:
    """Whether the best bound outside wins after rounding; ties go to the lower index."""
    if abs(value - outside[0]) > 2e-11 * value:
        return value < outside[0]
    own = float(rounded(torch.tensor([value], dtype=torch.float64)))
    return own < outside[0] or (own == outside[0] and position > outside[1])
