"""A method's prediction at the test rows, and the quantities that it is compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from .features import FeatureMap
from .features.subset import Subset
from .gaussian import Gaussian
from .likelihoods import Likelihood
from .posterior.rescale import ALL_OUTPUTS, Rescale
from .tuning.calibration import Calibration
from .tuning.conformal import Conformal


@dataclass(frozen=True)
class Prediction:
    """Mean and epistemic covariance of one method at every test row."""

    method: str
    k: int | None
    outputs: Gaussian
    freedom: float | None  # tr(Ω_SS⁻¹ (AᵀA)_SS); None if there is no posterior
    rescale: Rescale = field(default_factory=Rescale)
    features: FeatureMap | None = None  # of a posterior over k parameters or features
    samples: Tensor | None = None  # draws of the outputs (count, M, C)
    own_mean: bool = False  # the mean is not that of the network
    calibration: Calibration | None = None  # how `rescale` was fitted to held-out rows, if it was
    means: slice = field(default_factory=lambda: ALL_OUTPUTS)  # the D outputs that predict the targets

    @property
    def std_bounds(self) -> tuple[Tensor, Tensor] | None:
        """Of σ (M, D), where it is not known exactly."""
        if self.outputs.variance_bounds is None:
            return None
        low, high = (each.sqrt()[:, self.means] for each in self.outputs.variance_bounds)
        return low, high

    @property
    def mean(self) -> Tensor:
        return self.outputs.mean[:, self.means]  # (M, D)

    @property
    def std(self) -> Tensor:
        return self.outputs.std[:, self.means]  # (M, D)

    @property
    def comparable(self) -> Gaussian:
        """The outputs to compare rows by: factors that differ by fold would change the order of rows."""
        return self.outputs if self.calibration is None else self.calibration.common

    @property
    def common_std(self) -> Tensor:
        """σ to compare with other standard deviations."""
        return self.comparable.std[:, self.means]

    @property
    def indices(self) -> Tensor | None:
        """S (k,) of a sub-network."""
        return self.features.indices if isinstance(self.features, Subset) else None

    @property
    def is_subnet_posterior(self) -> bool:
        return self.indices is not None and self.rescale == Rescale()  # then Theorem 1 holds for it

    @property
    def name(self) -> str:
        return self.method if self.k is None else f"{self.method} (k = {self.k})"


@dataclass(frozen=True)
class Absent:
    """Why a quantity to compare with is missing."""

    targets: str = "the test rows have no targets"
    full: str = "no full posterior was computed"
    oracle: str = "there is no oracle"
    conformal: str = "no conformal level was set"
    ood: str = "there are no out-of-distribution rows"


@dataclass(frozen=True)
class OodSet:
    """Rows unlike the training rows, and every prediction with one prior and one factor for all rows.

    Both mappings are by the outputs of the prediction at the test rows.
    """

    name: str
    test: Mapping[Gaussian, Gaussian]  # outputs at the test rows
    ood: Mapping[Gaussian, Gaussian]  # outputs at the rows of the set


@dataclass(frozen=True)
class FullNumbers:
    """What is known of the full posterior."""

    std: Tensor | None = None  # (M, D)
    std_bounds: tuple[Tensor, Tensor] | None = None  # where it is not known exactly
    ipv: float | None = None
    ipv_half_width: float = 0.0  # of an estimate from a sample of the training rows


@dataclass(frozen=True)
class Comparison:
    """Quantities that all predictions are compared with; tensors are (M, D), one column per target, unless noted."""

    likelihood: Likelihood
    n_train: int
    targets: Tensor | None  # regression (M, D); classes (M,) int64
    oracle: Tensor | None
    of_full: FullNumbers = field(default_factory=FullNumbers)
    conformal: Conformal | None = None
    ood: tuple[OodSet, ...] = ()
    absent: Absent = field(default_factory=Absent)

    @property
    def std_full(self) -> Tensor | None:
        return self.of_full.std

    @property
    def std_bounds(self) -> tuple[Tensor, Tensor] | None:
        return self.of_full.std_bounds

    def about_targets(self, prediction: Prediction) -> Prediction:
        """The prediction with mean and std of the outputs that predict the targets."""
        return replace(prediction, means=self.likelihood.means(prediction.outputs.mean.shape[1]))

    def ipv(self, freedom: float) -> float:
        """(σ₀²/N)·tr(Ω_SS⁻¹ (AᵀA)_SS); σ₀² = 1 for classification."""
        return (self.likelihood.noise_variance or 1.0) / self.n_train * freedom
