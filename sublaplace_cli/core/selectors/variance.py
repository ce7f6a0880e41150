"""Forward selection by predictive variance: each step takes the parameter that adds most to it over the reference rows.

With r_j the gradients of the reference rows at parameter j minus the part that S explains, and d_j the Schur complement
of Ω, adding j raises the sum of their variances by ‖r_j‖²/d_j. Gains may rise with S, so every candidate is updated, by
two products with the Jacobian per step. Updates accumulate rounding: before each step the best few values are
recomputed, and where these differ from the updated ones, all values are.
"""

import torch
from torch import Tensor

from ...errors import Reason, UserError
from ..jacobian.rows import Jacobian, n_outputs
from ..linalg import solve_lower, solve_lower_transposed
from ..omega.precision import Precision
from ..omega.row_sums import column_chunks, pull, squared_gradients, weigh_rows
from . import SearchCost, SearchSize, Selection, SelectionProblem, SelectorFacts, largest
from .greedy import require_sound
from .pool import candidates_of, check_pool

FRESH = 32  # candidates that are recomputed at each step
NOTHING = 1e-12  # a residual below this part of its first value is rounding
DRIFT = 1e-8  # relative difference of updated and recomputed values above which all are recomputed
CHUNK = 1024  # candidates that are recomputed at once


def check(facts: SelectorFacts, k: int | None) -> None:
    """The pool must hold at least k candidates, and the variance is that of every output."""
    check_pool(facts, k)
    if not facts.all_outputs:
        problem = "the variance method needs all outputs of the reference rows, not random combinations of them"
        raise UserError(problem, reason=Reason.OUTPUTS_ARE_SAMPLED)


def cost(size: SearchSize) -> SearchCost:
    """Per step two products with the Jacobian, and the best few candidates against those chosen before."""
    P, k = size.rows, size.k
    few = FRESH * (2 * P * k / 2 + k**2 / 3)
    return SearchCost(k * (2 * size.row_products + few), k * (2 * size.row_elements + 4 * P * FRESH), 2 * k)


def variance(problem: SelectionProblem, k: int) -> Selection:
    """The largest gain in the variance of the reference rows, k times, among the candidates of the pool."""
    candidates = candidates_of(problem, k)
    search = _VarianceSearch(problem.precision, problem.reference, candidates)
    with problem.precision.progress("variance: parameters chosen", k) as bar:
        while len(search.chosen) < k and search.step():
            bar.advance(1)
    taken = torch.tensor(search.chosen, dtype=torch.int64, device=candidates.device)
    # Where no candidate adds variance at the reference rows, the rest is chosen by score.
    left = search.alive.nonzero().squeeze(1)
    scores = (problem.score / problem.prior)[search.candidates[left]]
    rest = left[largest(scores, k - len(taken))] if len(taken) < k else left[:0]
    gains = torch.tensor(search.gains + [0.0] * len(rest), dtype=torch.float64, device=candidates.device)
    return Selection(search.candidates[torch.cat([taken, rest])], gains)


