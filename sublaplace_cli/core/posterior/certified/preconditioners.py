"""Matrices P = I + B Bᵀ ⪯ I + K with few columns B: a part of the training rows' Gram matrix K = A′A′ᵀ.

B Bᵀ ⪯ K holds for the columns A′_S of any sub-network, because what it leaves out is a sum of squares, and for a
partial Cholesky factor of K with any pivots, because what it leaves out is a Schur complement.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ....errors import Reason
from ...jacobian.sharded import some_rows
from ...kernels.arithmetic import Arithmetic
from ...omega.precision import Precision
from ...omega.row_sums import own_products, weigh_columns
from ..subnet import require_room

PIVOTS_AT_ONCE = 128  # columns of K that are computed in one pass over the rows
LEAST_PIVOT = 1e-8  # relative to the largest diagonal entry of K: smaller ones are mostly rounding
COPIES = 2  # of B while it is computed


@dataclass(frozen=True)
class Preconditioner:
    """P = I + B Bᵀ, with BᵀB = V diag(λ) Vᵀ."""

    B: Tensor  # (N·C, rank)
    V: Tensor  # (rank, rank)
    eigenvalues: Tensor  # λ (rank,)

    @classmethod
    def of(cls, B: Tensor) -> Self:
        values, V = torch.linalg.eigh(B.T @ B)
        return cls(B, V, values.clamp(min=0.0))

    @property
    def rank(self) -> int:
        return len(self.eigenvalues)

    def inverse_root(self, X: Tensor) -> Tensor:
        """P^(−½) X (N·C, r), up to rounding of BᵀB: any symmetric matrix will do here."""
        if self.rank == 0:
            return X
        root = (1 + self.eigenvalues).sqrt()
        change = -1 / (root * (1 + root))  # (1/√(1 + λ) − 1)/λ
        return torch.addmm(X, self.B, self._times(change, X))

    def lengths(self, R: Tensor) -> Tensor:
        """(rᵀP⁻¹r)^(½) of each column of R, or slightly more (r,)."""
        # ‖r − Bw‖² + ‖w‖² is rᵀP⁻¹r at the best w and larger at any other: rounding of w only makes it larger.
        size = torch.linalg.vector_norm(R, dim=0)
        if self.rank == 0:
            return size
        w = self._times(1 / (1 + self.eigenvalues), R)
        rest, more = (torch.linalg.vector_norm(X, dim=0) for X in (torch.addmm(R, self.B, w, alpha=-1), w))
        evaluated = rounding(self.rank + 2) * (size + float(torch.linalg.vector_norm(self.B)) * more)  # of r − Bw
        return torch.hypot(rest, more) + evaluated

    def _times(self, factors: Tensor, X: Tensor) -> Tensor:
        """V diag(factors) Vᵀ Bᵀ X (rank, r)."""
        return self.V @ (self.V.T @ (self.B.T @ X)).mul_(factors.unsqueeze(1))

    @property
    def freedom(self) -> float:
        """tr(I − P⁻¹), which is at most tr((I + K)⁻¹K)."""
        return float((self.eigenvalues / (1 + self.eigenvalues)).sum())

    def shares(self, places: Tensor) -> Tensor:
        """The diagonal of I − P⁻¹ at some rows of A, each at most that of (I + K)⁻¹K (n,)."""
        scaled = self.B[places] @ (self.V * (1 + self.eigenvalues).rsqrt())
        return scaled.square().sum(1)

    def excess(self, trace: float) -> float:
        """e such that P ⪯ (1 + e)(I + K) after rounding, where `trace` is tr K or more."""
        # B Bᵀ is off by at most eps times the number of summands and tr K; and I ⪯ I + K.
        return 8 * rounding(len(self.B) + self.rank) * trace if self.rank else 0.0


def rounding(summands: int) -> float:
    """Relative error of a float64 sum of so many products, for any order of the sum."""
    error = summands * torch.finfo(torch.float64).eps
    return error / (1 - error)


def no_preconditioner(precision: Precision) -> Preconditioner:
    """P = I."""
    nothing = torch.zeros(precision.n_rows, 0, dtype=torch.float64, device=precision.root.device)
    return Preconditioner(nothing, nothing[:0], nothing[0])


def subnet_preconditioner(precision: Precision, S: Tensor) -> Preconditioner:
    """P = I + A′_S A′_Sᵀ for a sub-network S (k,)."""
    require_room(precision, COPIES * 8 * precision.n_rows * len(S), f"a preconditioner of {len(S)} parameters")
    return Preconditioner.of(precision.columns(S).T)


def cholesky_preconditioner(precision: Precision, rank: int) -> Preconditioner:
    """P = I + L Lᵀ with a partial Cholesky factor L of K, of this rank or less where K has a lower one."""
    what = f"a preconditioner of rank {rank}"
    require_room(precision, COPIES * 8 * precision.n_rows * rank, what, Reason.NO_ROOM_FOR_FULL)
    return Preconditioner.of(partial_cholesky(precision, rank))


def partial_cholesky(precision: Precision, rank: int) -> Tensor:
    """L (N·C, rank or less) with L Lᵀ ⪯ K; the pivots are drawn by what is left of the diagonal of K."""
    root, C = precision.root, precision.root.shape[1]
    products = own_products(precision.jacobian, precision.prior, precision.memory)
    left = torch.einsum("ncd,nce,ned->nd", root, products, root).flatten()  # diag(K − L Lᵀ) (N·C,)
    least, L, done = LEAST_PIVOT * float(left.max()), left.new_empty(len(left), rank), 0
    generator = torch.Generator().manual_seed(0)
    while done < rank and float(left.max()) > least:
        rows = _drawn(left.reshape(-1, C).sum(1), max(1, min(PIVOTS_AT_ONCE, rank - done) // C), generator)
        places = (rows.unsqueeze(1) * C + torch.arange(C, device=rows.device)).flatten()
        before = L[:, :done]
        remaining = _gram_columns(precision, rows).addmm_(before, before[places].T, alpha=-1)  # columns of K − L Lᵀ
        more = _pivoted(remaining, places, min(rank - done, len(places)), least)
        L[:, done : done + more.shape[1]] = more
        done += more.shape[1]
        left = (left - more.square().sum(1)).clamp(min=0.0)
        left[places] = 0.0  # eliminated, or too small
    return L[:, :done]


def _drawn(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Numbers of `count` rows in rising order, each drawn in proportion to its weight; none without weight."""
    # Independent of the device: the random numbers come from the CPU.
    uniform = torch.rand(len(weights), dtype=torch.float64, generator=generator).to(weights.device)
    keys = weights.log() - (-uniform.log()).log()
    return keys.topk(min(count, int((weights > 0).sum()))).indices.sort().values


def _gram_columns(precision: Precision, rows: Tensor) -> Tensor:
    """The columns of K of some training rows (N·C, m·C)."""
    some = some_rows(precision.jacobian, rows.tolist())
    cross = replace(precision, gram_dtype=Arithmetic.FLOAT64).cross_gram(some)
    return weigh_columns(cross, precision.root[rows])


def _pivoted(remaining: Tensor, places: Tensor, rank: int, least: float) -> Tensor:
    """Pivoted Cholesky of a positive semi-definite matrix within its columns at `places` (N·C, rank or less)."""
    small = remaining[places]  # the pivots are found here; then all rows are eliminated at once
    L, order = small.new_zeros(len(small), rank), list[int]()
    for step in range(rank):
        diagonal = small.diagonal()
        pivot = int(diagonal.argmax())
        if not float(diagonal[pivot]) > least:
            break
        order.append(pivot)
        L[:, step] = small[:, pivot] / diagonal[pivot].sqrt()
        small.addr_(L[:, step], L[:, step], alpha=-1)
    chosen = torch.tensor(order, dtype=torch.int64, device=places.device)
    return torch.linalg.solve_triangular(L[chosen, : len(order)].T, remaining[:, chosen], upper=True, left=False)
