"""Posteriors: the sub-network's (primal or dual), the full network's through the Gram kernel, the diagonal one.

All work in the prior's metric, A′ = A V^(−½) and g′ = V^(−½) g, so that Ω becomes I + A′ᵀA′ and unequal priors
cost no digits. Fitting factorises once; `variance` only solves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..errors import RunError
from .blocks import add_upper
from .jacobian import Jacobian
from .linalg import (
    QR_CONDITION,
    column_squares,
    condition_of,
    dual_variance,
    factor_of_rows,
    inverse_square_sums,
    mirrored,
    safe_cholesky,
    self_product,
    solve_lower,
)
from .precision import Precision, column_chunks, row_norms

Form = Literal["primal", "dual"]
WEAK_DATA = 1e-3  # degrees of freedom a row below which their plain difference would lose more than 13 digits


@dataclass(frozen=True)
class SubnetPosterior:
    """Gaussian over the parameters in S; all others stay at their value."""

    indices: Tensor  # S (k,), rising
    prior: Tensor  # v_S (k,)
    form: Form
    factor: Tensor  # L of I + A′ᵀA′ (k, k), or of I + A′A′ᵀ (N·C, N·C)
    columns: Tensor | None  # A′ᵀ (k, N·C), dual form only
    condition: float  # κ = λmax(A′ᵀA′), or a harmless bound of it
    count_freedom: Callable[[], float]

    @cached_property
    def freedom(self) -> float:
        """tr(Ω_SS⁻¹ (AᵀA)_SS): how many of the k parameters the data determine."""
        return self.count_freedom()

    def variance(self, J_S: Tensor) -> Tensor:
        """g_Sᵀ Ω_SS⁻¹ g_S for rows J_Sᵀ (k, m·C), which are used up → (m·C,)."""
        g = J_S.mul_(self.prior.rsqrt().unsqueeze(1))
        return self._primal(g) if self.columns is None else self._dual(self.columns, g)

    def _primal(self, g: Tensor) -> Tensor:
        return column_squares(solve_lower(self.factor, g))

    def _dual(self, A: Tensor, g: Tensor) -> Tensor:
        def residual_norms(chosen: Tensor, w: Tensor) -> Tensor:
            return column_squares(g[:, chosen] - A @ w)

        return dual_variance(self.factor, A.T @ g, column_squares(g), self.condition, residual_norms)


@dataclass(frozen=True)
class FullPosterior:
    """All p parameters at once, through the Gram matrix of the training rows."""

    precision: Precision
    factor: Tensor  # L of I + K (N·C, N·C)
    condition: float
    count_freedom: Callable[[], float]

    @cached_property
    def freedom(self) -> float:
        """tr(Ω⁻¹AᵀA): how many parameters the data determine."""
        return self.count_freedom()

    def variance(self, test: Jacobian, norms: Tensor) -> Tensor:
        """gᵀ Ω⁻¹ g for every row and output of `test` (M, C), given its squared norms (M·C,)."""
        cross = self.precision.cross_gram(test)  # (N·C, M·C)

        def residual_norms(chosen: Tensor, w: Tensor) -> Tensor:
            return self.precision.residual_norms(test, chosen, w)

        return dual_variance(self.factor, cross, norms, self.condition, residual_norms).reshape(test.outputs.shape)


def fit_subnet(precision: Precision, S: Tensor, form: Form | None = None) -> SubnetPosterior:
    """Posterior over S: primal (k × k) where k ≤ N·C, else dual (N·C × N·C)."""
    S = S.sort().values  # neighbours are quicker to fetch; the posterior does not mind the order
    k, rows = len(S), precision.n_rows
    form = form or ("primal" if k <= rows else "dual")
    _require_room(precision, subnet_bytes(k, rows, form), f"a posterior over {k} parameters with {rows} rows")
    return (_fit_primal if form == "primal" else _fit_dual)(precision, S)


def _require_room(precision: Precision, needed: int, what: str, or_else: str = "") -> None:
    if needed > precision.memory:
        raise RunError(
            f"{what} needs about {needed / 2**30:.1f} GiB, more than the {precision.memory / 2**30:.1f} GiB allowed",
            hint=f"lower --k, use fewer training rows (splits.train.n), or raise --memory{or_else}",
        )


def subnet_bytes(k: int, rows: int, form: Form) -> int:
    """Memory for the matrices of a sub-network's posterior while it is fitted."""
    return 8 * (k * k if form == "primal" else rows * (rows + k))


