"""Sub-networks along a path, an order of parameters: its prefixes share their factor (primal) or Gram matrix (dual)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..jacobian.rows import Jacobian, n_outputs
from ..linalg import column_squares, row_products, safe_cholesky, solve_lower, solve_lower_transposed
from ..omega.precision import Precision
from ..omega.row_sums import column_chunks
from .full import full_bytes
from .subnet import Form, SubnetPosterior, natural_form, require_room_for_subnet, subnet_bytes
from .subnet_dual import SubnetDual, fit_dual
from .subnet_primal import SubnetPrimal, fit_primal, primal_factor

GAINS_PANEL = 1024  # parameters of a path whose gains are computed together


def fit_subnet(precision: Precision, S: Tensor, form: Form | None = None) -> SubnetPosterior:
    """Posterior over S: primal (k × k) where k ≤ N·C, else dual (N·C × N·C)."""
    if form is None:
        return fit_path(precision, S, [len(S)])[0]
    return (fit_primal if form == "primal" else fit_dual)(precision, S.sort().values, [len(S)])[0]


def fit_path(precision: Precision, S: Tensor, ks: Sequence[int]) -> list[SubnetPosterior]:
    """Posteriors over the first k of S, for each of these k."""
    if len(ks) == 1:
        S = S[: ks[0]].sort().values  # neighbours are faster to fetch; for a single k the order does not matter
        return [*(fit_primal if natural_form(len(S), precision.n_rows) == "primal" else fit_dual)(precision, S, ks)]
    small = sorted({k for k in ks if natural_form(k, precision.n_rows) == "primal"})
    large = sorted({k for k in ks if natural_form(k, precision.n_rows) == "dual"})
    if len(large) > 1:
        needed = subnet_bytes(large[-1], precision.n_rows, "dual") + len(large) * full_bytes(precision.n_rows)
        if needed > precision.memory:  # each holds a factor: no room for all of them at once
            return [posterior for k in ks for posterior in fit_path(precision, S, [k])]
    if large:
        require_room_for_subnet(precision, large[-1], "dual")
    A = precision.columns(S[: large[-1]]) if large else None
    made: list[SubnetPosterior] = [*fit_primal(precision, S[: small[-1]], small, A)] if small else []
    made += fit_dual(precision, S[: large[-1]], large, A) if large else []
    by_size = {len(posterior.indices): posterior for posterior in made}
    return [by_size[k] for k in ks]


def path_covariances(posteriors: Sequence[SubnetPosterior], jacobian: Jacobian, memory: int) -> list[Tensor]:
    """`covariance` of several posteriors (M, C, C), together if possible: prefixes of one order share their columns."""
    longest = max(posteriors, key=lambda posterior: len(posterior.indices))
    prefixes = all(torch.equal(one.indices, longest.indices[: len(one.indices)]) for one in posteriors)
    if len(posteriors) == 1 or not prefixes:
        return [posterior.covariance(jacobian) for posterior in posteriors]
    by_size = sorted(range(len(posteriors)), key=lambda i: len(posteriors[i].indices))
    scale, C = longest.prior.rsqrt().unsqueeze(1), n_outputs(jacobian)
    parts: list[list[Tensor]] = [[] for _ in posteriors]
    for _, J_S in column_chunks(jacobian, longest.indices, memory):
        g, done = J_S.mul_(scale), 0
        cross = products = torch.zeros((), dtype=torch.float64, device=g.device)
        for i in by_size:
            posterior, k = posteriors[i], len(posteriors[i].indices)
            if isinstance(posterior, SubnetDual):
                cross = cross + posterior.columns[done:k].T @ g[done:k]
                products = products + row_products(g[done:k], C)
                done = k
                parts[i].append(posterior.metric_covariance(g[:k], cross, products))
            else:
                assert isinstance(posterior, SubnetPrimal)
                parts[i].append(posterior.metric_covariance(g[:k], C))
    return [torch.cat(chunks) for chunks in parts]


def path_gains(precision: Precision, S: Tensor) -> Tensor:
    """How much each parameter of S, added to those before it, raises tr(Ω_SS⁻¹ (AᵀA)_SS) (k,)."""
    if natural_form(len(S), precision.n_rows) == "dual":
        return _dual_gains(precision, S)
    L, _ = primal_factor(precision, S, [len(S)])
    gains = torch.zeros(len(S), dtype=torch.float64, device=S.device)
    for A in precision.column_chunks(S):
        gains += solve_lower(L, A).square_().sum(1)
    return gains


def _dual_gains(precision: Precision, S: Tensor) -> Tensor:
    """With R = (I + A_S A_Sᵀ)⁻¹ and new columns P, tr R falls by ‖Lc⁻¹PᵀR‖², row by row, where Lc Lcᵀ = I + PᵀRP."""
    rows, gains = precision.n_rows, []
    inverse_of_R = torch.eye(rows, dtype=torch.float64, device=precision.prior.device)
    for part in S.split(GAINS_PANEL):
        P = precision.columns(part).T  # (N·C, b)
        L = safe_cholesky(inverse_of_R.clone(), lambda i: f"training row {i}")
        half = solve_lower(L, P)
        B = half.T @ half
        B.diagonal().add_(1.0)
        corner = safe_cholesky(B)
        gains.append(column_squares(solve_lower(corner, solve_lower_transposed(L, half).T).T))
        inverse_of_R.addmm_(P, P.T)
    return torch.cat(gains)
