"""What a posterior is over: parameters that a method chose, or features of the gradient."""

from dataclasses import dataclass

from torch import Tensor

from ...core.features import FeatureMap
from ...core.features.subset import Subset


@dataclass(frozen=True)
class Chosen:
    """The feature map of one method and k, with a digest of all that it depends on."""

    method: str
    features: FeatureMap
    digest: str  # of a sub-network: of the artifact that holds its indices

    @property
    def k(self) -> int:
        return self.features.k

    @property
    def indices(self) -> Tensor | None:
        """The parameters of a sub-network, in the order chosen; None for other features."""
        return self.features.indices if isinstance(self.features, Subset) else None

    @property
    def inputs(self) -> dict[str, str]:
        """What artifacts that depend on it name as their input."""
        return {"indices" if isinstance(self.features, Subset) else "features": self.digest}
