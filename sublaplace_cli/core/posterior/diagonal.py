"""Diagonal Laplace: all off-diagonal elements of Ω are dropped."""

from dataclasses import dataclass

from torch import Tensor

from ..jacobian.rows import Jacobian
from ..omega.row_sums import row_norms


@dataclass(frozen=True)
class DiagonalPosterior:
    """Independent parameters with precision diag(Ω)."""

    prior: Tensor  # v (p,)
    data_diagonal: Tensor  # diag(Ω) − V (p,)
    memory: int

    @property
    def freedom(self) -> float:
        return float((self.data_diagonal / (self.data_diagonal + self.prior)).sum())

    def variance(self, jacobian: Jacobian) -> Tensor:
        """Σⱼ gⱼ²/Ωⱼⱼ."""
        return row_norms(jacobian, self.prior + self.data_diagonal, self.memory).reshape(jacobian.outputs.shape)
