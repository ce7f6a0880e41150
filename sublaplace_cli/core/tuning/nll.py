"""One prior precision, chosen by predictions at other rows: one eigendecomposition yields them for every α."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..linalg import row_products

LEAST_ALPHA, MOST_ALPHA = 1e-6, 1e6
ALPHA_GRID = 61
ALPHA_REFINEMENTS = 40
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Spectrum:
    """Everything besides α that the covariances depend on, for a prior of α on every parameter."""

    eigenvalues: Tensor  # λ of A Aᵀ (n,)
    parts: Tensor  # A Gᵀ in its eigenvectors (n, M·C)
    products: Tensor  # G Gᵀ of each row (M, C, C)

    @classmethod
    def of(cls, K: Tensor, cross: Tensor, products: Tensor) -> Self:
        """From A Aᵀ, A Gᵀ and G Gᵀ, all for a prior of 1."""
        values, vectors = torch.linalg.eigh(K)
        return cls(values.clamp(min=0.0), vectors.T @ cross, products)

    def covariance(self, alpha: float) -> Tensor:
        """G(AᵀA + αI)⁻¹Gᵀ of each row (M, C, C)."""
        parts = self.parts * (self.eigenvalues + alpha).rsqrt().unsqueeze(1)
        return (self.products - row_products(parts, self.products.shape[1])) / alpha


def minimise(loss: Callable[[float], float]) -> tuple[float, float]:
    """(α, loss) of the least loss over the allowed range: a grid in log α, then the best interval refined."""
    side = torch.linspace(math.log(LEAST_ALPHA), math.log(MOST_ALPHA), ALPHA_GRID, dtype=torch.float64).tolist()
    losses = [loss(math.exp(x)) for x in side]
    best = min(range(ALPHA_GRID), key=losses.__getitem__)
    low, high = side[max(0, best - 1)], side[min(ALPHA_GRID - 1, best + 1)]
    for _ in range(ALPHA_REFINEMENTS):
        first, second = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if loss(math.exp(first)) <= loss(math.exp(second)):
            high = second
        else:
            low = first
    refined = math.exp((low + high) / 2)
    found = loss(refined)
    return (refined, found) if found <= losses[best] else (math.exp(side[best]), losses[best])
