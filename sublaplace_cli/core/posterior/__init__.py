"""Posteriors, one file each, in the prior's metric: with A′ = A V^(−½) and g′ = V^(−½) g, Ω becomes I + A′ᵀA′.

So unequal priors cost no digits. Fitting factorises once; `covariance` only solves.
"""

from typing import Protocol

from torch import Tensor

from ..jacobian.rows import Jacobian


class Posterior(Protocol):
    """A Gaussian over (some of) the parameters."""

    @property
    def freedom(self) -> float:
        """tr(Ω_SS⁻¹ (AᵀA)_SS): how many parameters the data determine."""

    def covariance(self, jacobian: Jacobian) -> Tensor:
        """G Ω⁻¹ Gᵀ of the C outputs at every row (M, C, C)."""

    def variance(self, jacobian: Jacobian) -> Tensor:
        """gᵀ Ω⁻¹ g at every row and output (M, C)."""
        return self.covariance(jacobian).diagonal(dim1=1, dim2=2)
