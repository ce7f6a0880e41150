"""A likelihood is a square root W of its output Hessian: H = W Wᵀ, one (C, C) matrix a row.

To add one: write `name(f, sigma2) -> W` here, add it to `catalog.LIKELIHOODS`, add a case to the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The ridge of the paper's Setup C: it lifts diag(p) − ppᵀ off its all-ones null direction.
SOFTMAX_RIDGE = 1e-6


def regression(f: Tensor, sigma2: float) -> Tensor:
    """Gaussian noise: H = I/σ₀²."""
    eye = torch.eye(f.shape[1], dtype=torch.float64, device=f.device)
    return (eye / sigma2**0.5).expand(f.shape[0], -1, -1)  # (N, C, C)


def binary(f: Tensor, sigma2: float = 1.0) -> Tensor:
    """Bernoulli with one logit: H = σ(f)(1 − σ(f)), in the form that does not vanish at |f| = 40."""
    e = torch.exp(-f.double().abs())
    return (e.sqrt() / (1 + e)).unsqueeze(-1)  # (N, 1, 1)


def multiclass(f: Tensor, sigma2: float = 1.0) -> Tensor:
    """Softmax: H = diag(p) − ppᵀ + εI with ε = 1e-6; its Cholesky factor is as good a root as any."""
    p = torch.softmax(f.double(), dim=1)
    ridge = torch.full_like(p, SOFTMAX_RIDGE)
    H = torch.diag_embed(p + ridge) - p.unsqueeze(2) * p.unsqueeze(1)
    return torch.linalg.cholesky(H)  # (N, C, C)
