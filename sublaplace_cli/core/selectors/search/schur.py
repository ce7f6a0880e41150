"""Schur complements of Ω after some parameters were chosen, in the prior's metric: I + Aᵀ M A, M = (I + A_S A_Sᵀ)⁻¹.

Two forms of the same: one whose matrices have the size of S, one whose matrices have the size of the rows. Both say,
when S grows, along which directions Z the others lose: M becomes M − Zᵀ Z, so d_j falls by ‖Z a_j‖².
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...jacobian.blocks import add_upper
from ...linalg import column_squares, safe_cholesky, self_product, solve_lower, solve_lower_transposed


class Complement(NamedTuple):
    """Of some columns: their Schur complement, and what it was made from."""

    T: Tensor  # (b, b)
    half: Tensor


class Schur(Protocol):
    """What a search asks for."""

    def complement(self, A: Tensor) -> Complement:
        """Of the columns A (N·C, b)."""
        ...

    def diagonal(self, A: Tensor) -> Tensor:
        """The diagonal of the same, which is cheaper."""
        ...

    def cost(self) -> int:
        """Multiplications of `diagonal` for one column; a triangular solve is slower than a product, by half."""
        ...

    def extend(self, A: Tensor, of: Complement) -> Tensor:
        """S grows by these columns, given their complement; returns the directions Z (b, N·C)."""
        ...


class PrimalSchur:
    """I + AᵀA − XᵀX with X = L⁻¹ A_Sᵀ A: cheaper while S is small beside the rows."""

    def __init__(self, n_rows: int, like: Tensor) -> None:
        self.A_S = torch.empty(n_rows, 0, dtype=torch.float64, device=like.device)
        self.L = torch.empty(0, 0, dtype=torch.float64, device=like.device)

    def _half(self, A: Tensor) -> Tensor:
        return solve_lower(self.L, self.A_S.T @ A)

    def complement(self, A: Tensor) -> Complement:
        X = self._half(A)
        T = A.T @ A - X.T @ X
        T.diagonal().add_(1.0)
        return Complement(T, X)

    def diagonal(self, A: Tensor) -> Tensor:
        return 1.0 + column_squares(A) - column_squares(self._half(A))

    def cost(self) -> int:
        rows, chosen = self.A_S.shape
        return 2 * rows * chosen + 3 * chosen**2 // 2

    def extend(self, A: Tensor, of: Complement) -> Tensor:
        X, corner = of.half, safe_cholesky(of.T)
        lost = A - self.A_S @ solve_lower_transposed(self.L, X)  # M A
        self.L = torch.cat([torch.nn.functional.pad(self.L, (0, len(corner))), torch.cat([X.T, corner], 1)])
        self.A_S = torch.cat([self.A_S, A], 1)
        return solve_lower(corner, lost.T)


class DualSchur:
    """I + AᵀMA with M kept as the Cholesky factor of its inverse: its size does not grow with S."""

    def __init__(self, n_rows: int, like: Tensor) -> None:
        self.outer = torch.eye(n_rows, dtype=torch.float64, device=like.device)  # I + A_S A_Sᵀ
        self.L = self.outer.clone()

    def complement(self, A: Tensor) -> Complement:
        X = solve_lower(self.L, A)
        T = self_product(X.T)
        T.diagonal().add_(1.0)
        return Complement(T, X)

    def diagonal(self, A: Tensor) -> Tensor:
        return 1.0 + column_squares(solve_lower(self.L, A))

    def cost(self) -> int:
        return 3 * len(self.L) ** 2 // 2

    def extend(self, A: Tensor, of: Complement) -> Tensor:
        directions = solve_lower(safe_cholesky(of.T), solve_lower_transposed(self.L, of.half).T)
        add_upper(self.outer, A)  # the one triangle that the factorisation looks at
        self.L = safe_cholesky(self.outer.clone())  # from scratch: no drift, and no dearer than the panel
        return directions
