"""Fitting posteriors: a sub-network's in primal or dual form, all sub-networks along a path at once, the full one.

A path is an order of parameters; the sub-networks along it are its beginnings. In primal form the Cholesky factor
of a beginning is the leading block of the factor of the whole; in dual form the Gram matrix grows by the columns
that are new. Either way many k cost little more than the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...errors import NumericsError, RunError
from ..jacobian.blocks import add_upper
from ..linalg import (
    QR_CONDITION,
    column_squares,
    condition_of,
    factor_of_rows,
    inverse_square_sums,
    mirrored,
    safe_cholesky,
    solve_lower,
    solve_lower_transposed,
)
from ..omega.gram_float32 import not_good_enough
from ..omega.precision import Precision
from .posterior import Form, FullPosterior, SubnetPosterior

WEAK_DATA = 1e-3  # degrees of freedom a row below which their plain difference would lose more than 13 digits
PANEL = 1024  # parameters of a path whose gains are found together


def fit_subnet(precision: Precision, S: Tensor, form: Form | None = None) -> SubnetPosterior:
    """Posterior over S: primal (k × k) where k ≤ N·C, else dual (N·C × N·C)."""
    S = S.sort().values  # neighbours are quicker to fetch; one posterior alone does not mind the order
    form = form or natural_form(len(S), precision.n_rows)
    return (_fit_primal if form == "primal" else _fit_dual)(precision, S, [len(S)])[0]


def fit_path(precision: Precision, S: Tensor, ks: Sequence[int]) -> list[SubnetPosterior]:
    """Posteriors over the first k of S, for each of these k."""
    if len(ks) == 1:
        return [fit_subnet(precision, S[: ks[0]])]
    small = sorted({k for k in ks if natural_form(k, precision.n_rows) == "primal"})
    large = sorted({k for k in ks if natural_form(k, precision.n_rows) == "dual"})
    if len(large) > 1:
        needed = subnet_bytes(large[-1], precision.n_rows, "dual") + len(large) * full_bytes(precision.n_rows)
        if needed > precision.memory:  # each keeps a factor of its own: no room for all of them at once
            return [posterior for k in ks for posterior in fit_path(precision, S, [k])]
    A = _dual_columns(precision, S[: large[-1]]) if large else None
    made = _fit_primal(precision, S[: small[-1]], small, A) if small else []
    made += _fit_dual(precision, S[: large[-1]], large, A) if large else []
    by_size = {len(posterior.indices): posterior for posterior in made}
    return [by_size[k] for k in ks]


def natural_form(k: int, rows: int) -> Form:
    """Whichever has the smaller matrix to factorise."""
    return "primal" if k <= rows else "dual"


def subnet_bytes(k: int, rows: int, form: Form) -> int:
    """Memory for the matrices of a sub-network's posterior while it is fitted."""
    return 8 * (k * k if form == "primal" else rows * (rows + k))


def full_bytes(rows: int) -> int:
    """Memory for the matrix of the full posterior: K, which its factor takes the place of."""
    return 8 * rows * rows


def _require_room(precision: Precision, needed: int, what: str, or_else: str = "") -> None:
    if needed > precision.memory:
        raise RunError(
            f"{what} needs about {needed / 2**30:.2g} GiB, more than the {precision.memory / 2**30:.2g} GiB allowed",
            hint=f"lower --k, use fewer training rows (splits.train.n), or raise --memory{or_else}",
        )


def _dual_columns(precision: Precision, S: Tensor) -> Tensor:
    """A′ᵀ of these parameters (k, N·C), if there is room for it and the rest of a dual posterior."""
    rows = precision.n_rows
    what = f"a posterior over {len(S)} parameters with {rows} rows"
    _require_room(precision, subnet_bytes(len(S), rows, "dual"), what)
    return precision.columns(S)


def _fit_primal(
    precision: Precision, S: Tensor, ks: Sequence[int], columns: Tensor | None = None
) -> list[SubnetPosterior]:
    rows = precision.n_rows
    what = f"a posterior over {len(S)} parameters with {rows} rows"
    _require_room(precision, subnet_bytes(len(S), rows, "primal"), what)
    v = precision.prior[S]
    L, conditions = _primal_factor(precision, S, ks, columns)

    def freedom(k: int) -> float:
        own = L[:k, :k]
        plain = float((1.0 - inverse_square_sums(own)).clamp(min=0.0).sum())  # k − tr(Ω⁻¹V)
        if plain >= WEAK_DATA * k:
            return plain  # … which cancels where the data say little; ‖L⁻¹A′ᵀ‖² does not
        return sum(float(solve_lower(own, A).square_().sum()) for A in precision.column_chunks(S[:k]))

    return [
        SubnetPosterior(S[:k], v[:k], "primal", L[:k, :k], None, condition, lambda k=k: freedom(k))  # type: ignore[misc]
        for k, condition in zip(ks, conditions, strict=True)
    ]


