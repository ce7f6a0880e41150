"""Prior precision and noise variance of a run: numbers of the spec, or chosen by the data before they are used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..catalog import CALIBRATED
from ..core.likelihoods import Likelihood
from ..core.linalg import WARN_CONDITION
from ..errors import UserError
from ..files.spec.models import PosteriorSpec
from ..reporter import Reporter
from .project import prior_vector
from .run import Run

MARGLIK = "marglik"  # instead of a number: chosen by marginal likelihood
NOISE_FLOOR = 1e-3


@dataclass(frozen=True)
class Hyperparameters:
    """Settings that the posterior depends on besides the network and the rows."""

    prior_precision: Any  # a number, or {glob: number}
    prior: Tensor  # v (p,)
    likelihood: Likelihood  # with its noise variance
    tuned: Mapping[str, Any] | None = None  # how they were tuned, if they were
    by_fold: tuple[Hyperparameters, ...] = ()  # of each part of the test rows, tuned on the others

    @property
    def noise_variance(self) -> float | None:
        return self.likelihood.noise_variance


@dataclass(frozen=True)
class OpenHyperparameters:
    """Hyperparameters that the data determine: some prior precisions (by glob), and the noise variance."""

    globs: tuple[str, ...]
    numbers: tuple[float, ...]  # 1 where open
    open: tuple[bool, ...]
    noise_is_open: bool
    by_nll: bool  # by predictions on the validation rows, else by marginal likelihood
    is_mapping: bool

    @classmethod
    def of(cls, run: Run) -> OpenHyperparameters:
        asked, noise = run.project.spec.posterior.prior_precision, run.project.spec.posterior.noise_variance
        by_nll = hasattr(asked, "tune")
        if by_nll and noise == MARGLIK:
            raise UserError("posterior: prior_precision {tune: nll} and noise_variance marglik cannot be combined")
        by_glob: Mapping[str, Any]
        by_glob = asked if isinstance(asked, Mapping) else {"*": MARGLIK if by_nll else asked}
        is_open = tuple(value == MARGLIK for value in by_glob.values())
        numbers = tuple(1.0 if value == MARGLIK else float(value) for value in by_glob.values())
        return cls(tuple(by_glob), numbers, is_open, noise == MARGLIK, by_nll, isinstance(asked, Mapping))

    @property
    def is_settled(self) -> bool:
        return not any(self.open) and not self.noise_is_open

    def prior_precision(self, numbers: tuple[float, ...]) -> Any:
        """The prior precision as the spec writes it: one number, or by glob."""
        return dict(zip(self.globs, numbers, strict=True)) if self.is_mapping else numbers[0]


def settled_by_spec(run: Run, train_outputs: Tensor | None) -> Hyperparameters:
    """Prior and noise of the spec; prior precisions that are open are 1."""
    prior_precision = run.project.spec.posterior.prior_precision
    prior = prior_vector(prior_precision, run.layout, run.project.loaded.path).to(run.device)
    return Hyperparameters(prior_precision, prior, with_noise(run, train_outputs))


def noise_is_from_train(posterior: PosteriorSpec) -> bool:
    """Whether the noise variance starts as the residual mean square of the training rows."""
    return posterior.noise_variance in ("auto", MARGLIK, CALIBRATED)


def with_noise(run: Run, train_outputs: Tensor | None) -> Likelihood:
    """The likelihood with σ₀²: a number from the spec, or the residual mean square of the rows of a split."""
    likelihood, asked = run.unit_likelihood, run.project.spec.posterior.noise_variance
    if likelihood.noise_variance is None:
        return likelihood
    if isinstance(asked, (int, float)):
        return likelihood.with_noise(float(asked))
    name = getattr(asked, "from_", "train")
    targets = run.targets(name)
    if targets is None:
        raise UserError(f"posterior.noise_variance: the {name} rows have no targets to take it from")
    f = train_outputs if train_outputs is not None else run.outputs(name)
    mean_square = float((targets - f).square().mean())
    if not math.isfinite(mean_square):
        raise UserError(f"posterior.noise_variance: the residuals of the {name} rows are too large to be squared")
    if name == "train":
        return likelihood.with_noise(max(mean_square, NOISE_FLOOR))
    if mean_square <= 0:
        raise UserError(f"posterior.noise_variance: the residuals of the {name} rows are all 0", hint="give a number")
    return likelihood.with_noise(mean_square)


def posterior_facts(settled: Hyperparameters) -> dict[str, object]:
    """Hyperparameters for the metadata of a posterior."""
    prior = settled.prior_precision
    ordered = list(prior.items()) if isinstance(prior, dict) else prior  # in order: the first match counts
    return {"noise_variance": settled.noise_variance, "prior_precision": ordered}


def warn_if_ill_conditioned(reporter: Reporter, name: str, condition: float) -> None:
    """Warn if digits are being lost."""
    if condition > WARN_CONDITION:
        reporter.warn(
            f"{name}: the largest eigenvalue of the data term is {condition:.2g} times the prior precision; digits "
            f"are being lost. Raise posterior.prior_precision or posterior.noise_variance"
        )
