"""Rescaling a sub-network's variance, too small by Theorem 1, by one or two numbers fitted to the full posterior.

Features of all parameters leave none outside: there the second number is on the length of the whole gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..features.views import View
from ..jacobian.rows import Jacobian
from ..linalg import row_products
from ..omega.precision import Precision
from ..omega.row_sums import column_chunks, own_products
from . import Posterior
from .left_out import LeftOut, left_out_of
from .subnet import SubnetPosterior

Kind = Literal["none", "scale", "hybrid"]
OUTSIDE_ROUNDING = 1e-12  # share of ‖g‖² below which the part outside S is rounding
DIRECTIONS = 129  # of hybrid's two numbers, tried before the best one is refined
DIRECTION_REFINEMENTS = 40
ALL_OUTPUTS = slice(None)


@dataclass(frozen=True)
class Rescale:
    """covariance → c·covariance + b·(that of the prior outside S); c is None if the former is 0 on all rows."""

    c: float | None = 1.0
    b: float = 0.0

    def apply(self, own: Tensor, outside: Tensor | None) -> Tensor:
        """For variances or covariances; `outside` may be left out if b = 0."""
        scaled = (1.0 if self.c is None else self.c) * own
        return scaled if outside is None else scaled + self.b * outside


def rescaled_draws(draws: Tensor, rescale: Rescale, outside: Tensor | None, generator: torch.Generator) -> Tensor:
    """Draws of the outputs (m·C, count) with the rescaled covariance; outside S it is noise, new for each row."""
    scaled = draws * (1.0 if rescale.c is None else rescale.c) ** 0.5
    if outside is None:
        return scaled
    noise = torch.randn(draws.shape, dtype=torch.float64, generator=generator).to(draws.device)
    values, vectors = torch.linalg.eigh(rescale.b * outside)  # (m, C, C)
    root = vectors * values.clamp(min=0.0).sqrt().unsqueeze(1)
    return scaled + (root @ noise.reshape(len(root), -1, draws.shape[1])).reshape(draws.shape)


def outside_products(rows: Jacobian, products: Tensor, S: Tensor, prior: Tensor, memory: int) -> Tensor:
    """G V⁻¹ Gᵀ of each row over the parameters outside S (M, C, C), given that over all parameters."""
    scale, C = prior[S].rsqrt().unsqueeze(1), products.shape[1]
    inside = [row_products(chunk.mul_(scale), C) for _, chunk in column_chunks(rows, S, memory)]
    return without_rounding(products - torch.cat(inside), products)


def remainder_products(view: View, rows: Jacobian, products: Tensor, prior: Tensor, memory: int) -> Tensor:
    """What the second number of a rescaling is on: the products outside a sub-network, or the whole ones."""
    return outside_products(rows, products, view.indices, prior, memory) if view.has_outside else products


def without_rounding(outside: Tensor, products: Tensor) -> Tensor:
    """The part outside S, with 0 for outputs where it is rounding of the whole."""
    own, whole = (each.diagonal(dim1=1, dim2=2) for each in (outside, products))
    real = own > OUTSIDE_ROUNDING * whole
    return torch.where(real.unsqueeze(2) & real.unsqueeze(1), outside, torch.zeros_like(outside))


@dataclass(frozen=True)
class RescaledPosterior(Posterior):
    """A sub-network's posterior with rescaled covariances."""

    posterior: SubnetPosterior  # over the columns of its view
    rescale: Rescale
    prior: Tensor  # v (p,) of all parameters
    memory: int
    view: View

    @property
    def indices(self) -> Tensor:
        return self.posterior.indices

    @property
    def freedom(self) -> float:
        return self.posterior.freedom

    def covariance(self, jacobian: Jacobian) -> Tensor:
        own = self.posterior.covariance(self.view.rows(jacobian))
        if not self.rescale.b:
            return self.rescale.apply(own, None)
        products = own_products(jacobian, self.prior, self.memory)
        return self.rescale.apply(own, remainder_products(self.view, jacobian, products, self.prior, self.memory))


def rescale_to_full(
    posterior: SubnetPosterior,
    view: View,
    kind: Kind,
    precision: Precision,
    full: LeftOut,
    products: Callable[[], Tensor],
    which: slice = ALL_OUTPUTS,
) -> Rescale:
    """c and b, given the full left-out variances and a function for G V⁻¹ Gᵀ of the same training rows.

    They are fitted for some of the outputs: those of another unit must not count.
    """
    own, outside = left_out_of(posterior, view, precision, full), torch.zeros_like(full.variances)
    if kind == "hybrid":
        rows = full.of(precision).jacobian
        remainder = remainder_products(view, rows, products(), precision.prior, precision.memory)
        outside = remainder.diagonal(dim1=1, dim2=2)
    return fit_rescale(kind, full.variances[:, which], own[:, which], outside[:, which])


def fit_scale(full: Tensor, own: Tensor) -> float | None:
    """√c that minimises Σ|σ_full − √c σ|; None if σ is 0 everywhere."""
    some = own > 0
    if not bool(some.any()):
        return None
    ratio, order = (full[some] / own[some]).sort()
    weight = own[some][order].cumsum(0)
    return float(ratio[int((weight < weight[-1] / 2).sum())])


def fit_rescale(kind: Kind, full: Tensor, own: Tensor, outside: Tensor) -> Rescale:
    """c and b from left-out variances: the full network's, the sub-network's, and the norms outside S."""
    if kind == "none":
        return Rescale()
    sigma = full.clamp(min=0.0).sqrt().flatten()
    own, outside = own.clamp(min=0.0).flatten(), outside.flatten()
    root = fit_scale(sigma, own.sqrt())
    if kind == "scale" or not bool((outside > 0).any()):
        return Rescale(None if root is None else root**2)
    if root is None:
        return Rescale(None, (fit_scale(sigma, outside.sqrt()) or 0.0) ** 2)
    return _hybrid(sigma, own, outside)


def _hybrid(sigma: Tensor, own: Tensor, outside: Tensor) -> Rescale:
    """For a fixed direction of (c, b) the length is a weighted median; a line search finds the direction."""
    own_size, outside_size = float(own.mean()), float(outside.mean())

    def along(angle: float) -> tuple[float, Rescale]:
        c, b = math.cos(angle) ** 2 / own_size, math.sin(angle) ** 2 / outside_size
        mixed = (c * own + b * outside).sqrt()
        length = fit_scale(sigma, mixed) or 0.0
        return float((sigma - length * mixed).abs().sum()), Rescale(c * length**2, b * length**2)

    step = (math.pi / 2) / (DIRECTIONS - 1)
    best = min(range(DIRECTIONS), key=lambda i: along(i * step)[0])
    low, high = max(0, best - 1) * step, min(DIRECTIONS - 1, best + 1) * step
    for _ in range(DIRECTION_REFINEMENTS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if along(first)[0] <= along(second)[0]:
            high = second
        else:
            low = first
    return min((along(best * step), along((low + high) / 2)), key=lambda found: found[0])[1]
