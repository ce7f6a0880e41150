"""Draws from a sub-network's posterior, carried over to the network's outputs: joint over all rows and outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..linalg import solve_lower, solve_lower_transposed
from .posterior import SubnetPosterior


def draw_parameters(posterior: SubnetPosterior, count: int, seed: int) -> Tensor:
    """Deviations of the parameters in S from their trained values, each column N(0, Ω_SS⁻¹) (k, count).

    The numbers are drawn on the CPU, so that every device gets the same ones.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, count, dtype=torch.float64, generator=generator).to(posterior.factor.device)

    scale = posterior.prior.rsqrt().unsqueeze(1)
    if posterior.columns is None:
        return solve_lower_transposed(posterior.factor, normal(len(posterior.indices))) * scale
    # A prior draw u, corrected by what the rows A would have seen of it: (I + AᵀA)⁻¹ without a k × k matrix.
    u, noise = normal(len(posterior.indices)), normal(len(posterior.factor))
    seen = posterior.columns.T @ u + noise
    weight = solve_lower_transposed(posterior.factor, solve_lower(posterior.factor, seen))
    return (u - posterior.columns @ weight) * scale


def draw_outputs(J_S: Tensor, theta: Tensor) -> Tensor:
    """Deviations of the outputs of rows J_Sᵀ (k, m·C) for these parameters: (m·C, count)."""
    return J_S.T @ theta
