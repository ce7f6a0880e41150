"""The factor of I + K, which the dual form and the full posterior share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..linalg import SYMMETRIC_STRIP, condition_of, inverse_square_sums, safe_cholesky, solve_lower
from .subnet_primal import WEAK_DATA


def factor_gram(K: Tensor) -> tuple[Tensor, float, Callable[[], float]]:
    """(L of I + K, λmax of K, a function that computes tr((I + K)⁻¹K)); K is overwritten."""
    condition = condition_of(K)
    diagonal = K.diagonal().clone()
    K.diagonal().add_(1.0)
    L = safe_cholesky(K, lambda i: f"training row {i}")

    def freedom() -> float:
        # N·C − tr R, summed as the rows' own shares, each between 0 and 1: cheap, but it cancels where the data
        # say next to nothing; then tr(L⁻¹KL⁻ᵀ), a sum of positive terms.
        plain = float((1.0 - inverse_square_sums(L)).clamp(min=0.0).sum())
        if plain >= WEAK_DATA * len(L):
            return plain
        K = L @ L.T
        K.diagonal().copy_(diagonal)
        half = solve_lower(L, K)
        return float((solve_lower(L, half.T.contiguous())).diagonal().sum())

    return L, condition, freedom


def own_shares(L: Tensor, n_outputs: int) -> Tensor:
    """A_n Ω⁻¹ A_nᵀ of every training row as I − R_nn, R = (L Lᵀ)⁻¹ (N, C, C)."""
    C, parts = n_outputs, []
    step = max(1, max(SYMMETRIC_STRIP, len(L) // 16) // C) * C  # each solve copies its part of L: not too many
    for left in range(0, len(L), step):
        width = min(step, len(L) - left)
        unit = torch.eye(len(L) - left, width, dtype=L.dtype, device=L.device)
        X = solve_lower(L[left:, left:], unit).reshape(len(L) - left, -1, C)
        parts.append(torch.einsum("rnc,rnd->ncd", X, X))
    return torch.eye(C, dtype=L.dtype, device=L.device) - torch.cat(parts)
