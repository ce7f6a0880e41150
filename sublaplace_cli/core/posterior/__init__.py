"""Posteriors. Each is one file, and all answer `variance(jacobian)` and `freedom`.

All work in the prior's metric, A′ = A V^(−½) and g′ = V^(−½) g, so that Ω becomes I + A′ᵀA′ and unequal priors cost no
digits. Fitting factorises once; `variance` only solves.

subnet_primal, subnet_dual   a sub-network, k × k or N·C × N·C      full        all parameters, through the Gram matrix
path                         sub-networks that extend one another    diagonal, kronecker   the references of the paper
rescale, bounds, theorem1    corrections, bounds and checks of variances      sampling    draws
"""

from typing import Protocol

from torch import Tensor

from ..jacobian.rows import Jacobian


class Posterior(Protocol):
    """A Gaussian over (some of) the parameters."""

    @property
    def freedom(self) -> float:
        """tr(Ω_SS⁻¹ (AᵀA)_SS): how many parameters the data determine."""

    def variance(self, jacobian: Jacobian) -> Tensor:
        """gᵀ Ω⁻¹ g at every row and output (M, C)."""
