"""A posterior over features of the gradient: a sub-network's, over what its view of the rows returns."""

from dataclasses import dataclass

from torch import Tensor

from ..features import FeatureMap
from ..features.views import View, view_of
from ..jacobian.rows import Jacobian
from ..omega.precision import Precision
from . import Posterior
from .path import fit_subnet
from .subnet import SubnetPosterior


@dataclass(frozen=True)
class FeaturePosterior(Posterior):
    """Variance (Φg′)ᵀ (I + ΦA′ᵀA′Φᵀ)⁻¹ Φg′."""

    over_features: SubnetPosterior
    view: View

    @property
    def freedom(self) -> float:
        return self.over_features.freedom

    @property
    def shares_cancel(self) -> bool:
        return self.over_features.shares_cancel

    def covariance(self, jacobian: Jacobian) -> Tensor:
        return self.over_features.covariance(self.view.rows(jacobian))

    def own_shares(self, precision: Precision) -> Tensor:
        """A_n Ω⁻¹ A_nᵀ of every training row (N, C, C), for the precision with which it was fitted."""
        return self.over_features.own_shares(self.view.precision(precision))


def fit_features(precision: Precision, feature_map: FeatureMap) -> FeaturePosterior:
    """The posterior over these features: primal (k × k) where k ≤ N·C, else dual (N·C × N·C)."""
    view = view_of(feature_map, precision.layout, precision.prior, precision.memory)
    return FeaturePosterior(fit_subnet(view.precision(precision), view.indices), view)
