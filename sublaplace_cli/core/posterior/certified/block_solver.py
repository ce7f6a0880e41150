"""Block conjugate gradients for M x = r, M ⪰ I, with several right-hand sides that use each other's directions.

The residuals are kept as B C with an orthonormal basis B, and the directions S satisfy SᵀB = I: a step is x += S a C
and R −= M S a C with a = (SᵀMS)⁻¹. It lowers the error of a column, xᵀMx − 2rᵀx, by CᵀaC. Nothing breaks down where
right-hand sides depend on each other, or where their residuals come to: the basis then has fewer columns. A column that
is finished stays among the directions, because the others need fewer products with it than without.
"""

from collections.abc import Callable

import torch
from torch import Tensor

INDEPENDENT = 1e-12  # of a block's largest singular value: directions below are rounding
VISIBLE = 16  # times eps: the change of a bound that its recurrence can show


def solve_block(
    multiply: Callable[[Tensor], Tensor],
    R: Tensor,
    bounds: Tensor,
    share: float,
    most_steps: int,
    tell: Callable[[Tensor, Tensor, Tensor], None],
) -> tuple[Tensor, int]:
    """(x, steps): x ≈ M⁻¹R, until the squared residual of each column is at most a share of its bound u.

    `bounds` are u at x = 0 (r,); each step lowers them. Before each, `tell(squared residuals, bounds, x)` is called.
    """
    sizes = torch.linalg.vector_norm(R, dim=0)
    basis, C = _orthonormal(R / sizes.clamp(min=torch.finfo(torch.float64).tiny))
    C *= sizes
    S, X, u = basis.clone(), torch.zeros_like(R), bounds.clone()
    least = VISIBLE * torch.finfo(torch.float64).eps * bounds
    for step in range(most_steps):
        squares = C.square().sum(0)
        tell(squares, u, X)
        if bool((squares <= torch.maximum(share * u, least)).all()):
            return X, step
        MS = multiply(S)
        energy = S.T @ MS
        L, failed = torch.linalg.cholesky_ex((energy + energy.T) / 2)
        if int(failed):  # rounding: start again from the true residual
            return X, step + 1
        aC = torch.cholesky_solve(C, L)
        X.addmm_(S, aC)
        u -= (C * aC).sum(0)
        basis, coefficients = _orthonormal(basis - MS @ torch.cholesky_inverse(L))
        S, C = torch.addmm(basis, S, coefficients.T), coefficients @ C
    return X, most_steps


def _orthonormal(X: Tensor) -> tuple[Tensor, Tensor]:
    """A basis (n, rank) and C (rank, r) with X = basis·C, up to rounding."""
    basis, R = torch.linalg.qr(X)
    inner, sizes, right = torch.linalg.svd(R, full_matrices=False)
    kept = sizes > INDEPENDENT * sizes[:1]
    return basis @ inner[:, kept], sizes[kept].unsqueeze(1) * right[kept]
