"""Full linearized Laplace through the Gram matrix of the training rows: nothing of size p × p exists."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import NumericsError, Reason
from ..jacobian.rows import Jacobian, n_outputs
from ..kernels.arithmetic import Arithmetic
from ..linalg import condition_of, dual_covariance, inverse_columns, inverse_square_sums, safe_cholesky, solve_lower
from ..omega.gram_float32 import Sample, not_good_enough, require_accuracy, sample_of
from ..omega.precision import Precision
from ..omega.row_sums import SquaresBeside, own_products
from . import Posterior
from .subnet import WEAK_DATA, require_room

ROOM_SHARE = 8  # K and the products with the rows to predict are held together within this share of the memory


@dataclass(frozen=True)
class FullPosterior(Posterior):
    """L Lᵀ = I + K over all p parameters."""

    precision: Precision
    factor: Tensor  # L (N·C, N·C)
    condition: float
    count_freedom: Callable[[], float]
    known: list[tuple[Jacobian, Tensor]] = field(default_factory=list)  # rows, A V⁻¹ Gᵀ; given up when it is used
    shares_cancel: ClassVar[bool] = True

    @cached_property
    def freedom(self) -> float:
        return self.count_freedom()

    def covariance(self, jacobian: Jacobian, products: Tensor | None = None) -> Tensor:
        """G Ω⁻¹ Gᵀ of the C outputs at every row (M, C, C); `products` are their G V⁻¹ Gᵀ, if known."""
        products = self._products(jacobian) if products is None else products
        cross = self._cross(jacobian)  # (N·C, M·C)
        covariance = self._covariance(jacobian, products, cross)
        if self.precision.gram_dtype == Arithmetic.FLOAT64:
            return covariance
        few, rows = sample_of(jacobian)
        there = cross.reshape(len(cross), -1, n_outputs(jacobian))[:, list(rows)].flatten(1)
        with suppress(NumericsError) if _with_finer(self.precision) else nullcontext():
            require_accuracy(self.precision, self.factor, few, there, covariance[list(rows)], self._sample)
            return covariance
        return self._finer.covariance(jacobian, products)

    @cached_property
    def _finer(self) -> "FullPosterior":
        """The same from finer products, where these are accurate at the training rows only."""
        return fit_full(_with_finer(self.precision) or self.precision)

    def _cross(self, jacobian: Jacobian) -> Tensor:
        if self.known and self.known[0][0] is jacobian:
            return self.known.pop()[1]
        return self.precision.cross_gram(jacobian)

    def _products(self, jacobian: Jacobian) -> Tensor:
        return own_products(jacobian, self.precision.prior, self.precision.memory)

    def _covariance(self, jacobian: Jacobian, products: Tensor, cross: Tensor) -> Tensor:
        precision = self.precision
        residuals = partial(precision.residual_products, jacobian), partial(precision.system_residual, jacobian)
        return dual_covariance(self.factor, cross, products, self.condition, *residuals)

    @cached_property
    def _sample(self) -> Sample:
        return Sample.of(self.precision)

    def require_accuracy(self) -> None:
        """Refuse products that make variances at a sample of the training rows inaccurate."""
        few = self._sample.rows
        cross = self.precision.cross_gram(few)
        covariance = self._covariance(few, self._products(few), cross)
        require_accuracy(self.precision, self.factor, few, cross, covariance, self._sample)

    def own_shares(self, precision: Precision) -> Tensor:
        return own_shares(self.factor, precision.root.shape[1])


def full_bytes(rows: int) -> int:
    """Memory for K, which its factor replaces."""
    return 8 * rows * rows


def fit_full(
    precision: Precision, next_rows: Jacobian | None = None, squares: SquaresBeside | None = None
) -> FullPosterior:
    """The full posterior of these training rows; what is wanted next, predictions or squares, costs less with it."""
    what = f"the full posterior over {precision.n_rows} rows"
    require_room(precision, full_bytes(precision.n_rows), what, Reason.NO_ROOM_FOR_FULL)
    if precision.gram_dtype == Arithmetic.FLOAT64:
        return _fitted(precision, next_rows, squares)
    finer = _with_finer(precision)
    if finer is None:
        return _checked(precision)
    with suppress(NumericsError):
        return _checked(precision)
    return fit_full(finer)


def _with_finer(precision: Precision) -> Precision | None:
    """With the products to try where these are not accurate enough."""
    finer = precision.gram_dtype.finer
    return None if finer is None else replace(precision, gram_dtype=finer)


def _checked(precision: Precision) -> FullPosterior:
    try:
        posterior = _fitted(precision)
    except NumericsError as error:
        raise not_good_enough(precision, error.message) from error
    posterior.require_accuracy()
    return posterior


def _fitted(
    precision: Precision, next_rows: Jacobian | None = None, squares: SquaresBeside | None = None
) -> FullPosterior:
    if next_rows is None or not _has_room_beside(precision, next_rows):
        return FullPosterior(precision, *factor_gram(precision.gram()))
    K, cross = precision.gram_and_cross(next_rows, squares)
    return FullPosterior(precision, *factor_gram(K), [(next_rows, cross)])


def _has_room_beside(precision: Precision, rows: Jacobian) -> bool:
    """Whether K and A V⁻¹ Gᵀ of these rows take little of the memory together."""
    others = len(rows.outputs) * n_outputs(rows)
    return 8 * precision.n_rows * (precision.n_rows + others) <= precision.memory // ROOM_SHARE


def factor_gram(K: Tensor) -> tuple[Tensor, float, Callable[[], float]]:
    """(L of I + K, λmax of K, a function that computes tr((I + K)⁻¹K)); K is overwritten."""
    condition = condition_of(K)
    diagonal = K.diagonal().clone()
    K.diagonal().add_(1.0)
    L = safe_cholesky(K, lambda i: f"training row {i}")

    def freedom() -> float:
        # N·C − tr R, summed as the rows' own shares, each between 0 and 1: cheap, but it cancels where the data
        # say very little; then tr(L⁻¹KL⁻ᵀ), a sum of positive terms.
        plain = float((1.0 - inverse_square_sums(L)).clamp(min=0.0).sum())
        if plain >= WEAK_DATA * len(L):
            return plain
        K = L @ L.T
        K.diagonal().copy_(diagonal)
        half = solve_lower(L, K)
        return float((solve_lower(L, half.T.contiguous())).diagonal().sum())

    return L, condition, freedom


def own_shares(L: Tensor, C: int) -> Tensor:
    """A_n Ω⁻¹ A_nᵀ of every training row as I − R_nn, R = (L Lᵀ)⁻¹ (N, C, C)."""
    columns = (X.reshape(len(X), -1, C) for X in inverse_columns(L, multiple_of=C))
    parts = [torch.einsum("rnc,rnd->ncd", X, X) for X in columns]
    return torch.eye(C, dtype=L.dtype, device=L.device) - torch.cat(parts)
