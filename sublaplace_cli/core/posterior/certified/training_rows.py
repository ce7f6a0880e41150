"""What certified variances at a sample of the training rows say: degrees of freedom, and left-out variances."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..left_out import LeftOut, without_own_share
from .intervals import CertifiedVariances
from .preconditioners import Preconditioner

NORMAL_95 = 1.96  # standard errors: of an interval that holds a mean with a probability of 95 %


@dataclass(frozen=True)
class FreedomEstimate:
    """A number that is known to within ± its half-width."""

    value: float
    half_width: float


@dataclass(frozen=True)
class SampledRows:
    """Some of N training rows, by number in rising order, with their weights and their variances."""

    rows: Tensor  # (n,)
    n_rows: int  # N
    root: Tensor  # W of the sample (n, C, C)
    found: CertifiedVariances
    preconditioner: Preconditioner  # whose shares are known at all rows: the sample is for the difference

    @property
    def shares(self) -> Tensor:
        """U = WᵀΣW of each row (n, C, C)."""
        return self.root.mT @ self.found.covariance @ self.root

    @property
    def freedom(self) -> FreedomEstimate:
        """tr(Ω⁻¹AᵀA), the sum of the shares of all rows; with n < N by 1.96 standard errors of the sample's mean.

        The sample's mean is that of what the shares are above those of the preconditioner, whose sum is known.
        """
        n, N, C = len(self.rows), self.n_rows, self.root.shape[1]
        each = self.shares.diagonal(dim1=1, dim2=2).sum(1)
        places = (self.rows.unsqueeze(1) * C + torch.arange(C, device=self.rows.device)).flatten()
        above = each - self.preconditioner.shares(places).reshape(n, C).sum(1)
        low, high, middle = self.found.low, self.found.high, self.found.std.square()
        # Covariances scale with the variances of their outputs: so does the uncertainty of a share, at most.
        off = (torch.maximum(high - middle, middle - low) / middle).nan_to_num(0.0).amax(1)
        error = float(above.std(correction=1)) / math.sqrt(n) * math.sqrt(1 - n / N) if 1 < n < N else 0.0
        value = self.preconditioner.freedom + N * float(above.mean())
        return FreedomEstimate(value, N * (float((each * off).mean()) + NORMAL_95 * error))

    def left_out(self) -> tuple[LeftOut, int]:
        """Variances without the row itself, and how many rows were dropped.

        A row is dropped if it may determine its own output alone: then its variance without it may be anything.
        """
        largest = torch.linalg.eigvalsh(self.shares * self._most.unsqueeze(2))[:, -1]
        kept = (largest < 1).nonzero().squeeze(1)
        variances = without_own_share(self.shares[kept], self.root[kept])
        return LeftOut(variances, self.rows[kept]), len(self.rows) - len(kept)

    @property
    def _most(self) -> Tensor:
        """By how much a share may be larger than the middle of its interval (n, 1)."""
        return (self.found.high / self.found.std.square()).nan_to_num(1.0).amax(1, keepdim=True)
