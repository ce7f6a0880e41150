"""The order of rows: ranks and correlations against scipy, risk by coverage against all orders of the rows."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sublaplace_cli.core.ranks import mean_ranks, rank_correlation, risk_coverage

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=30)


def columns(pairs) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(pairs, dtype=torch.float64).unbind(1)


@given(PAIRS)
def test_ranks_are_those_of_scipy(pairs):
    values, _ = columns(pairs)
    assert mean_ranks(values).tolist() == stats.rankdata(values).tolist()


@given(PAIRS)
def test_the_correlation_is_that_of_scipy(pairs):
    a, b = columns(pairs)
    found = rank_correlation(a, b)
    if len(set(a.tolist())) == 1 or len(set(b.tolist())) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


@given(PAIRS)
def test_the_mean_risk_is_that_of_the_reference(pairs):
    uncertainty, risk = columns(pairs)
    assert float(risk_coverage(uncertainty, risk).mean()) == pytest.approx(reference.aurc(uncertainty, risk), rel=1e-12)


def test_rows_that_tie_come_in_every_order():
    uncertainty, risk = columns([(2, 1), (0, 0), (2, 5), (1, 3), (2, 0), (1, 8)])
    sorted_ones = [
        [risk[i] for i in order]
        for order in permutations(range(6))
        if all(uncertainty[a] <= uncertainty[b] for a, b in pairwise(order))
    ]
    assert len(sorted_ones) == 12
    for i, found in enumerate(risk_coverage(uncertainty, risk).tolist(), start=1):
        means = [float(sum(order[:i])) / i for order in sorted_ones]
        assert found == pytest.approx(sum(means) / 12, rel=1e-12)


def test_values_that_differ_by_rounding_tie():
    noisy = torch.tensor([0.3, 0.1 + 0.2, 0.3 * (1 - 1e-15)], dtype=torch.float64)
    assert mean_ranks(noisy).tolist() == [2.0, 2.0, 2.0]
    assert risk_coverage(noisy, torch.tensor([0.0, 3.0, 6.0]).double()).tolist() == [3.0, 3.0, 3.0]