class _VarianceSearch:
    """State of one search, in the prior's metric."""

    def __init__(self, precision: Precision, reference: Jacobian, candidates: Tensor) -> None:
        self.precision, self.reference, self.candidates = precision, reference, candidates
        self.scale = precision.prior[candidates].rsqrt()
        memory, device = precision.memory, candidates.device
        self.d = 1 + precision.data_diagonal()[candidates] * self.scale.square()
        self.c = squared_gradients(reference, None, memory)[candidates] * self.scale.square()  # ‖r_j‖²
        self.first_c = self.c.clone()
        self.alive = torch.ones(len(candidates), dtype=torch.bool, device=device)
        self.A_S = torch.empty(precision.n_rows, 0, dtype=torch.float64, device=device)
        self.G_S = torch.empty(len(reference.outputs) * n_outputs(reference), 0, dtype=torch.float64, device=device)
        self.L = torch.empty(0, 0, dtype=torch.float64, device=device)
        self.chosen: list[int] = []
        self.gains: list[float] = []

    def step(self) -> bool:
        """Choose one more parameter and update the others; False if no candidate adds variance."""
        few = self._best()
        d, c = self._recomputed(few)
        near_d = (self.d[few] - d).abs() <= DRIFT * d
        near_c = (self.c[few] - c).abs() <= DRIFT * c + NOTHING * self.first_c[few]
        if not bool((near_d & near_c).all()):
            for positions in self.alive.nonzero().squeeze(1).split(CHUNK):
                self.d[positions], self.c[positions] = self._recomputed(positions)
            few = self._best()
            d, c = self._recomputed(few)
        gains = c / d
        if float(gains.max()) <= NOTHING * (self.gains[0] if self.gains else 0.0):
            return False
        self._take(int(few[int(largest(gains, 1))]))  # `few` is in rising order: ties go to the lower index
        return True

    def _best(self) -> Tensor:
        gains = torch.where(self.alive, self.c / self.d, torch.full_like(self.c, -1.0))
        return largest(gains, min(FRESH, len(gains) - len(self.chosen))).sort().values

    def _columns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Columns of the weighted training rows (N·C, b) and of the reference rows (m·C, b)."""
        indices, scale = self.candidates[positions], self.scale[positions].unsqueeze(1)
        A = self.precision.columns(indices).T
        chunks = [chunk for _, chunk in column_chunks(self.reference, indices, self.precision.memory)]
        return A, torch.cat(chunks, dim=1).mul_(scale).T

    def _residuals(self, A: Tensor, G: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(d, residuals of the training rows, residuals of the reference rows, L⁻¹A_SᵀA) of these columns."""
        t = solve_lower(self.L, self.A_S.T @ A)
        z = solve_lower_transposed(self.L, t)
        d = 1 + A.square().sum(0) - t.square().sum(0)
        return d, A - self.A_S @ z, G - self.G_S @ z, t

    def _recomputed(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        d, _, r, _ = self._residuals(*self._columns(positions))
        require_sound(d)
        return d, r.square().sum(0)

    def _take(self, best: int) -> None:
        A, G = self._columns(torch.tensor([best], device=self.candidates.device))
        d, a, r, t = self._residuals(A, G)
        w = self.A_S @ solve_lower_transposed(self.L, solve_lower(self.L, self.G_S.T @ r))
        schur, overlap = self._updates(a, r, w)
        share = schur / float(d)  # the part of the new residuals that the others lose
        self.d -= schur * share
        self.c += share * (share * float(r.square().sum()) - 2 * overlap)
        self.d.clamp_(min=1.0)
        self.c.clamp_(min=0.0)
        corner = torch.cat([t.T, d.sqrt().reshape(1, 1)], dim=1)
        self.L = torch.cat([torch.nn.functional.pad(self.L, (0, 1)), corner])
        self.A_S, self.G_S = torch.cat([self.A_S, A], dim=1), torch.cat([self.G_S, G], dim=1)
        self.alive[best] = False
        self.chosen.append(best)
        self.gains.append(float(r.square().sum() / d))

    def _updates(self, a: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Aᵀa, and Gᵀr − Aᵀw, for every candidate."""
        memory, root = self.precision.memory, self.precision.root
        if self.reference is self.precision.jacobian:  # the same rows: one pass over them
            both = pull(self.reference, torch.cat([weigh_rows(a, root), r - weigh_rows(w, root)], dim=1), memory)
            schur, overlap = both[:, 0], both[:, 1]
        else:
            own = pull(self.precision.jacobian, weigh_rows(torch.cat([a, w], dim=1), root), memory)
            schur, overlap = own[:, 0], pull(self.reference, r, memory)[:, 0] - own[:, 1]
        return schur[self.candidates] * self.scale, overlap[self.candidates] * self.scale
