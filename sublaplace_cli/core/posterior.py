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

from .jacobian import Jacobian
from .linalg import column_squares, dual_variance, solve_lower
from .precision import Precision, column_chunks, row_norms

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
        return self._primal(g) if self.columns is None else self._dual(self.columns, g)

    def _primal(self, g: Tensor) -> Tensor:
        return column_squares(solve_lower(self.factor, g))

    def _dual(self, A: Tensor, g: Tensor) -> Tensor:
        def residual_norms(chosen: Tensor, w: Tensor) -> Tensor:
            return column_squares(g[:, chosen] - A @ w)

        return dual_variance(self.factor, A.T @ g, column_squares(g), self.condition, residual_norms)


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

        def residual_norms(chosen: Tensor, w: Tensor) -> Tensor:
            return self.precision.residual_norms(test, chosen, w)

        return dual_variance(self.factor, cross, norms, self.condition, residual_norms).reshape(test.outputs.shape)


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
    """The same for several posteriors, each over the first k of one order of parameters: columns are fetched once."""
    longest = max(posteriors, key=lambda q: len(q.indices)).indices
    parts: list[list[Tensor]] = [[] for _ in posteriors]
    for _, J_S in column_chunks(test, longest, memory):
        for found, posterior in zip(parts, posteriors, strict=True):
            own = J_S[: len(posterior.indices)]
            found.append(posterior.variance(own.clone() if len(posteriors) > 1 else own))
    return [torch.cat(found).reshape(test.outputs.shape) for found in parts]
