"""Schur complements of Ω with S chosen, in the prior's metric: I + Aᵀ R A with R = (I + A_S A_Sᵀ)⁻¹.

The matrices of one form have the size of S, those of the other the size of the rows. When S grows, both return
directions Z for which R becomes R − Zᵀ Z, so that d_j falls by ‖Z a_j‖².
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...linalg import column_squares, safe_cholesky, self_product, solve_lower, solve_lower_transposed
from ...panels.products import add_upper


class Complement(NamedTuple):
    """The Schur complement of some columns, and the half product that it was computed from."""

    B: Tensor  # (b, b)
    half: Tensor


class PrimalSchur:
    """I + AᵀA − XᵀX with X = L⁻¹ A_Sᵀ A: cheaper while S is smaller than the rows."""

    def __init__(self, n_rows: int, like: Tensor) -> None:
        self.A_S = torch.empty(n_rows, 0, dtype=torch.float64, device=like.device)
        self.L = torch.empty(0, 0, dtype=torch.float64, device=like.device)

    def _half(self, A: Tensor) -> Tensor:
        return solve_lower(self.L, self.A_S.T @ A)

    def complement(self, A: Tensor) -> Complement:
        """The Schur complement of the columns A (N·C, b)."""
        X = self._half(A)
        B = A.T @ A - X.T @ X
        B.diagonal().add_(1.0)
        return Complement(B, X)

    def diagonal(self, A: Tensor) -> Tensor:
        """Its diagonal, which is cheaper."""
        return 1.0 + column_squares(A) - column_squares(self._half(A))

    def cost(self) -> int:
        """Multiplications of `diagonal` per column; those of a triangular solve count one and a half times."""
        rows, chosen = self.A_S.shape
        return 2 * rows * chosen + 3 * chosen**2 // 2

    def extend(self, A: Tensor, of: Complement) -> Tensor:
        """Add these columns, with their complement, to S; returns the directions Z (b, N·C)."""
        X, corner = of.half, safe_cholesky(of.B)
        lost = A - self.A_S @ solve_lower_transposed(self.L, X)  # R A
        self.L = torch.cat([torch.nn.functional.pad(self.L, (0, len(corner))), torch.cat([X.T, corner], 1)])
        self.A_S = torch.cat([self.A_S, A], 1)
        return solve_lower(corner, lost.T)

    def as_dual(self) -> "DualSchur":
        """The same in the other form, which is cheaper from some size of S on."""
        dual = DualSchur(len(self.A_S), self.A_S)
        dual.take(self.A_S)
        return dual


class DualSchur:
    """I + AᵀRA with R stored as the Cholesky factor of its inverse, whose size does not grow with S."""

    def __init__(self, n_rows: int, like: Tensor) -> None:
        self.inverse = torch.eye(n_rows, dtype=torch.float64, device=like.device)  # R⁻¹ = I + A_S A_Sᵀ
        self.L = self.inverse.clone()

    def as_dual(self) -> "DualSchur":
        return self

    def take(self, A: Tensor) -> None:
        """Add these columns to S."""
        add_upper(self.inverse, A)  # the triangle that the factorisation reads
        self.L = safe_cholesky(self.inverse.clone())  # from scratch: no drift, and no more expensive than the panel

    def complement(self, A: Tensor) -> Complement:
        X = solve_lower(self.L, A)
        B = self_product(X.T)
        B.diagonal().add_(1.0)
        return Complement(B, X)

    def diagonal(self, A: Tensor) -> Tensor:
        return 1.0 + column_squares(solve_lower(self.L, A))

    def cost(self) -> int:
        return 3 * len(self.L) ** 2 // 2

    def extend(self, A: Tensor, of: Complement) -> Tensor:
        directions = solve_lower(safe_cholesky(of.B), solve_lower_transposed(self.L, of.half).T)
        self.take(A)
        return directions
