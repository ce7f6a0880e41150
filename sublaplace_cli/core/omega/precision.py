"""Ω = AᵀA + V, which is never formed; the loops over the rows are in `row_sums`, `gram` and `residuals`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..jacobian.rows import Jacobian
from ..kernels.arithmetic import Arithmetic
from ..linalg import mirrored
from ..network.layout import Layout
from ..progress import NoProgress, ProgressFactory
from . import residuals
from .gram import gram_beside, gram_strips
from .row_sums import (
    SquaresBeside,
    column_chunks,
    column_products,
    pull,
    push,
    squared_gradients,
    weigh_columns,
    weigh_rows,
    weighted_columns,
)


@dataclass(frozen=True)
class Precision:
    """The Gauss–Newton precision of the training rows: Σₙ Jₙᵀ Hₙ Jₙ + V."""

    jacobian: Jacobian
    root: Tensor  # W (N, C, C)
    prior: Tensor  # v (p,)
    memory: int
    progress: ProgressFactory = NoProgress
    gram_dtype: Arithmetic = Arithmetic.FLOAT64  # of the products in Gram matrices

    @property
    def layout(self) -> Layout:
        return self.jacobian.layout

    @property
    def n_rows(self) -> int:
        return self.root.shape[0] * self.root.shape[1]  # of A: N·C

    @cached_property
    def common_weight(self) -> float | None:
        """w if every W is w·I, as in regression: then it is moved into the prior, at no cost."""
        w = self.root[0, 0, 0]
        same = self.root == w * torch.eye(self.root.shape[1], dtype=self.root.dtype, device=self.root.device)
        return float(w) if bool(same.all()) and float(w) > 0 else None

    @property
    def own_root(self) -> Tensor | None:
        return self.root if self.common_weight is None else None  # None where it is w·I for all rows

    def data_diagonal(self) -> Tensor:
        """diag(Ω) − V, the weighted sum of squared gradients (p,)."""
        diagonal = squared_gradients(self.jacobian, self.own_root, self.memory)
        return diagonal if self.common_weight is None else diagonal.mul_(self.common_weight**2)

    def _scale(self, S: Tensor) -> Tensor:
        """Factors, besides W, that bring columns of J into the prior's metric (k,)."""
        return self.prior[S].rsqrt().mul_(1.0 if self.common_weight is None else self.common_weight)

    def column_chunks(self, S: Tensor) -> Iterator[Tensor]:
        """A′[:, S]ᵀ in the prior's metric, a chunk of rows at a time (k, m·C); the caller may change each chunk."""
        scale = self._scale(S)
        for start, J_S in column_chunks(self.jacobian, S, self.memory):
            yield weighted_columns(J_S, scale, self.own_root, start)

    def columns(self, S: Tensor) -> Tensor:
        """A′[:, S]ᵀ in the prior's metric as a whole (k, N·C)."""
        scale, A, done = self._scale(S), torch.empty(0), 0
        for start, J_S in column_chunks(self.jacobian, S, self.memory):
            chunk = weighted_columns(J_S, scale, self.own_root, start)
            if chunk.shape[1] == self.n_rows:
                return chunk
            if start == 0:
                A = chunk.new_empty(len(S), self.n_rows)
            A[:, done : done + chunk.shape[1]] = chunk
            done += chunk.shape[1]
        return A

    def submatrix(self, S: Tensor) -> Tensor:
        """A′ᵀA′ at S, i.e. Ω_SS without the prior, in the prior's metric (k, k), on and above the diagonal."""
        return column_products(self.jacobian, self.own_root, self._scale(S), S, self.memory, progress=self.progress)

    def gram(self) -> Tensor:
        """K = A V⁻¹ Aᵀ (N·C, N·C)."""
        J, by = self.jacobian, self.gram_dtype
        return self._weighted_gram(gram_strips(J, J, self._metric, self.memory, True, by, progress=self.progress))

    def cross_gram(self, other: Jacobian) -> Tensor:
        """A V⁻¹ J′ᵀ with the unweighted rows of another Jacobian (N·C, M·C)."""
        same, by = other is self.jacobian, self.gram_dtype
        K = gram_strips(other, self.jacobian, self._metric, self.memory, same, by, progress=self.progress)
        return self._weighted_cross(mirrored(K) if same else K)

    def gram_and_cross(self, other: Jacobian, squares: SquaresBeside | None = None) -> tuple[Tensor, Tensor]:
        """`gram` and `cross_gram`, for which the rows of A are written out only once where that is possible."""
        by = self.gram_dtype
        found = gram_beside(self.jacobian, other, self._metric, self.memory, by, squares, progress=self.progress)
        return self._weighted_gram(found[0]), self._weighted_cross(found[1])

    @property
    def _metric(self) -> Tensor:
        return self.prior if self.common_weight is None else self.prior / self.common_weight**2

    def _weighted_gram(self, K: Tensor) -> Tensor:
        K = mirrored(K)
        if self.common_weight is not None:
            return K
        return weigh_columns(weigh_columns(K, self.root, in_place=True).T, self.root, in_place=True)

    def _weighted_cross(self, K: Tensor) -> Tensor:
        w = self.common_weight
        return K.div_(w).T if w is not None else weigh_columns(K, self.root, in_place=True).T

    def pull(self, z: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """A′ᵀz in the prior's metric for coefficients z of the weighted rows (N·C, r) → (p, r) float64.

        `dtype` is that of the products; rows in float32 are summed in float64 a few at a time.
        """
        u = weigh_rows(z, self.root).to(dtype)
        return pull(self.jacobian, u, self.memory).mul_(self.prior.rsqrt().unsqueeze(1))

    def push(self, h: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """A′h for vectors h of all parameters in the prior's metric (p, r) → (N·C, r) float64."""
        x = (h * self.prior.rsqrt().unsqueeze(1)).to(dtype)
        return weigh_rows(push(self.jacobian, x, self.memory), self.root.mT)

    def residual_products(self, other: Jacobian, chosen: Tensor, w: Tensor) -> Tensor:
        return residuals.residual_products(self.jacobian, self.root, self.prior, other, chosen, w, self.memory)

    def system_residual(self, other: Jacobian, chosen: Tensor, w: Tensor) -> Tensor:
        return residuals.system_residual(self.jacobian, self.root, self.prior, other, chosen, w, self.memory)