def full_bytes(rows: int) -> int:
    """Memory for the matrix of the full posterior: K, which its factor takes the place of."""
    return 8 * rows * rows


def _fit_primal(precision: Precision, S: Tensor) -> SubnetPosterior:
    v = precision.prior[S]
    scale = v.rsqrt().unsqueeze(1)
    B = torch.zeros(len(S), len(S), dtype=torch.float64, device=v.device)
    for A in precision.column_chunks(S):
        add_upper(B, A.mul_(scale))
    mirrored(B)
    condition = condition_of(B)
    if condition > QR_CONDITION:
        del B
        _require_room(precision, 4 * subnet_bytes(len(S), 0, "primal"), f"an ill-conditioned posterior over {len(S)}")
        L = factor_of_rows((A.mul_(scale).T for A in precision.column_chunks(S)), len(S), v)
    else:
        B.diagonal().add_(1.0)
        L = safe_cholesky(B, lambda i: precision.layout.describe(int(S[i])))

    def freedom() -> float:
        plain = float((1.0 - inverse_square_sums(L)).clamp(min=0.0).sum())  # k − tr(Ω⁻¹V)
        if plain >= WEAK_DATA * len(S):
            return plain  # … which cancels where the data say little; ‖L⁻¹A′ᵀ‖² does not
        return sum(float(solve_lower(L, A.mul_(scale)).square_().sum()) for A in precision.column_chunks(S))

    return SubnetPosterior(S, v, "primal", L, None, condition, freedom)


def _fit_dual(precision: Precision, S: Tensor) -> SubnetPosterior:
    v = precision.prior[S]
    A = precision.columns(S).mul_(v.rsqrt().unsqueeze(1))  # (k, N·C)
    L, condition, freedom = _factor_gram(self_product(A.T))
    return SubnetPosterior(S, v, "dual", L, A, condition, freedom)


def fit_full(precision: Precision) -> FullPosterior:
    """Full linearized Laplace; nothing of size p × p exists."""
    rows = precision.n_rows
    _require_room(precision, full_bytes(rows), f"the full posterior over {rows} rows", or_else=" or --full none")
    return FullPosterior(precision, *_factor_gram(precision.gram()))


def _factor_gram(K: Tensor) -> tuple[Tensor, float, Callable[[], float]]:
    """(L of I + K, λmax of K, what tells tr((I + K)⁻¹K)); K is used up."""
    condition = condition_of(K)
    diagonal = K.diagonal().clone()
    K.diagonal().add_(1.0)
    L = safe_cholesky(K, lambda i: f"training row {i}")

    def freedom() -> float:
        # N·C − tr M, summed as the rows' own shares, each between 0 and 1: cheap, but it cancels where the data
        # say next to nothing; then tr(L⁻¹KL⁻ᵀ), a sum of positive terms.
        plain = float((1.0 - inverse_square_sums(L)).clamp(min=0.0).sum())
        if plain >= WEAK_DATA * len(L):
            return plain
        K = L @ L.T
        K.diagonal().copy_(diagonal)
        half = solve_lower(L, K)
        return float((solve_lower(L, half.T.contiguous())).diagonal().sum())

    return L, condition, freedom


def diagonal_variance(precision: Precision, data_diagonal: Tensor, test: Jacobian) -> Tensor:
    """Σⱼ gⱼ²/Ωⱼⱼ for every row and output of `test` (M, C): the diagonal Laplace reference."""
    return row_norms(test, precision.prior + data_diagonal, precision.memory).reshape(test.outputs.shape)


def diagonal_freedom(precision: Precision, data_diagonal: Tensor) -> float:
    """tr(diag(Ω)⁻¹ AᵀA)."""
    return float((data_diagonal / (data_diagonal + precision.prior)).sum())


def subnet_variance(posterior: SubnetPosterior, test: Jacobian, memory: int) -> Tensor:
    """`posterior.variance` over all rows of `test` (M, C), a chunk of rows at a time."""
    chunks = column_chunks(test, posterior.indices, memory)
    return torch.cat([posterior.variance(J_S) for _, J_S in chunks]).reshape(test.outputs.shape)
