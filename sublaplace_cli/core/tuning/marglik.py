"""The Laplace marginal likelihood of prior precisions and noise variance, and its maximum.

It depends on the Jacobian through one Gram matrix of the training rows per group of parameters that share a prior
precision; with one group the eigenvalues are enough. It is concave in the logarithms, so there is one optimum.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST, MOST = 1e-8, 1e8  # bounds of every precision and variance
STEPS = 200
GRID = 33  # points per side of the grid that the optimum is compared with
NEAR = (0.1, 1.0)  # steps in the logarithm, up and down, with several groups


@dataclass(frozen=True)
class Evidence:
    """The data of the marginal likelihood."""

    kernels: Sequence[Tensor]  # one group: eigenvalues (N·C,); several: Gram matrices (N·C, N·C), each for unit prior
    squares: Sequence[float]  # ‖θ_g‖² of each group
    n_terms: int  # N·C
    residual: float | None  # Σ(y − f)² of regression; None for classification
    log_likelihood: float = 0.0  # of classification

    def at(self, log_alphas: Tensor, log_sigma2: Tensor) -> Tensor:
        """log marginal likelihood; σ² is 1 in classification."""
        prior = sum(0.5 * a.exp() * square for a, square in zip(log_alphas, self.squares, strict=True))
        fit: Tensor | float = self.log_likelihood
        if self.residual is not None:
            constant = math.log(2 * math.pi) + log_sigma2
            fit = -0.5 * self.n_terms * constant - 0.5 * self.residual * (-log_sigma2).exp()
        return fit - prior - 0.5 * self._log_det(log_alphas, log_sigma2)

    def _log_det(self, log_alphas: Tensor, log_sigma2: Tensor) -> Tensor:
        """log det(I + Σ_g K_g/(α_g σ²))."""
        weights = (-log_alphas - log_sigma2).exp()
        if self.kernels[0].ndim == 1:
            return torch.log1p(self.kernels[0] * weights[0]).sum()
        total = torch.eye(self.n_terms, dtype=torch.float64, device=self.kernels[0].device)
        for kernel, weight in zip(self.kernels, weights, strict=True):
            total = total + kernel * weight
        L, info = torch.linalg.cholesky_ex(total)
        if int(info) == 0:
            return 2 * L.diagonal().log().sum()
        return torch.linalg.eigvalsh(total).clamp(min=1.0).log().sum()  # near the bounds rounding hides the I


@dataclass(frozen=True)
class Optimum:
    """The best arguments of a criterion, with its value there and at the start."""

    alphas: tuple[float, ...]
    sigma2: float
    value: float
    start_value: float
    at_a_bound: bool  # one of the free arguments is
    by_fold: tuple[float, ...] = ()  # α of each part of the rows, by the others


def maximise(
    evidence: Evidence, alphas: Sequence[float], sigma2: float, free_alphas: Sequence[bool], free_sigma2: bool
) -> Optimum:
    """The best values of the free arguments, from this start; the others stay as they are."""
    start = torch.tensor([*alphas, sigma2], dtype=torch.float64).log()
    free = torch.tensor([*free_alphas, free_sigma2])
    device = evidence.kernels[0].device

    def value(x: Tensor) -> Tensor:
        whole = start.clone().masked_scatter(free, x.clamp(math.log(LEAST), math.log(MOST))).to(device)
        return evidence.at(whole[:-1], whole[-1])

    x = _climb(value, start[free])
    better = _best_of_grid(value, x)
    if float(value(better)) > float(value(x)) + 1e-9 * abs(float(value(x))):  # not expected: it is concave
        x = _climb(value, better)
    best = torch.tensor([*alphas, sigma2], dtype=torch.float64).masked_scatter(free, x.exp().clamp(LEAST, MOST))
    found = best.tolist()
    at_a_bound = any(not LEAST * 1.01 < number < MOST / 1.01 for number in best[free].tolist())
    return Optimum(tuple(found[:-1]), found[-1], float(value(x)), float(value(start[free])), at_a_bound)


def _climb(value: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    x = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [x], max_iter=STEPS, tolerance_grad=1e-9, tolerance_change=1e-13, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -value(x)
        loss.backward()
        return loss

    optimiser.step(closure)
    return x.detach()


def _best_of_grid(value: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The best point of a grid over the allowed range or, with more than two arguments, of steps along each axis."""
    if len(x) <= 2:
        side = torch.linspace(math.log(LEAST), math.log(MOST), GRID, dtype=torch.float64)
        points = list(torch.cartesian_prod(*[side] * len(x)).reshape(-1, len(x)))
    else:
        axes = torch.eye(len(x), dtype=torch.float64)
        points = [x + sign * step * axis for axis in axes for step in NEAR for sign in (-1, 1)]
    with torch.no_grad():
        return max(points, key=lambda point: float(value(point)))
