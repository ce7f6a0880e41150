"""Factors fitted to the likelihood, against a fine search; folds."""

from __future__ import annotations

import pytest
import torch
from core.problems import random_matrix

from sublaplace_cli.core.gaussian import Gaussian
from sublaplace_cli.core.likelihoods.binary import Binary
from sublaplace_cli.core.likelihoods.regression import Regression
from sublaplace_cli.core.tuning.calibration import Calibrator, best_factors, fold_numbers

ROWS = 60
EVERYTHING = torch.ones(ROWS, dtype=torch.bool)


def losses_of(task: str, scale: float):
    """Targets drawn with `scale` times the predicted standard deviation."""
    f, std = random_matrix(ROWS, 1, seed=1), 0.2 + random_matrix(ROWS, 1, seed=2).abs()
    outputs = Gaussian(f, torch.diag_embed(std.square()))
    if task == "regression":
        targets = f + scale * std * random_matrix(ROWS, 1, seed=3)
        likelihood = Regression(1e-6)
    else:
        truth = 3 * f + scale * std * random_matrix(ROWS, 1, seed=3)
        outputs = Gaussian(3 * f, outputs.covariance)
        targets = (
            torch.rand(ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) < truth[:, 0].sigmoid()
        ).long()
        likelihood = Binary()
    return lambda c: likelihood.nll(outputs.scaled(c), targets)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("task", ["regression", "binary"])
def test_the_best_factor_is_that_of_a_fine_search(task, scale):
    losses = losses_of(task, scale)
    calls = []

    def counted(c: float):
        calls.append(c)
        return losses(c)

    (found,) = best_factors(counted, [EVERYTHING])
    fine = {c: float(losses(c).sum()) for c in torch.logspace(-8, 8, 3001, dtype=torch.float64).tolist()}
    best = min(fine.values())
    at = float(losses(found.value).sum())
    assert at - best <= 1e-5 * max(1.0, abs(best))
    assert len(calls) <= 30, "each is an integral over all rows"
    assert len(set(calls)) == len(calls)


def test_each_group_has_its_own_factor():
    losses = losses_of("regression", 1.0)
    fold = fold_numbers(ROWS, 3)
    groups = [fold != number for number in range(3)]
    together = best_factors(losses, groups)
    alone = [best_factors(losses, [group])[0] for group in groups]
    assert together == alone
    assert len({factor.value for factor in together}) == 3


def test_a_factor_at_a_bound_and_one_that_does_not_matter():
    (rising,) = best_factors(lambda c: torch.full((3,), c, dtype=torch.float64), [torch.ones(3, dtype=torch.bool)])
    assert rising.value == pytest.approx(1e-8)
    assert rising.at_a_bound
    (level,) = best_factors(lambda c: torch.ones(3, dtype=torch.float64), [torch.ones(3, dtype=torch.bool)])
    assert (level.value, level.at_a_bound) == (1.0, False)


def test_losses_that_are_not_finite_are_avoided():
    (found,) = best_factors(
        lambda c: torch.tensor([float("nan") if c > 1e3 else abs(c - 1)], dtype=torch.float64),
        [torch.ones(1, dtype=torch.bool)],
    )
    assert found.value == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("rows", "folds"), [(10, 5), (11, 5), (3, 2)])
def test_folds_are_of_equal_size_and_always_the_same(rows, folds):
    fold = fold_numbers(rows, folds)
    sizes = torch.bincount(fold, minlength=folds)
    assert int(sizes.max() - sizes.min()) <= 1
    assert torch.equal(fold, fold_numbers(rows, folds))


@pytest.mark.parametrize(("scale", "noise"), [(1.0, 1.0), (3.0, 0.2), (0.4, 2.0)])
def test_two_factors_are_those_of_a_fine_search(scale, noise):
    """One on the variances, one on the noise: rows with a large σ tell them apart."""
    rows = 400
    f, std = random_matrix(rows, 1, seed=1), torch.logspace(-2, 1, rows, dtype=torch.float64).unsqueeze(1)
    total = (scale * std.square() + noise).sqrt()
    targets = f + total * random_matrix(rows, 1, seed=3)
    outputs = Gaussian(f, torch.diag_embed(std.square()))
    likelihood = Regression(1.0)
    found = Calibrator(likelihood, targets, None, fits_noise=True).together(outputs)

    def loss(c: float, t: float) -> float:
        return float(likelihood.nll(outputs.scaled(c).with_noise(t), targets).mean())

    grid = torch.logspace(-2, 2, 161, dtype=torch.float64).tolist()
    best = min(loss(c, t) for c in grid for t in grid)
    assert loss(found.value, found.noise) <= best + 1e-4
    assert found.value == pytest.approx(scale, rel=0.3)
    assert found.noise == pytest.approx(noise, rel=0.3)


def test_two_factors_in_folds_have_not_seen_their_rows():
    rows, folds = 60, 3
    f, std = random_matrix(rows, 1, seed=1), 0.2 + random_matrix(rows, 1, seed=2).abs()
    targets, outputs = f + random_matrix(rows, 1, seed=3), Gaussian(f, torch.diag_embed(std.square()))
    calibrator = Calibrator(Regression(0.5), targets, folds, fits_noise=True)
    own, calibration = calibrator.calibrated(outputs, outputs)
    fold = fold_numbers(rows, folds)
    for number in range(folds):
        others = fold != number
        alone = Calibrator(Regression(0.5), targets[others], None, fits_noise=True)
        expected = alone.together(Gaussian(f[others], outputs.covariance[others]))
        here = (fold == number).nonzero().flatten()
        assert own.noise_factor[here].flatten().tolist() == pytest.approx([expected.noise] * len(here), rel=1e-9)
        assert torch.allclose(own.covariance[here], expected.value * outputs.covariance[here], rtol=1e-9)
    assert calibration.common.noise_factor == calibration.factor.noise
