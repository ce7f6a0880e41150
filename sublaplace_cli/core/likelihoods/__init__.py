"""A likelihood is one frozen object with everything that depends on the task.

To add one:
1. write a class with the members of `Likelihood` in a file of this folder (as a subclass, it inherits the defaults),
2. add one line to `catalog.TASKS`, or to `catalog.OUTPUTS` if it reads other outputs for a known task,
3. add a case to the tests; the spec, the metrics, tuning and the references use it from then on.
"""

from typing import ClassVar, Protocol, Self

import numpy as np
from torch import Tensor

from ..gaussian import Gaussian
from .combinations import grouped_signs
from .links import Link
from .reliability import Reliability


class Likelihood(Protocol):
    """p(y | f) of one row with C outputs."""

    @property
    def noise_variance(self) -> float | None:
        """σ₀², the same at every row; None if the likelihood has none."""
        return None

    calibration_axes: ClassVar[tuple[str, str]]  # labels of the two axes of `calibration`
    calibration_counts: ClassVar[str]  # label of its histogram
    risk_label: ClassVar[str]  # of the mean of `risk` over some rows

    def with_noise(self, sigma2: float) -> Self:
        """The same likelihood with another σ₀²; unchanged if it has none."""
        return self

    def with_link(self, link: Link) -> Self:
        """The same likelihood with another way to class probabilities; unchanged if there are no classes."""
        return self

    def root(self, f: Tensor) -> Tensor:
        """A square root W of the output Hessian, H = W Wᵀ (N, C, C) float64."""

    def kernel_root(self, f: Tensor) -> Tensor | None:
        """W without the noise variance; None if that is the identity."""
        return self.root(f)

    def combinations(self, f: Tensor, signs: Tensor, count: int) -> Tensor:
        """U (N, C, count) with U Uᵀ = H on average over random signs (N, C)."""
        W = self.root(f)
        return W @ grouped_signs(W.square().sum(1), signs, count)

    def means(self, n_outputs: int) -> slice:
        """The outputs that predict the targets; any others say how the targets vary around them."""
        return slice(None)

    def noise(self, outputs: Gaussian) -> Tensor | None:
        """Variance of the targets around their means at each row (M, D); None if the targets are no measurements."""
        return None

    def check_outputs(self, n_outputs: int) -> None:
        """Refuse a network whose outputs cannot be this likelihood's f."""

    def check_targets(self, targets: np.ndarray, rows: np.ndarray, n_outputs: int, split: str) -> None:
        """Refuse targets that do not fit the outputs; `rows` are their row numbers in the data."""

    def fit_terms(self, f: Tensor, targets: Tensor) -> tuple[float | None, float]:
        """(Σ(y − f)² or None, log-likelihood if that sum is None): the terms of the evidence that measure the fit."""

    def log_probabilities(self, outputs: Gaussian) -> Tensor | None:
        """Log-probabilities of the classes (M, classes); None if there are no classes."""
        return None

    def nll(self, outputs: Gaussian, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each row (M,)."""

    def brier(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """Brier score of each row (M,)."""

    def calibration(self, outputs: Gaussian, targets: Tensor) -> Reliability:
        """One line of a calibration plot."""

    def uncertainty(self, outputs: Gaussian) -> Tensor:
        """How uncertain the prediction of each row is (M,); only the order of the rows counts."""

    def risk(self, outputs: Gaussian, targets: Tensor) -> Tensor:
        """The loss of each row if its prediction is used (M,)."""

    def row_columns(self, outputs: Gaussian) -> dict[str, Tensor]:
        """Further numbers of each row (M,), by name, that only this likelihood has."""
        return {}
