"""One positive number, such as a factor on all variances, chosen by targets of rows that it is not used for."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..gaussian import Gaussian
from ..likelihoods import Likelihood

Vary = Callable[[Gaussian, float | Tensor], Gaussian]  # outputs with one factor, or one per row
# Factors are searched on a logarithmic grid, first in large steps, then in smaller ones around the best.
PER_DECADE = 8
LARGEST_POWER = 8 * PER_DECADE  # from 1e-8 to 1e8
POWER_STEPS = (2 * PER_DECADE, PER_DECADE // 2, 1)
FOLD_SEED = 0
MOST_ROUNDS = 20  # of fitting two factors in turn
SETTLED = 1e-3  # relative change of the second one from which on they stay


@dataclass(frozen=True)
class Factor:
    """The best factor by some rows."""

    value: float
    at_a_bound: bool
    noise: float = 1.0  # the factor on the noise variance that was fitted with it, if it was


def fold_numbers(n_rows: int, n_folds: int) -> Tensor:
    """A fold for each row, of equal sizes and independent of the order in which the rows are stored."""
    order = torch.randperm(n_rows, generator=torch.Generator().manual_seed(FOLD_SEED))
    return order % n_folds


def best_factors(row_losses: Callable[[float], Tensor], groups: list[Tensor]) -> list[Factor]:
    """For each group of rows (a mask) the factor with the least sum of `row_losses(factor)` over it.

    The groups share their evaluations: the factors of all folds cost little more than one.
    """
    known: dict[int, list[float]] = {}  # sums of every group, by the power of the factor

    def sums(power: int) -> list[float]:
        if power not in known:
            losses = row_losses(_factor(power))
            known[power] = [_finite(float(losses[group].sum())) for group in groups]
        return known[power]

    best = [0] * len(groups)
    width = LARGEST_POWER
    for step in POWER_STEPS:
        for number, centre in enumerate(best.copy()):
            near = range(max(-LARGEST_POWER, centre - width), min(LARGEST_POWER, centre + width) + 1, step)
            # On a plateau the factor nearest to 1: where nothing is uncertain, nothing changes.
            best[number] = min(near, key=lambda power: (sums(power)[number], abs(power)))
        width = step
    return [_refined(power, [sums(p)[i] for p in _around(power)]) for i, power in enumerate(best)]


def _factor(power: float) -> float:
    return 10 ** (power / PER_DECADE)


def _finite(value: float) -> float:
    return value if abs(value) < float("inf") else float("inf")


def _around(power: int) -> tuple[int, int, int]:
    return max(-LARGEST_POWER, power - 1), power, min(LARGEST_POWER, power + 1)


def _refined(power: int, losses: list[float]) -> Factor:
    """The minimum of the parabola through the best point of the grid and its neighbours."""
    if abs(power) == LARGEST_POWER:
        return Factor(_factor(power), at_a_bound=True)
    left, middle, right = losses
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if 0 < bend < float("inf") else 0.0
    return Factor(_factor(power + shift), at_a_bound=False)


def scaled_variance(outputs: Gaussian, factor: float | Tensor) -> Gaussian:
    """All covariances times the factor."""
    return outputs.scaled(factor)


def with_temperature(outputs: Gaussian, factor: float | Tensor) -> Gaussian:
    """The logits divided by a temperature, the root of the factor."""
    by_row = torch.as_tensor(factor, dtype=torch.float64, device=outputs.mean.device).reshape(-1, 1)
    return Gaussian(outputs.mean / by_row.sqrt(), outputs.covariance / by_row.unsqueeze(2))


@dataclass(frozen=True)
class Calibration:
    """A factor as it was fitted: by all held-out rows, and for each fold by the others."""

    factor: Factor
    by_fold: tuple[float, ...]  # empty if the factor was fitted to other rows than those that it is used for
    common: Gaussian  # the outputs with one factor for all rows


@dataclass(frozen=True)
class Calibrator:
    """Fits factors to the targets of held-out rows: other rows than those to predict, or the same in folds."""

    likelihood: Likelihood
    targets: Tensor  # of the held-out rows
    n_folds: int | None  # None: they are other rows than those to predict
    fits_noise: bool = False  # with a second factor, on the noise variance

    def together(self, held_out: Gaussian, vary: Vary = scaled_variance) -> Factor:
        """By all held-out rows: what a posterior keeps for new rows."""
        everything = torch.ones(len(held_out.mean), dtype=torch.bool, device=held_out.mean.device)
        return self._best(held_out, vary, [everything])[0]

    def calibrated(
        self, outputs: Gaussian, held_out: Gaussian, vary: Vary = scaled_variance
    ) -> tuple[Gaussian, Calibration]:
        """The outputs, each row with factors that have not seen its target."""
        if self.n_folds is None:
            factor = self.together(held_out, vary)
            common = vary(outputs, factor.value).with_noise(factor.noise)
            return common, Calibration(factor, (), common)
        fold = fold_numbers(len(outputs.mean), self.n_folds).to(outputs.mean.device)
        groups = [torch.ones_like(fold, dtype=torch.bool), *(fold != number for number in range(self.n_folds))]
        together, *factors = self._best(outputs, vary, groups)
        by_fold = torch.tensor([[own.value, own.noise] for own in factors], dtype=torch.float64, device=fold.device)
        value, noise = by_fold[fold].unbind(1)  # of each row
        common = vary(outputs, together.value).with_noise(together.noise)
        own = vary(outputs, value).with_noise(noise if self.fits_noise else 1.0)
        return own, Calibration(together, tuple(by_fold[:, 0].tolist()), common)

    def _best(self, held_out: Gaussian, vary: Vary, groups: list[Tensor]) -> list[Factor]:
        if self.fits_noise:
            return [self._best_two(held_out, vary, group) for group in groups]
        return best_factors(lambda factor: self._losses(vary(held_out, factor)), groups)

    def _best_two(self, held_out: Gaussian, vary: Vary, group: Tensor) -> Factor:
        """The factors on the variances and on the noise, each for the other's best value, in turn."""
        found, noise = Factor(1.0, at_a_bound=False), 1.0
        for _ in range(MOST_ROUNDS):
            (found,) = best_factors(self._at_noise(held_out, vary, noise), [group])
            (other,) = best_factors(self._at_variance(vary(held_out, found.value)), [group])
            before, noise = noise, other.value
            if abs(noise / before - 1) < SETTLED:
                break
        return replace(found, noise=noise)

    def _at_noise(self, held_out: Gaussian, vary: Vary, noise: float) -> Callable[[float], Tensor]:
        return lambda factor: self._losses(vary(held_out, factor).with_noise(noise))

    def _at_variance(self, held_out: Gaussian) -> Callable[[float], Tensor]:
        return lambda noise: self._losses(held_out.with_noise(noise))

    def _losses(self, outputs: Gaussian) -> Tensor:
        return self.likelihood.nll(outputs, self.targets)
