"""Whether a Gram matrix of float32 products is good enough: variances at a sample of rows, against float64.

With the factor of the approximate matrix comes w ≈ w* = (I + K)⁻¹k. The residual form q(w) = ‖g − Aᵀw‖² + ‖w‖², formed
in float64, is var + ‖w − w*‖² in the metric I + K: it differs from the variance in second order only, and that part is
at most ‖r‖², r = k − (I + K)w. The rows of r at a sample of the training rows, from exact rows of K, tell how large
that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..errors import NumericsError
from .folds import weigh_columns
from .jacobian import Jacobian
from .linalg import solve_lower, solve_lower_transposed
from .precision import Precision
from .shared import some_rows

SAMPLE = 16  # rows, evenly spread
BOUND = 1e-3  # largest relative error of a variance


def sample_of(jacobian: Jacobian) -> Jacobian:
    """A few of its rows; all where it already is a choice of rows."""
    if getattr(jacobian, "rows", None) is not None:
        return jacobian
    return some_rows(jacobian, _spread(len(jacobian.outputs)))


def _spread(n_rows: int) -> Sequence[int]:
    return list(range(0, n_rows, max(1, n_rows // SAMPLE)))[:SAMPLE]


def require_accuracy(precision: Precision, L: Tensor, rows: Jacobian, found: Tensor) -> float:
    """The largest relative error of the variances `found` (m·C,) at these rows; refused above the bound."""
    exact = replace(precision, gram_dtype=torch.float64)
    w = solve_lower_transposed(L, solve_lower(L, precision.cross_gram(rows)))  # (N·C, m·C)
    everything = torch.arange(rows.outputs.numel(), device=w.device)
    upper = precision.residual_norms(rows, everything, w) + w.square().sum(0)
    N, C = precision.root.shape[:2]
    chosen = _spread(N)
    places = torch.tensor(chosen, device=w.device)
    K = weigh_columns(exact.cross_gram(some_rows(precision.jacobian, chosen)), precision.root[places]).T  # (s·C, N·C)
    k = exact.cross_gram(rows).reshape(N, C, -1)[places].flatten(0, 1)
    residual = k - w.reshape(N, C, -1)[places].flatten(0, 1) - K @ w
    second_order = residual.square().sum(0) * (N / len(chosen))
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
