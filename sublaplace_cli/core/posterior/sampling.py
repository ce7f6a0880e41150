"""Draws from a sub-network's posterior, mapped to the network's outputs: joint over all rows and outputs."""

from collections.abc import Callable

import torch
from torch import Tensor

from .rescale import Rescale


def standard_normal(seed: int, count: int, device: torch.device) -> Callable[[int], Tensor]:
    """rows → N(0, 1) numbers (rows, count), drawn on the CPU so that every device gets the same ones."""
    generator = torch.Generator().manual_seed(seed)
    return lambda rows: torch.randn(rows, count, dtype=torch.float64, generator=generator).to(device)


def draw_outputs(J_S: Tensor, theta: Tensor) -> Tensor:
    """Deviations of the outputs of rows J_Sᵀ (k, m·C) for these parameter deviations: (m·C, count)."""
    return J_S.T @ theta


def rescaled_draws(draws: Tensor, rescale: Rescale, outside: Tensor, generator: torch.Generator) -> Tensor:
    """Draws (m·C, count) with the rescaled variance: b·‖g outside S‖² is independent noise per row."""
    scaled = draws * (1.0 if rescale.c is None else rescale.c) ** 0.5
    if not rescale.b:
        return scaled
    noise = torch.randn(draws.shape, dtype=torch.float64, generator=generator).to(draws.device)
    return scaled + (rescale.b * outside).sqrt().unsqueeze(1) * noise
