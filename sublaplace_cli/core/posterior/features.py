"""A posterior over the features of the gradient: a sub-network's, over the rows' features."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..features import FeatureMap
from ..features.rows import FeatureJacobian, feature_precision
from ..jacobian.rows import Jacobian
from ..omega.precision import Precision
from . import Posterior
from .path import fit_subnet
from .subnet import SubnetPosterior


@dataclass(frozen=True)
class FeaturePosterior(Posterior):
    """Variance (Φg′)ᵀ (I + ΦA′ᵀA′Φᵀ)⁻¹ Φg′."""

    over_features: SubnetPosterior
    training: FeatureJacobian

    @property
    def freedom(self) -> float:
        return self.over_features.freedom

    @property
    def shares_cancel(self) -> bool:
        return self.over_features.shares_cancel

    def covariance(self, jacobian: Jacobian) -> Tensor:
        return self.over_features.covariance(replace(self.training, source=jacobian))

    def own_shares(self, precision: Precision) -> Tensor:
        """A_n Ω⁻¹ A_nᵀ of every training row (N, C, C), for the precision with which it was fitted."""
        own = replace(self.training, source=precision.jacobian)
        ones = torch.ones(own.k, dtype=torch.float64, device=own.outputs.device)
        return self.over_features.own_shares(replace(precision, jacobian=own, prior=ones))


def fit_features(precision: Precision, feature_map: FeatureMap) -> FeaturePosterior:
    """The posterior over these features: primal (k × k) where k ≤ N·C, else dual (N·C × N·C)."""
    fitted = feature_precision(precision, feature_map)
    assert isinstance(fitted.jacobian, FeatureJacobian)
    everything = torch.arange(feature_map.k, device=fitted.prior.device)
    return FeaturePosterior(fit_subnet(fitted, everything), fitted.jacobian)
