"""Whether a Gram matrix of other products than float64 is accurate enough, by variances at a sample of rows.

The factor of the approximate matrix gives w ≈ w* = (I + K)⁻¹k. The residual form ‖g − Aᵀw‖² + ‖w‖², computed in
float64, equals var + ‖w − w*‖² in the metric I + K: it differs from the variance in second order only, by at most ‖r‖²
with r = k − (I + K)w. That is estimated from r at a sample of training rows, for which exact rows of K are computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ...errors import NumericsError, Reason
from ..jacobian.rows import Jacobian, n_outputs
from ..jacobian.sharded import some_rows
from ..kernels.arithmetic import Arithmetic
from ..linalg import row_products, solve_lower, solve_lower_transposed
from .precision import Precision
from .row_sums import weigh_columns

SAMPLE = 16  # rows, evenly spaced
BOUND = 1e-3  # largest relative error of a variance
NEARLY_EXACT = 1e-7  # the same, where finer products can be had


def allowed_error(arithmetic: Arithmetic) -> float:
    """Of a variance by products in this arithmetic, as a share of it, where it is not refused."""
    return 0.0 if arithmetic == Arithmetic.FLOAT64 else BOUND


def sample_of(jacobian: Jacobian) -> tuple[Jacobian, Sequence[int]]:
    """A few rows of a Jacobian and their numbers; all rows if it already is a subset of rows."""
    n_rows = len(jacobian.outputs)
    if getattr(jacobian, "rows", None) is not None:
        return jacobian, range(n_rows)
    return some_rows(jacobian, _evenly_spaced(n_rows)), _evenly_spaced(n_rows)


def _evenly_spaced(n_rows: int) -> Sequence[int]:
    return list(range(0, n_rows, max(1, n_rows // SAMPLE)))[:SAMPLE]


@dataclass(frozen=True)
class Sample:
    """A few training rows and, in float64, their products with all training rows."""

    rows: Jacobian
    numbers: Tensor  # of these rows (s,)
    cross: Tensor  # A V⁻¹ gᵀ (N·C, s·C)

    @classmethod
    def of(cls, precision: Precision) -> Self:
        chosen = _evenly_spaced(len(precision.jacobian.outputs))
        rows = some_rows(precision.jacobian, chosen)
        return cls(rows, torch.tensor(chosen, device=precision.root.device), _exact_cross(precision, rows))


def _exact_cross(precision: Precision, rows: Jacobian) -> Tensor:
    return replace(precision, gram_dtype=Arithmetic.FLOAT64).cross_gram(rows)


def require_accuracy(
    precision: Precision, L: Tensor, rows: Jacobian, cross: Tensor, found: Tensor, sample: Sample
) -> float:
    """The largest relative error of variances in `found` (m, C, C) from `cross` = A V⁻¹ Gᵀ (N·C, m·C); or refused."""
    w = solve_lower_transposed(L, solve_lower(L, cross))  # (N·C, m·C)
    exact = sample.cross if rows is sample.rows else _exact_cross(precision, rows)
    everything = torch.arange(len(rows.outputs), device=w.device)
    upper = precision.residual_products(rows, everything, w) + row_products(w, n_outputs(rows))
    upper, found = (each.diagonal(dim1=1, dim2=2).flatten() for each in (upper, found))
    N, C = precision.root.shape[:2]
    K = weigh_columns(sample.cross, precision.root[sample.numbers]).T  # (s·C, N·C)
    cross_there, w_there = (X.reshape(N, C, -1)[sample.numbers].flatten(0, 1) for X in (exact, w))
    residual = cross_there - w_there - K @ w
    second_order = residual.square().sum(0) * (N / len(sample.numbers))
    error = float((((found - upper).abs() + second_order) / upper).max())
    bound = BOUND if precision.gram_dtype.finer is None else NEARLY_EXACT
    if not error <= bound:
        off = f"off by up to {error:.2g} of itself (bound {bound:g})"
        raise not_good_enough(precision, f"at a sample of rows the variance of the full posterior is {off}")
    return error


def not_good_enough(precision: Precision, why: str) -> NumericsError:
    """The error for products that are not accurate enough."""
    problem = f"a Gram matrix of {precision.gram_dtype.products} is not accurate enough here: {why}"
    return NumericsError(problem, reason=Reason.GRAM_FLOAT32)
