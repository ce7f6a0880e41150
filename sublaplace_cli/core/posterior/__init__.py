"""Posteriors: each is one file, and all have `variance(jacobian)` and `freedom`.

They work in the prior's metric, A′ = A V^(−½) and g′ = V^(−½) g, so that Ω becomes I + A′ᵀA′ and unequal priors cost no
digits. Fitting factorises once; `variance` only solves.
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
