"""Calibration errors against dense references, other implementations, and cases with a known answer."""

from __future__ import annotations

import time

import pytest
import reference
import torch

from sublaplace_cli.core.calibration import (
    LEAST_BANDWIDTH,
    STD_BINS,
    normalised_calibration_error,
    smooth_calibration_error,
)


def uniform(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def classified(rows: int, power: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities from 0.5 to 1, and classes that are right with probability p^power."""
    i = torch.arange(rows, dtype=torch.float64)
    p = 0.5 + 0.5 * (i * 0.6180339887 % 1)
    return p, (i * 0.7548776662 % 1 < p**power).double()


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rows", [1, 2, 30, 90])
def test_smooth_error_is_that_of_the_reference(rows, power):
    p, y = classified(rows, power)
    # The reference takes the integral of a function with kinks over 4,000 steps.
    assert smooth_calibration_error(p, y) == pytest.approx(reference.smooth_ece(p, y), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(("power", "theirs"), [(1.0, 0.011549), (2.0, 0.164770), (0.5, 0.110738)])
def test_smooth_error_is_that_of_its_authors(power, theirs):
    """Of their package relplot 1.0.3, which halves its interval 10 times, on a grid of 200 points."""
    assert smooth_calibration_error(*classified(1000, power)) == pytest.approx(theirs, abs=5e-4)


def test_smooth_error_of_probabilities_at_the_ends():
    """All residuals are at one end: whatever the bandwidth, their mean is all that is left."""
    ones = torch.ones(8, dtype=torch.float64)
    half = torch.tensor([1.0, 0.0] * 4, dtype=torch.float64)
    assert smooth_calibration_error(ones, half) == pytest.approx(0.5, abs=1e-8)
    assert smooth_calibration_error(0 * ones, half) == pytest.approx(0.5, abs=1e-8)
    assert smooth_calibration_error(ones, ones) == 0.0


def test_smooth_error_below_the_least_bandwidth_is_small():
    p = 1 - 1e-5 * uniform(500)
    assert 0 < smooth_calibration_error(p, torch.ones_like(p)) < LEAST_BANDWIDTH


@pytest.mark.parametrize(("rows", "seconds"), [(10_000, 0.1), (100_000, 0.4)])
def test_smooth_error_is_quick(rows, seconds):
    p, y = classified(rows, 1.0)
    smooth_calibration_error(p, y)  # plans of the transform
    started = time.thread_time()
    smooth_calibration_error(p, y)
    assert time.thread_time() - started < seconds


@pytest.mark.parametrize("n", [1, 7, 10, 95, 400])
def test_normalised_error_is_that_of_the_reference(n):
    error, std = 2 * uniform(n) - 1, 0.1 + uniform(n, seed=1)
    assert normalised_calibration_error(error, std) == pytest.approx(reference.ence(error, std), rel=1e-12)
    tied = (4 * std).ceil()
    assert normalised_calibration_error(error, tied) == pytest.approx(reference.ence(error, tied), rel=1e-12)


def test_normalised_error_by_bins_of_equal_size():
    """As it is usually written: sort, cut into parts of equal size, mean over them."""
    error, std = 2 * uniform(20 * STD_BINS) - 1, 0.1 + uniform(20 * STD_BINS, seed=1)
    order = std.argsort()
    rmse = error[order].reshape(STD_BINS, 20).square().mean(1).sqrt()
    rmv = std[order].reshape(STD_BINS, 20).square().mean(1).sqrt()
    expected = float(((rmv - rmse).abs() / rmv).mean())
    assert normalised_calibration_error(error, std) == pytest.approx(expected, rel=1e-12)


def test_normalised_error_of_known_ratios():
    std = 0.1 + uniform(1000)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(500)
    assert normalised_calibration_error(sign * std, std) == pytest.approx(0.0, abs=1e-12)
    assert normalised_calibration_error(3 * sign * std, std) == pytest.approx(2.0, rel=1e-12)
