"""Factorisations and solves: float64, triangular solves, never an inverse."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from ..errors import NumericsError, Reason

# Above these ratios of the largest eigenvalue to the prior, rounding affects the variances, or dominates them.
WARN_CONDITION = 1e12
REFUSE_CONDITION = 1e15
# A Cholesky factor of AᵀA + I is accurate to about eps·κ; above this κ it is computed from A itself by QR.
QR_CONDITION = 1e8
# The dual form subtracts two numbers of the size of ‖g‖², and its Gram matrix is accurate to eps·κ. Where either
# leaves fewer digits than this, the residual form is used.
CANCELLATION = 1e-6
GRAM_ERROR = 1e-9
# The residual form is off by (eps·κ)²; from this κ on that is corrected by one step of iterative refinement.
REFINE_CONDITION = 1e10
HARMLESS_CONDITION = 1e6  # below this nothing depends on κ: an upper bound is enough
SYMMETRIC_STRIP = 256  # rows of a symmetric matrix that are handled at a time


def safe_cholesky(B: Tensor, describe: Callable[[int], str] = str) -> Tensor:
    """Lower Cholesky factor, which overwrites B to save memory; or an error that names the pivot."""
    L = B.mT  # B is symmetric; this is the memory order in which LAPACK writes
    info = torch.empty((), dtype=torch.int32, device=B.device)
    torch.linalg.cholesky_ex(L, out=(L, info))
    pivot = int(info)
    if pivot == 0 and bool(torch.isfinite(L.diagonal()).all()):
        return L
    where = describe(pivot - 1) if pivot else "an unknown pivot"
    problem = f"the precision matrix is not positive definite at {where} (pivot {pivot} of {B.shape[0]})"
    raise NumericsError(problem, reason=Reason.NOT_POSITIVE_DEFINITE)


def solve_lower(L: Tensor, B: Tensor) -> Tensor:
    """L⁻¹ B."""
    return torch.linalg.solve_triangular(L, B, upper=False)


def solve_lower_transposed(L: Tensor, B: Tensor) -> Tensor:
    """L⁻ᵀ B."""
    return torch.linalg.solve_triangular(L.T, B, upper=True)


def mirrored(K: Tensor) -> Tensor:
    """K with the part above its diagonal copied below it, in place."""
    for top in range(0, len(K), SYMMETRIC_STRIP):
        end = min(top + SYMMETRIC_STRIP, len(K))
        corner = K[top:end, top:end]
        corner.copy_(torch.triu(corner) + torch.triu(corner, 1).T)
        K[end:, top:end] = K[top:end, end:].T
    return K


def self_product(A: Tensor) -> Tensor:
    """A Aᵀ, computed on and above the diagonal and mirrored."""
    K = torch.empty(len(A), len(A), dtype=A.dtype, device=A.device)
    for top in range(0, len(A), SYMMETRIC_STRIP):
        torch.mm(A[top : top + SYMMETRIC_STRIP], A[top:].T, out=K[top : top + SYMMETRIC_STRIP, top:])
    return mirrored(K)


def column_squares(X: Tensor) -> Tensor:
    """Squared norms of the columns, without a copy of X."""
    total = torch.zeros(X.shape[1], dtype=X.dtype, device=X.device)
    for rows in X.split(SYMMETRIC_STRIP):
        total += rows.square().sum(0)
    return total


def row_products(X: Tensor, n_outputs: int) -> Tensor:
    """Inner products of the columns that belong to one row: (n, m·C) → (m, C, C)."""
    if n_outputs == 1:
        return column_squares(X).reshape(-1, 1, 1)
    total = X.new_zeros(X.shape[1] // n_outputs, n_outputs, n_outputs)
    for part in X.split(SYMMETRIC_STRIP):
        own = part.reshape(len(part), -1, n_outputs)  # (n, m, C)
        total.baddbmm_(own.permute(1, 2, 0), own.permute(1, 0, 2))
    return total


def inverse_square_sums(L: Tensor) -> Tensor:
    """Column sums of squares of L⁻¹, i.e. the diagonal of (L Lᵀ)⁻¹, skipping the zeros above the diagonal."""
    return torch.cat([X.square().sum(0) for X in inverse_columns(L)])


def inverse_columns(L: Tensor, multiple_of: int = 1) -> Iterator[Tensor]:
    """Columns of L⁻¹, some at a time and without the zeros above them."""
    # Each solve copies its part of L, so there should not be too many.
    step = max(1, max(SYMMETRIC_STRIP, len(L) // 16) // multiple_of) * multiple_of
    for left in range(0, len(L), step):
        unit = torch.eye(len(L) - left, min(step, len(L) - left), dtype=L.dtype, device=L.device)
        yield solve_lower(L[left:, left:], unit)


def largest_eigenvalue(multiply: Callable[[Tensor], Tensor], size: int, like: Tensor, steps: int = 30) -> float:
    """Power iteration on a positive semi-definite operator, from a fixed start so that runs are reproducible."""
    x = torch.randn(size, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(like.device)
    value = 0.0
    for _ in range(steps):
        norm = float(torch.linalg.vector_norm(x))
        if norm == 0.0:
            return 0.0
        x = x / norm
        y = multiply(x)
        value = float((x * y).sum())
        x = y
    return value


def condition_of(K: Tensor) -> float:
    """κ, the largest eigenvalue of a positive semi-definite K; or its trace, an upper bound, if that is harmless."""
    bound = float(K.diagonal().sum())
    if bound < HARMLESS_CONDITION:
        return bound
    return check_condition(largest_eigenvalue(lambda x: K @ x, len(K), K))


def check_condition(eigenvalue: float) -> float:
    """κ = λmax of A V⁻¹ Aᵀ; refused if float64 has too few digits for it."""
    if not eigenvalue < REFUSE_CONDITION:
        found = f"{eigenvalue:.3g} times the prior precision (limit {REFUSE_CONDITION:.0e})"
        problem = f"the problem is too ill-conditioned for float64: the largest eigenvalue of the data term is {found}"
        raise NumericsError(problem, reason=Reason.ILL_CONDITIONED)
    return eigenvalue


def factor_of_rows(chunks: Iterable[Tensor], size: int, like: Tensor) -> Tensor:
    """Lower factor of AᵀA + I from the rows of A by QR, which keeps half of the digits that AᵀA would lose."""
    upper = torch.eye(size, dtype=torch.float64, device=like.device)
    for A in chunks:  # (m, k)
        upper = torch.linalg.qr(torch.cat([upper, A]), mode="r").R
    signs = torch.where(upper.diagonal() < 0, -1.0, 1.0).to(upper)
    return (upper * signs.unsqueeze(1)).T.contiguous()


def gram_is_accurate(condition: float) -> bool:
    """Whether K has enough digits for the dual form: relative to the variance, because ‖w‖² ≤ var."""
    return not torch.finfo(torch.float64).eps * condition > GRAM_ERROR


def dual_covariance(
    L: Tensor,
    cross: Tensor,
    products: Tensor,
    condition: float,
    residual_products: Callable[[Tensor, Tensor], Tensor],
    system_residual: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """G V⁻¹ Gᵀ − (L⁻¹ cross)ᵀ(L⁻¹ cross) for the C gradients G of each row (m, C, C), with L Lᵀ = I + K, K = A V⁻¹ Aᵀ.

    `products` are G V⁻¹ Gᵀ (m, C, C), `cross` is A V⁻¹ Gᵀ (N·C, m·C). Where that loses digits, with
    w = (I + K)⁻¹ cross, (G − wᵀA) V⁻¹ (G − wᵀA)ᵀ + wᵀw; `residual_products(rows, w)` is its first term. An error e of w
    adds eᵀ(I + K)e; where K has few correct digits, w is refined once with `system_residual(rows, w)` =
    A V⁻¹(Gᵀ − Aᵀw) − w, computed without K.
    """
    half, C = solve_lower(L, cross), products.shape[1]  # (N·C, m·C)
    covariance = products - row_products(half, C)
    doubtful = (covariance.diagonal(dim1=1, dim2=2) < CANCELLATION * products.diagonal(dim1=1, dim2=2)).any(1)
    if not gram_is_accurate(condition):
        doubtful = torch.ones_like(doubtful)
    weak = doubtful.nonzero().squeeze(1)
    if len(weak):
        w = solve_lower_transposed(L, half.reshape(len(half), -1, C)[:, weak].flatten(1))
        if system_residual is not None and condition >= REFINE_CONDITION:
            w = w + solve_lower_transposed(L, solve_lower(L, system_residual(weak, w)))
        covariance = covariance.clone()
        covariance[weak] = residual_products(weak, w) + row_products(w, C)
    return covariance
