"""Whether a Gram matrix of float32 products is good enough: variances at a sample of rows, against float64.

With the factor of the approximate matrix comes w ≈ w* = (I + K)⁻¹k. The residual form q(w) = ‖g − Aᵀw‖² + ‖w‖², formed
in float64, is var + ‖w − w*‖² in the metric I + K: it differs from the variance in second order only, and that part is
at most ‖r‖², r = k − (I + K)w. The rows of r at a sample of the training rows, from exact rows of K, tell how large
that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import NumericsError
from ..jacobian.rows import Jacobian
from ..jacobian.sharded import some_rows
from ..linalg import solve_lower, solve_lower_transposed
from .precision import Precision
from .weighting import weigh_columns

SAMPLE = 16  # rows, evenly spread
BOUND = 1e-3  # largest relative error of a variance


def sample_of(jacobian: Jacobian) -> tuple[Jacobian, Sequence[int]]:
    """A few of its rows, and which; all where it already is a choice of rows."""
    n_rows = len(jacobian.outputs)
    if getattr(jacobian, "rows", None) is not None:
        return jacobian, range(n_rows)
    return some_rows(jacobian, _spread(n_rows)), _spread(n_rows)


def _spread(n_rows: int) -> Sequence[int]:
    return list(range(0, n_rows, max(1, n_rows // SAMPLE)))[:SAMPLE]


@dataclass(frozen=True)
class Sample:
    """A few training rows and, in float64, their products with all of them: a look at every row of the Jacobian."""

    rows: Jacobian
    places: Tensor  # (s,)
    cross: Tensor  # A V⁻¹ gᵀ (N·C, s·C)

    @classmethod
    def of(cls, precision: Precision) -> Sample:
        chosen = _spread(len(precision.jacobian.outputs))
        rows = some_rows(precision.jacobian, chosen)
        return cls(rows, torch.tensor(chosen, device=precision.root.device), _exact_cross(precision, rows))


def _exact_cross(precision: Precision, rows: Jacobian) -> Tensor:
    return replace(precision, gram_dtype=torch.float64).cross_gram(rows)


def require_accuracy(
    precision: Precision, L: Tensor, rows: Jacobian, cross: Tensor, found: Tensor, sample: Sample
) -> float:
    """The largest relative error of the variances `found` (m·C,) at these rows; refused above the bound.

    `cross` is A V⁻¹ gᵀ (N·C, m·C) as the variances were made from it.
    """
    w = solve_lower_transposed(L, solve_lower(L, cross))  # (N·C, m·C)
    exact = sample.cross if rows is sample.rows else _exact_cross(precision, rows)
    everything = torch.arange(rows.outputs.numel(), device=w.device)
    upper = precision.residual_norms(rows, everything, w) + w.square().sum(0)
    N, C = precision.root.shape[:2]
    K = weigh_columns(sample.cross, precision.root[sample.places]).T  # (s·C, N·C)
    k, w_there = (q.reshape(N, C, -1)[sample.places].flatten(0, 1) for q in (exact, w))
    residual = k - w_there - K @ w
    second_order = residual.square().sum(0) * (N / len(sample.places))
    error = float((((found - upper).abs() + second_order) / upper).max())
    if not error <= BOUND:
        raise not_good_enough(
            f"at a sample of rows the variance of the full posterior is off by up to {error:.2g} of itself "
            f"(bound {BOUND:g})"
        )
    return error


def not_good_enough(why: str) -> NumericsError:
    """The error for products in float32 that show."""
    return NumericsError(
        f"--gram-dtype float32 is not good enough here: {why}",
        hint="use --gram-dtype float64, or raise posterior.prior_precision or posterior.noise_variance",
    )
