"""A sub-network's posterior in dual form: one N·C × N·C factor. The smaller form where k > N·C."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import linalg
from ..omega.precision import Precision
from ..panels.products import add_upper
from .full import factor_gram, own_shares
from .subnet import Form, SubnetPosterior, require_room_for_subnet


@dataclass(frozen=True)
class SubnetDual(SubnetPosterior):
    """L Lᵀ = I + A′A′ᵀ over S."""

    columns: Tensor  # A′ᵀ (k, N·C)
    form: ClassVar[Form] = "dual"
    shares_cancel: ClassVar[bool] = True

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), "columns": self.columns}

    def column_covariance(self, J_S: Tensor, n_outputs: int) -> Tensor:
        g = J_S.mul_(self.prior.rsqrt().unsqueeze(1))
        return self.metric_covariance(g, self.columns.T @ g, linalg.row_products(g, n_outputs))

    def metric_covariance(self, g: Tensor, cross: Tensor, products: Tensor) -> Tensor:
        """The same for g′ in the prior's metric (k, m·C), A′g′ and the products of each row (m, C, C)."""
        by_row = g.reshape(len(g), -1, products.shape[1])  # (k, m, C)

        def residual(rows: Tensor, w: Tensor) -> Tensor:
            return by_row[:, rows].flatten(1) - self.columns @ w

        def residual_products(rows: Tensor, w: Tensor) -> Tensor:
            return linalg.row_products(residual(rows, w), products.shape[1])

        def system_residual(rows: Tensor, w: Tensor) -> Tensor:
            return self.columns.T @ residual(rows, w) - w

        return linalg.dual_covariance(self.factor, cross, products, self.condition, residual_products, system_residual)

    def serving_covariance(self, n_outputs: int) -> Callable[[Tensor], Tensor]:
        B = linalg.solve_lower(self.factor, self.columns.T * self.prior.rsqrt())  # L⁻¹A′V^(−½) (N·C, k)
        scale, is_accurate = self.prior.rsqrt().unsqueeze(1), linalg.gram_is_accurate(self.condition)

        def covariance(J_S: Tensor) -> Tensor:
            products = linalg.row_products(J_S * scale, n_outputs)
            found = products - linalg.row_products(B @ J_S, n_outputs)
            own, norms = (each.diagonal(dim1=1, dim2=2) for each in (found, products))
            if is_accurate and bool((own >= linalg.CANCELLATION * norms).all()):
                return found
            return self.column_covariance(J_S, n_outputs)

        return covariance

    def draw(self, count: int, seed: int) -> Tensor:
        """A prior draw u, corrected by its effect on the rows of A: no k × k matrix."""
        normal = self._normal(seed, count)
        u, noise = normal(len(self.indices)), normal(len(self.factor))
        seen = self.columns.T @ u + noise
        weight = linalg.solve_lower_transposed(self.factor, linalg.solve_lower(self.factor, seen))
        return (u - self.columns @ weight) * self.prior.rsqrt().unsqueeze(1)

    def own_shares(self, precision: Precision) -> Tensor:
        return own_shares(self.factor, precision.root.shape[1])


def fit_dual(precision: Precision, S: Tensor, ks: Sequence[int], columns: Tensor | None = None) -> list[SubnetDual]:
    """Posteriors over the first k of S for each k: the Gram matrix grows by the new columns only."""
    rows, v = precision.n_rows, precision.prior[S]
    require_room_for_subnet(precision, len(S), "dual")
    A = precision.columns(S) if columns is None else columns  # (k, N·C)
    K = torch.zeros(rows, rows, dtype=torch.float64, device=v.device)
    posteriors, done = [], 0
    for k in ks:
        add_upper(K, A[done:k].T)
        own = K if k == ks[-1] else K.clone()
        L, condition, freedom = factor_gram(linalg.mirrored(own))
        posteriors.append(SubnetDual(S[:k], v[:k], L, condition, freedom, precision.memory, A[:k]))
        done = k
    return posteriors
