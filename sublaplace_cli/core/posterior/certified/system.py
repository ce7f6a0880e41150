"""The linear system (I + K) z = k*, known only by its products, and the interval that any z certifies.

The interval includes the rounding of its own computation, bounded in norms. With γ the relative rounding of a sum of
N·C + p products and F ≥ ‖A′‖_F, h = g′ − A′ᵀz is computed to within e = γ(‖g′‖ + F‖z‖), so that u lies between
(‖h‖ ∓ e)² + ‖z‖², and r to within F·e + γ(F‖h‖ + ‖z‖).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...omega.precision import Precision
from ...omega.row_sums import own_products
from .preconditioners import Preconditioner, rounding

SCALINGS = 8  # roundings of a summand besides that of its product: weights, the prior's metric


@dataclass(frozen=True)
class Certificate:
    """What an approximate solution z proves for each of its columns."""

    low: Tensor  # of the variance (r,)
    high: Tensor
    residual: Tensor  # (N·C, r)


@dataclass(frozen=True)
class System:
    """I + K of some training rows, and P ⪯ I + K."""

    precision: Precision
    preconditioner: Preconditioner

    @cached_property
    def trace(self) -> float:
        """Σₙ ‖Wₙ‖² ‖J′ₙ‖² in Frobenius norms: tr K or more, and so is the largest eigenvalue of K."""
        precision = self.precision
        products = own_products(precision.jacobian, precision.prior, precision.memory)
        weights = precision.root.square().sum(dim=(1, 2))
        return float(weights @ products.diagonal(dim1=1, dim2=2).sum(1))

    @property
    def row_dtype(self) -> torch.dtype:
        """The type in which all rows are held: products in it lose nothing of them."""
        types = {t.dtype for block in self.precision.jacobian.templates for t in block.tensors().values()}
        return torch.float32 if types - {torch.int64} == {torch.float32} else torch.float64

    def multiply(self, X: Tensor, dtype: torch.dtype) -> Tensor:
        """P^(−½) (I + K) P^(−½) X (N·C, r); products with the rows are in this type."""
        root = self.preconditioner.inverse_root
        X = root(X)
        return root(self.precision.push(self.precision.pull(X, dtype), dtype).add_(X))

    def certificate(self, G: Tensor, z: Tensor | None = None) -> Certificate:
        """The intervals of gradients G in the prior's metric (p, r), from z (N·C, r) or z = 0."""
        h = G if z is None else self.rest(G, z)
        residual = self.precision.push(h)  # (N·C, r)
        residual = residual if z is None else residual.sub_(z)
        length, F = torch.linalg.vector_norm(h, dim=0), self.trace**0.5
        size = torch.zeros_like(length) if z is None else torch.linalg.vector_norm(z, dim=0)
        gamma = rounding(self.precision.n_rows + len(G) + SCALINGS)
        off = gamma * (torch.linalg.vector_norm(G, dim=0) + F * size)
        far = self.preconditioner.lengths(residual) + F * off + gamma * (F * length + size)
        gap = far.square() * (1 + self.preconditioner.excess(self.trace))
        high = (length + off).square() + size.square()
        low = (length - off).clamp(min=0.0).square() + size.square() - gap
        return Certificate((low * (1 - gamma)).clamp(min=0.0), high * (1 + gamma), residual)

    def rest(self, G: Tensor, z: Tensor) -> Tensor:
        """h = G − A′ᵀz (p, r)."""
        return self.precision.pull(z).neg_().add_(G)
