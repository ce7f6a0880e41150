"""Output weights W applied to rows and columns: A = WᵀJ, W w."""

import torch
from torch import Tensor

WEIGHTED_ROWS = 1024  # rows of a matrix that are weighted at a time


def weigh_columns(K: Tensor, W: Tensor, in_place: bool = False) -> Tensor:
    """K with its columns (n, c) multiplied by Wₙ: (r, N·C) → (r, N·C)."""
    N, C, _ = W.shape
    if C == 1:
        return K.mul_(W.reshape(1, N)) if in_place else K * W.reshape(1, N)
    result = K if in_place else torch.empty_like(K)
    for top in range(0, len(K), WEIGHTED_ROWS):  # a few rows at a time: K may be as large as memory allows
        rows = slice(top, top + WEIGHTED_ROWS)
        result[rows] = torch.einsum("rnc,ncd->rnd", K[rows].reshape(-1, N, C), W).reshape(-1, N * C)
    return result


def weigh_rows(w: Tensor, W: Tensor) -> Tensor:
    """Wₙ wₙ for coefficients of weighted rows: (N·C, r) → (N·C, r)."""
    N, C, _ = W.shape
    return torch.einsum("ncd,ndr->ncr", W, w.reshape(N, C, -1)).reshape(N * C, -1)


def weighted_columns(J_S: Tensor, scale: Tensor, root: Tensor | None, start: int) -> Tensor:
    """A′ᵀ (k, m·C) from J_Sᵀ of the rows from `start` on, in place."""
    J_S.mul_(scale.unsqueeze(1))
    if root is not None:
        weigh_columns(J_S, root[start : start + J_S.shape[1] // root.shape[1]], in_place=True)
    return J_S
