"""The variance of a sub-network's posterior for the wheel's network, from the few rows of `wheel_regions`.

The same numbers as `select`, `fit` and `variance` of the package, which know nothing of regions (tested); prior 1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from wheel_regions import SIZE, W3, Gradients

TIE = 2e-11  # relative; as in the package, a difference beyond 11 digits is no order
LEAST_ACCURATE = 1e8  # condition of Ω from which on products of gradients are too few digits for it


def variance(method: str, k: int, seen: Gradients, new: Gradients, noise: float) -> Tensor | None:
    """g_Sᵀ Ω_SS⁻¹ g_S at the new rows; None where that needs more digits than the sums of products have."""
    if method == "greedy":
        return _greedy(k, seen, new, noise)
    S = chosen(method, k, seen.scores / noise)
    Omega = seen.products(S).div_(noise)
    if not _is_accurate(Omega):
        return None
    Omega.diagonal().add_(1.0)
    return _squares(torch.linalg.cholesky(Omega), new.columns(S))


def chosen(method: str, k: int, scores: Tensor) -> Tensor:
    """The choice of a method that only looks at diag(Ω) − 1, in rising order."""
    if method == "neural-linear":
        return torch.arange(W3, SIZE)
    if method == "last-k":
        return torch.arange(SIZE - k, SIZE)
    if method == "gradient":
        return torch.topk(scores, k).indices.sort().values
    assert method == "subnet-diagonal"
    return torch.sort(torch.round(1 + scores, decimals=11), stable=True).indices[:k].sort().values


def _greedy(k: int, seen: Gradients, new: Gradients, noise: float) -> Tensor | None:
    """Algorithm 2 among 2k candidates: pivots of a Cholesky factorisation, which is that of Ω_SS as well."""
    pool = chosen("gradient", 2 * k, seen.scores)
    Omega = seen.products(pool).div_(noise)
    if not _is_accurate(Omega):
        return None
    Omega.diagonal().add_(1.0)
    taken, rows = pivots(Omega.numpy(), k)
    S = torch.tensor(taken)
    L = torch.from_numpy(rows)[:, S].T
    return _squares(L, new.columns(pool[S]))


def pivots(matrix: np.ndarray, k: int) -> tuple[list[int], np.ndarray]:
    """(the largest remaining diagonal entry, k times; the rows of the factor); ties go to the first."""
    d, rows = matrix.diagonal().copy(), np.empty((k, len(matrix)))
    taken: list[int] = []
    for t in range(k):
        best = int((d >= d.max() * (1 - TIE)).argmax())
        row = rows[t]
        np.subtract(matrix[best], rows[:t, best] @ rows[:t], out=row)
        row *= d[best] ** -0.5
        d -= row * row
        d[best] = -np.inf
        taken.append(best)
    return taken, rows


def _is_accurate(products: Tensor) -> bool:
    return min(float(products.trace()), float(products.abs().sum(1).max())) < LEAST_ACCURATE


def _squares(L: Tensor, g: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(L, g, upper=False).square_().sum(0)