def _primal_factor(
    precision: Precision, S: Tensor, ks: Sequence[int], columns: Tensor | None = None
) -> tuple[Tensor, list[float]]:
    """L of I + A′ᵀA′ in the order of S, and κ of each leading block of size k; `columns` is A′ᵀ where it is there."""
    if columns is not None:
        B = torch.zeros(len(S), len(S), dtype=torch.float64, device=S.device)
        add_upper(B, columns[: len(S)])
    else:
        B = precision.submatrix(S)
    mirrored(B)
    conditions = [condition_of(B[:k, :k]) for k in ks]
    if max(conditions) > QR_CONDITION:
        del B
        _require_room(precision, 4 * subnet_bytes(len(S), 0, "primal"), f"an ill-conditioned posterior over {len(S)}")
        return factor_of_rows((A.T for A in precision.column_chunks(S)), len(S), precision.prior), conditions
    B.diagonal().add_(1.0)
    return safe_cholesky(B, lambda i: precision.layout.describe(int(S[i]))), conditions


def _fit_dual(
    precision: Precision, S: Tensor, ks: Sequence[int], columns: Tensor | None = None
) -> list[SubnetPosterior]:
    rows, v = precision.n_rows, precision.prior[S]
    A = _dual_columns(precision, S) if columns is None else columns  # (k, N·C)
    K = torch.zeros(rows, rows, dtype=torch.float64, device=v.device)
    posteriors, done = [], 0
    for k in ks:
        add_upper(K, A[done:k].T)
        own = K if k == ks[-1] else K.clone()
        L, condition, freedom = _factor_gram(mirrored(own))
        posteriors.append(SubnetPosterior(S[:k], v[:k], "dual", L, A[:k], condition, freedom))
        done = k
    return posteriors


def fit_full(precision: Precision) -> FullPosterior:
    """Full linearized Laplace; nothing of size p × p exists."""
    rows = precision.n_rows
    _require_room(
        precision, full_bytes(rows), f"the full posterior over {rows} rows", or_else=", or --full none or bracket"
    )
    if precision.gram_dtype == torch.float64:
        return FullPosterior(precision, *_factor_gram(precision.gram()))
    try:
        posterior = FullPosterior(precision, *_factor_gram(precision.gram()))
    except NumericsError as error:
        raise not_good_enough(error.message) from error
    posterior.require_accuracy()
    return posterior


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


def path_gains(precision: Precision, S: Tensor) -> Tensor:
    """By how much each parameter of S, joining those before it, raises tr(Ω_SS⁻¹ (AᵀA)_SS) (k,)."""
    if natural_form(len(S), precision.n_rows) == "dual":
        return _dual_gains(precision, S)
    L, _ = _primal_factor(precision, S, [len(S)])
    gains = torch.zeros(len(S), dtype=torch.float64, device=S.device)
    for A in precision.column_chunks(S):
        gains += solve_lower(L, A).square_().sum(1)
    return gains


def _dual_gains(precision: Precision, S: Tensor) -> Tensor:
    """With M = (I + A_S A_Sᵀ)⁻¹ and new columns P, tr M falls by ‖Lc⁻¹PᵀM‖², row by row, where Lc Lcᵀ = I + PᵀMP."""
    rows, gains = precision.n_rows, []
    outer = torch.eye(rows, dtype=torch.float64, device=precision.prior.device)
    for part in S.split(PANEL):
        P = precision.columns(part).T  # (N·C, b)
        L = safe_cholesky(outer.clone(), lambda i: f"training row {i}")
        half = solve_lower(L, P)
        T = half.T @ half
        T.diagonal().add_(1.0)
        corner = safe_cholesky(T)
        gains.append(column_squares(solve_lower(corner, solve_lower_transposed(L, half).T).T))
        outer.addmm_(P, P.T)
    return torch.cat(gains)
