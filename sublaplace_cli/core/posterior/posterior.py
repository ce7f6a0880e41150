"""Posteriors: the sub-network's (primal or dual), the full network's through the Gram kernel, the diagonal one.

All work in the prior's metric, A′ = A V^(−½) and g′ = V^(−½) g, so that Ω becomes I + A′ᵀA′ and unequal priors
cost no digits. Fitting (in `fitting`) factorises once; `variance` only solves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..jacobian.rows import Jacobian
from ..linalg import column_squares, dual_variance, solve_lower
from ..omega.gram_float32 import Sample, require_accuracy, sample_of
from ..omega.precision import Precision
from ..omega.row_sums import column_chunks, row_norms

Form = Literal["primal", "dual"]


@dataclass(frozen=True)
class SubnetPosterior:
    """Gaussian over the parameters in S; all others stay at their value."""

    indices: Tensor  # S (k,)
    prior: Tensor  # v_S (k,)
    form: Form
    factor: Tensor  # L of I + A′ᵀA′ (k, k), or of I + A′A′ᵀ (N·C, N·C)
    columns: Tensor | None  # A′ᵀ (k, N·C), dual form only
    condition: float  # κ = λmax(A′ᵀA′), or a harmless bound of it
    count_freedom: Callable[[], float]

    @cached_property
    def freedom(self) -> float:
        """tr(Ω_SS⁻¹ (AᵀA)_SS): how many of the k parameters the data determine."""
        return self.count_freedom()

    def variance(self, J_S: Tensor) -> Tensor:
        """g_Sᵀ Ω_SS⁻¹ g_S for rows J_Sᵀ (k, m·C), which are used up → (m·C,)."""
        g = J_S.mul_(self.prior.rsqrt().unsqueeze(1))
        if self.columns is None:
            return self.primal_variance(g)
        return self.dual_variance(g, self.columns.T @ g, column_squares(g))

    def primal_variance(self, g: Tensor) -> Tensor:
        """The same for g′ in the prior's metric (k, m·C)."""
        return column_squares(solve_lower(self.factor, g))

    def dual_variance(self, g: Tensor, cross: Tensor, norms: Tensor) -> Tensor:
        """The same, given A′g′ and ‖g′‖²."""
        A = self.columns
        assert A is not None, "the dual form keeps them"

        def residual_norms(chosen: Tensor, w: Tensor) -> Tensor:
            return column_squares(g[:, chosen] - A @ w)

        return dual_variance(self.factor, cross, norms, self.condition, residual_norms)


@dataclass(frozen=True)
class FullPosterior:
    """All p parameters at once, through the Gram matrix of the training rows."""

    precision: Precision
    factor: Tensor  # L of I + K (N·C, N·C)
    condition: float
    count_freedom: Callable[[], float]

    @cached_property
    def freedom(self) -> float:
        """tr(Ω⁻¹AᵀA): how many parameters the data determine."""
        return self.count_freedom()

    def variance(self, test: Jacobian, norms: Tensor) -> Tensor:
        """gᵀ Ω⁻¹ g for every row and output of `test` (M, C), given its squared norms (M·C,)."""
        cross = self.precision.cross_gram(test)  # (N·C, M·C)
        variance = self._variance(test, norms, cross)
        if self.precision.gram_dtype != torch.float64:
            few, chosen = sample_of(test)
            places = torch.arange(variance.numel(), device=cross.device).reshape(test.outputs.shape)[chosen].flatten()
            require_accuracy(self.precision, self.factor, few, cross[:, places], variance[places], self._sample)
        return variance.reshape(test.outputs.shape)

    def _variance(self, test: Jacobian, norms: Tensor, cross: Tensor) -> Tensor:
        def residual_norms(chosen: Tensor, w: Tensor) -> Tensor:
            return self.precision.residual_norms(test, chosen, w)

        return dual_variance(self.factor, cross, norms, self.condition, residual_norms)

    @cached_property
    def _sample(self) -> Sample:
        return Sample.of(self.precision)

    def require_accuracy(self) -> None:
        """Refuse where products in float32 show in the variances, judged by a sample of the training rows."""
        few = self._sample.rows
        norms = row_norms(few, self.precision.prior, self.precision.memory)
        cross = self.precision.cross_gram(few)
        found = self._variance(few, norms, cross)
        require_accuracy(self.precision, self.factor, few, cross, found, self._sample)


def diagonal_variance(precision: Precision, data_diagonal: Tensor, test: Jacobian) -> Tensor:
    """Σⱼ gⱼ²/Ωⱼⱼ for every row and output of `test` (M, C): the diagonal Laplace reference."""
    return row_norms(test, precision.prior + data_diagonal, precision.memory).reshape(test.outputs.shape)


def diagonal_freedom(precision: Precision, data_diagonal: Tensor) -> float:
    """tr(diag(Ω)⁻¹ AᵀA)."""
    return float((data_diagonal / (data_diagonal + precision.prior)).sum())


def subnet_variance(posterior: SubnetPosterior, test: Jacobian, memory: int) -> Tensor:
    """`posterior.variance` over all rows of `test` (M, C), a chunk of rows at a time."""
    return path_variances([posterior], test, memory)[0]


def path_variances(posteriors: Sequence[SubnetPosterior], test: Jacobian, memory: int) -> list[Tensor]:
    """The same for several posteriors of one precision, each over the first k of one order of parameters.

    Columns are fetched once, and what a longer one shares with a shorter one is computed once.
    """
    by_size = sorted(range(len(posteriors)), key=lambda i: len(posteriors[i].indices))
    longest = posteriors[by_size[-1]]
    scale = longest.prior.rsqrt().unsqueeze(1)
    parts: list[list[Tensor]] = [[] for _ in posteriors]
    for _, J_S in column_chunks(test, longest.indices, memory):
        g, done = J_S.mul_(scale), 0
        cross = norms = torch.zeros((), dtype=torch.float64, device=g.device)
        for i in by_size:
            posterior, k = posteriors[i], len(posteriors[i].indices)
            if posterior.columns is None:
                parts[i].append(posterior.primal_variance(g[:k]))
                continue
            cross = cross + posterior.columns[done:k].T @ g[done:k]
            norms = norms + column_squares(g[done:k])
            done = k
            parts[i].append(posterior.dual_variance(g[:k], cross, norms))
    return [torch.cat(found).reshape(test.outputs.shape) for found in parts]
