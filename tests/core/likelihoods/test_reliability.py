"""Points of a calibration plot, against direct counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from sublaplace_cli.core.likelihoods.reliability import HISTOGRAM_BINS, LEVELS, MOST_BINS, by_confidence, by_level


def drawn(M, seed=0):
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.3, 1.0, M)
    return torch.tensor(confidence), torch.tensor((generator.uniform(size=M) < confidence).astype(float))


@pytest.mark.parametrize(("M", "n_bins"), [(1, 1), (19, 1), (20, 2), (89, 8), (1000, MOST_BINS)])
def test_bins_of_equal_mass(M, n_bins):
    confidence, correct = drawn(M)
    found = by_confidence(confidence, correct)
    order = np.argsort(confidence.numpy())
    parts = np.array_split(order, n_bins)
    assert len(found.predicted) == n_bins
    sizes = {len(part) for part in parts}
    if len(sizes) == 1:  # otherwise the larger bins may be other ones
        assert found.predicted == pytest.approx([confidence.numpy()[part].mean() for part in parts], abs=1e-14)
        assert found.found == pytest.approx([correct.numpy()[part].mean() for part in parts], abs=1e-14)
    assert sum(found.counts) == M
    assert found.counts == np.histogram(confidence, HISTOGRAM_BINS, (0, 1))[0].tolist()


def test_equal_confidences_share_a_bin():
    confidence = torch.tensor([0.5] * 5 + [1.0] * 95, dtype=torch.float64)
    correct = torch.cat([torch.ones(50), torch.zeros(50)]).double()
    found = by_confidence(confidence, correct)
    assert found.predicted == [0.5, 1.0]
    assert found.found == pytest.approx([1.0, 45 / 95])


def test_the_intervals_are_those_of_wilson():
    confidence, correct = drawn(150)
    found = by_confidence(confidence, correct)
    assert len(found.found) == MOST_BINS
    for share, low, high in zip(found.found, found.low, found.high, strict=True):
        expected = stats.binomtest(round(10 * share), 10).proportion_ci(2 * stats.norm.cdf(1) - 1, method="wilson")
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_all_right_is_not_certain():
    found = by_confidence(torch.full((12,), 0.9, dtype=torch.float64), torch.ones(12, dtype=torch.float64))
    assert found.found == [1.0]
    assert found.low[0] < 1.0
    assert found.high[0] == pytest.approx(1.0)


def test_coverage_of_central_intervals():
    z = torch.tensor(np.abs(np.random.default_rng(1).standard_t(3, size=(50, 2))))
    found = by_level(z)
    for level, share in zip(LEVELS, found.found, strict=True):
        assert share == pytest.approx(float((z <= stats.norm.ppf(0.5 + level / 2)).double().mean()), abs=1e-14)
    assert found.predicted == list(LEVELS)
    assert sum(found.counts) == 100
    narrow, wide = by_level(z[:, :1]), by_level(z[:, :1].repeat(1, 9))
    assert narrow.low == pytest.approx(wide.low), "nine times the same target is no further evidence"
