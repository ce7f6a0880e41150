"""Diagonal Laplace: all off-diagonal elements of Ω are dropped."""

from dataclasses import dataclass

from torch import Tensor

from ..jacobian.rows import Jacobian
from ..omega.row_sums import own_products
from . import Posterior


@dataclass(frozen=True)
class DiagonalPosterior(Posterior):
    """Independent parameters with precision diag(Ω)."""

    prior: Tensor  # v (p,)
    data_diagonal: Tensor  # diag(Ω) − V (p,)
    memory: int

    @property
    def freedom(self) -> float:
        return float((self.data_diagonal / (self.data_diagonal + self.prior)).sum())

    def covariance(self, jacobian: Jacobian) -> Tensor:
        """Σⱼ gⱼ g′ⱼ/Ωⱼⱼ."""
        return own_products(jacobian, self.prior + self.data_diagonal, self.memory)
