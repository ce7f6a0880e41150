"""Conformal intervals and sets: against literal loops, at the edges of the quantile, and their guarantee."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sublaplace_cli.core.gaussian import Gaussian, diagonal_covariance
from sublaplace_cli.core.likelihoods.binary import Binary
from sublaplace_cli.core.likelihoods.heteroscedastic import Heteroscedastic
from sublaplace_cli.core.likelihoods.multiclass import Multiclass
from sublaplace_cli.core.likelihoods.regression import Regression
from sublaplace_cli.core.tuning.conformal import (
    ConformalRule,
    class_scores,
    least_rows,
    quantile_rank,
    upper_quantile,
)

LEVELS = (0.5, 0.8, 0.9, 0.95)
HELD_OUT, NEW = 57, 23


def drawn(rows: int, outputs: int, seed: int) -> Gaussian:
    """Outputs with a full covariance for each row."""
    generator = torch.Generator().manual_seed(seed)
    mean = 2 * torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    root = torch.randn(rows, outputs, outputs, dtype=torch.float64, generator=generator)
    return Gaussian(mean, root @ root.mT)


def labels(rows: int, classes: int, seed: int) -> torch.Tensor:
    return torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(seed))


def numbers(rows: int, targets: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(rows, targets, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("own_noise", [False, True])
def test_intervals(level: float, targets: int, own_noise: bool) -> None:
    outputs = 2 * targets if own_noise else targets
    likelihood = Heteroscedastic() if own_noise else Regression(0.3)
    there, here, y = drawn(HELD_OUT, outputs, 0), drawn(NEW, outputs, 1), numbers(HELD_OUT, targets, 2)
    noise = [reference.own_noise(each.mean) if own_noise else 0.3 for each in (there, here)]
    totals = [(each.variance[:, :targets] + own).sqrt() for each, own in zip((there, here), noise, strict=True)]
    quantiles, lower, upper = reference.conformal_intervals(
        there.mean[:, :targets], totals[0], y, here.mean[:, :targets], totals[1], level
    )
    rule = ConformalRule(likelihood, level)
    fitted = rule.fit(there, y)
    torch.testing.assert_close(fitted, torch.tensor(quantiles, dtype=torch.float64), rtol=1e-12, atol=0)
    found = rule.region(here, fitted)
    torch.testing.assert_close(found.lower, lower, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.upper, upper, rtol=1e-12, atol=1e-12)
    z = stats.norm.ppf((1 + level) / 2)
    torch.testing.assert_close(found.std * z, (upper - lower) / 2, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.size, (upper - lower).mean(1), rtol=1e-12, atol=1e-12)
    new = numbers(NEW, targets, 3)
    expected = [[float(lower[i, t] <= new[i, t] <= upper[i, t]) for t in range(targets)] for i in range(NEW)]
    assert found.covered(new).tolist() == pytest.approx([sum(row) / targets for row in expected])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("classes", [2, 4])
def test_sets(level: float, by_class: bool, classes: int) -> None:
    likelihood = Binary() if classes == 2 else Multiclass()
    outputs = 1 if classes == 2 else classes
    there, here, y = drawn(4 * HELD_OUT, outputs, 4), drawn(NEW, outputs, 5), labels(4 * HELD_OUT, classes, 6)
    p, p_new = (likelihood.log_probabilities(each).exp() for each in (there, here))
    quantiles, sets = reference.conformal_sets(p, y, p_new, level, by_class)
    rule = ConformalRule(likelihood, level, by_class)
    fitted = rule.fit(there, y)
    assert len(fitted) == (classes if by_class else 1)
    assert (1 + fitted).expand(classes).tolist() == pytest.approx([float(own) for own in quantiles], rel=1e-9)
    found = rule.region(here, fitted)
    assert [set(torch.nonzero(row)[:, 0].tolist()) for row in found.members] == sets
    assert found.size.tolist() == [len(each) for each in sets]
    new = labels(NEW, classes, 7)
    assert found.covered(new).tolist() == [float(int(c) in each) for c, each in zip(new, sets, strict=True)]


@given(st.integers(1, 400), st.integers(1, 99))
def test_the_rank_is_that_of_the_level_as_written(n: int, percent: int) -> None:
    assert quantile_rank(n, percent / 100) == -(-(n + 1) * percent // 100)


@given(st.integers(1, 999))
def test_the_least_number_of_rows_is_the_first_that_is_enough(thousandths: int) -> None:
    level = thousandths / 1000
    n = least_rows(level)
    assert quantile_rank(n, level) <= n
    assert n == 1 or quantile_rank(n - 1, level) > n - 1


def test_known_ranks() -> None:
    assert [least_rows(level) for level in (0.5, 0.9, 0.95, 0.99, 0.999)] == [1, 9, 19, 99, 999]
    assert quantile_rank(99, 0.55) == 55, "100 · 0.55 is 55.00000000000001 in floating point"
    scores = torch.arange(19.0, 0.0, -1.0, dtype=torch.float64).unsqueeze(1)
    assert upper_quantile(scores, 0.95).tolist() == [19.0]
    assert upper_quantile(scores, 0.9).tolist() == [18.0]
    assert upper_quantile(scores[:18], 0.95).tolist() == [math.inf]
    assert upper_quantile(scores[:0], 0.5).tolist() == [math.inf]


def test_too_few_rows_give_everything() -> None:
    there, here = drawn(5, 3, 0), drawn(4, 3, 1)
    rule = ConformalRule(Multiclass(), 0.9)
    assert rule.region(here, rule.fit(there, labels(5, 3, 2))).size.tolist() == [3.0] * 4
    rule = ConformalRule(Regression(1.0), 0.9)
    assert rule.region(here, rule.fit(there, numbers(5, 3, 2))).size.tolist() == [math.inf] * 4


def test_equal_probabilities_are_ranked_by_number() -> None:
    log_p = torch.tensor([[0.25, 0.25, 0.5], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64).log()
    expected = torch.tensor([[0.5, 0.75, 0.0], [0.0, 1 / 3, 2 / 3]], dtype=torch.float64)
    torch.testing.assert_close(1 + class_scores(log_p), expected, rtol=1e-12, atol=1e-12)


def test_confident_rows_keep_their_order() -> None:
    """1 − 1e-30 rounds to 1: the scores still tell the classes apart, and a confident row does not get them all."""
    there = Gaussian.certain(torch.tensor([[70.0, 0.0, -5.0]], dtype=torch.float64))
    here = Gaussian.certain(torch.tensor([[71.0, 0.0, -5.0], [69.0, 0.0, -5.0]], dtype=torch.float64))
    rule = ConformalRule(Multiclass(), 0.5)
    quantile = rule.fit(there, torch.tensor([1]))
    assert float(1 + quantile[0]) == 1.0
    assert rule.region(here, quantile).members.tolist() == [[True, False, False], [True, True, False]]


@pytest.mark.parametrize("by_class", [False, True])
def test_no_set_is_empty(by_class: bool) -> None:
    """The top class of every held-out row is right; probabilities that do not sum to 1 exactly change nothing."""
    there, here = (Gaussian.certain(drawn(rows, 7, rows).mean) for rows in (400, 300))
    rule = ConformalRule(Multiclass(), 0.9, by_class)
    assert rule.region(here, rule.fit(there, there.mean.argmax(1))).size.tolist() == [1.0] * 300


def test_two_classes_are_told_apart() -> None:
    """A network that is wrong more often than the level permits: only its unsure rows get both classes."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 1, dtype=torch.float64, generator=generator)
    y = torch.bernoulli(torch.sigmoid(logits), generator=generator).long()[:, 0]
    rule, outputs = ConformalRule(Binary(), 0.95), Gaussian.certain(logits)
    region = rule.region(outputs, rule.fit(outputs, y))
    assert float(((logits[:, 0] > 0) == y).double().mean()) < 0.9
    assert 1.1 < float(region.size.mean()) < 1.6
    both = region.size == 2
    assert float(logits[both].abs().max()) < float(logits[~both].abs().min())


