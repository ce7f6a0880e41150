"""Variances of training rows, each without that row: what a rescaling is fitted to. They have a closed form."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..features.views import View
from ..jacobian.sharded import some_rows
from ..omega.precision import Precision
from .features import FeaturePosterior
from .full import FullPosterior
from .subnet import SubnetPosterior

SMALL_SHARE = 1e-6  # share of a row in its own variance below which 1 − R has lost six digits


@dataclass(frozen=True)
class LeftOut:
    """Left-out variances of the full posterior at all training rows, or at a sample of them."""

    variances: Tensor  # (n, C)
    rows: Tensor | None = None  # their numbers, in rising order; None: all

    def of(self, precision: Precision) -> Precision:
        """The training rows that these are; what it answers is a sum over them alone."""
        return precision if self.rows is None else _some(precision, self.rows)


def left_out(posterior: FullPosterior | SubnetPosterior | FeaturePosterior, precision: Precision) -> Tensor:
    """Variances of the training rows, each without that row (N, C)."""
    U, W = posterior.own_shares(precision), precision.root
    if W.shape[1] > 1:
        return without_own_share(U, W)
    own, weight = U.flatten(), W.flatten().square()
    weak = (own < SMALL_SHARE).nonzero().squeeze(1)
    if len(weak) and posterior.shares_cancel:  # a weight near 0: a confident classification
        variance = own / weight
        variance[weak] = posterior.variance(some_rows(precision.jacobian, weak.tolist())).flatten()
        own = torch.where(own < SMALL_SHARE, weight * variance, own)
        return (variance / (1 - own)).unsqueeze(1)
    return without_own_share(U, W)


def left_out_of(posterior: SubnetPosterior, view: View, precision: Precision, full: LeftOut) -> Tensor:
    """The same of a posterior over the columns of a view, at the rows of `full` (n, C)."""
    if full.rows is None or posterior.shares_cancel:  # a dual form has the shares of all rows or none
        every = left_out(posterior, view.precision(precision))
        return every if full.rows is None else every[full.rows]
    return left_out(posterior, view.precision(full.of(precision)))


def without_own_share(U: Tensor, W: Tensor) -> Tensor:
    """diag of W⁻ᵀ (I − U)⁻¹ U W⁻¹ for the shares U = WᵀΣW of rows in their own variance: (N, C, C) → (N, C)."""
    C = W.shape[1]
    if C == 1:
        own = U.flatten()
        return (own / W.flatten().square() / (1 - own)).unsqueeze(1)
    eye = torch.eye(C, dtype=U.dtype, device=U.device)
    without = torch.linalg.solve(eye - U, U)  # in the weighted outputs, symmetric
    half = torch.linalg.solve(W.mT, without)  # W⁻ᵀ (…)
    return torch.linalg.solve(W.mT, half.mT).diagonal(dim1=1, dim2=2).clamp(min=0.0)


def _some(precision: Precision, rows: Tensor) -> Precision:
    return replace(precision, jacobian=some_rows(precision.jacobian, rows.tolist()), root=precision.root[rows])