def test_a_network_without_variance_has_intervals_of_one_width() -> None:
    there, here = (Gaussian.certain(drawn(rows, 2, rows).mean) for rows in (HELD_OUT, NEW))
    y = numbers(HELD_OUT, 2, 0)
    rule = ConformalRule(Regression(0.01), 0.9)
    found = rule.region(here, rule.fit(there, y))
    for t in range(2):
        width = 2 * sorted((y - there.mean)[:, t].abs().tolist())[quantile_rank(HELD_OUT, 0.9) - 1]
        assert (found.upper - found.lower)[:, t].tolist() == pytest.approx([width] * NEW)


SPLITS, N_EACH = 400, 40  # random splits, and rows on either side of each


def within(rate: float, level: float, most: float) -> None:
    """At least the level and at most that, up to four standard errors.

    Coverage of one split varies twice: by its held-out rows (a Beta distribution, variance ≤ level(1 − level)/(n + 2))
    and by the new ones (binomial); the splits are independent.
    """
    error = math.sqrt(level * (1 - level) * (1 / (N_EACH + 2) + 1 / N_EACH) / SPLITS)
    assert level - 4 * error <= rate <= most + 4 * error


@pytest.mark.parametrize("level", [0.7, 0.9])
def test_intervals_cover_at_their_level_whatever_the_variances(level: float) -> None:
    """The standard deviations are wrong by a factor, and the errors not Gaussian."""
    generator = torch.Generator().manual_seed(0)
    rows = (SPLITS, 2 * N_EACH, 2)
    spread = torch.rand(rows, dtype=torch.float64, generator=generator) + 0.1
    error = spread * torch.empty(rows, dtype=torch.float64).exponential_(generator=generator)
    rule, rates = ConformalRule(Regression(0.01), level), []
    for own, y in zip(spread, error, strict=True):
        outputs = Gaussian(torch.zeros_like(own), diagonal_covariance(9 * own.square()))
        there, here = (outputs.rows(torch.arange(2 * N_EACH) // N_EACH == side) for side in (0, 1))
        rates.append(rule.region(here, rule.fit(there, y[:N_EACH])).covered(y[N_EACH:]).mean())
    within(float(torch.stack(rates).mean()), level, level + 1 / (N_EACH + 1))


@pytest.mark.parametrize("by_class", [False, True])
def test_sets_cover_at_least_at_their_level(by_class: bool) -> None:
    """The probabilities are far too certain; by class, every class is covered, however rare."""
    level, generator = 0.8, torch.Generator().manual_seed(1)
    truth = torch.tensor([0.0, 0.4, 0.8], dtype=torch.float64)
    rule, rates = ConformalRule(Multiclass(), level, by_class), []
    for _ in range(SPLITS):
        logits = truth + torch.randn(2 * N_EACH, 3, dtype=torch.float64, generator=generator)
        y = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        there, here = (Gaussian.certain(5 * each) for each in (logits[:N_EACH], logits[N_EACH:]))
        covered = rule.region(here, rule.fit(there, y[:N_EACH])).covered(y[N_EACH:])
        groups = [y[N_EACH:] == c for c in range(3)] if by_class else [torch.ones(N_EACH, dtype=torch.bool)]
        rates.append([float(covered[group].mean()) if group.any() else level for group in groups])
    for rate in torch.tensor(rates, dtype=torch.float64).mean(0).tolist():
        within(rate, level, 1.0)


def test_by_class_helps_the_class_that_is_always_missed() -> None:
    """Without it, the common classes alone satisfy the level."""
    generator = torch.Generator().manual_seed(2)
    y = (torch.rand(2000, generator=generator) < 0.05).long()
    outputs = Gaussian.certain(torch.randn(2000, 1, dtype=torch.float64, generator=generator) - 4)
    first, rare = torch.arange(2000) < 1000, (y == 1) & (torch.arange(2000) >= 1000)
    rates = []
    for by_class in (False, True):
        rule = ConformalRule(Binary(), 0.9, by_class)
        region = rule.region(outputs.rows(rare), rule.fit(outputs.rows(first), y[first]))
        rates.append(float(region.covered(y[rare]).mean()))
    assert rates[0] == 0.0
    assert rates[1] > 0.75
