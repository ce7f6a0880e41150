"""Random sums: equal groups, fixed random numbers, the sums of a dense matrix."""

from __future__ import annotations

import pytest
import torch
from core.problems import assert_close, random_matrix

from sublaplace_cli.core.features.groups import Groups, folded, random_bins


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 8), (8, 8), (9, 8), (1003, 10), (64, 1)])
def test_groups_are_of_equal_size(n, k):
    bins, signs = random_bins(n, k, 3, 1)
    sizes = bins.bincount(minlength=k)
    assert len(bins) == len(signs) == n
    assert sizes.sum() == n
    assert sizes.max() <= -(-n // k)
    assert set(signs.tolist()) <= {-1.0, 1.0}


def test_random_numbers_depend_on_all_of_the_seed_and_are_those_of_every_version():
    bins, signs = random_bins(6, 10, 0, 0)
    assert torch.equal(bins, random_bins(6, 10, 0, 0)[0])
    others = [random_bins(6, 10, *seed)[0] for seed in [(0, 1), (1, 0), (0, 0, 1)]]
    assert all(not torch.equal(bins, other) for other in others)
    assert bins.tolist() == [5, 2, 1, 0, 7, 8]
    assert signs.tolist() == [1.0, 1.0, -1.0, 1.0, 1.0, -1.0]


def test_signs_are_half_of_each():
    signs = random_bins(10_000, 100, 5)[1]
    assert abs(float(signs.mean())) < 4 / 100


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 9), (23, 7), (700, 13)])
def test_sums_are_those_of_the_matrix(n, k):
    bins = torch.randint(0, k, (n,), generator=torch.Generator().manual_seed(0))
    factor, x = random_matrix(n, seed=1), random_matrix(3, 2, n, seed=2)
    phi = torch.zeros(k, n, dtype=torch.float64)
    phi[bins, torch.arange(n)] = factor
    groups, kept = Groups.of(bins, factor, k), x.clone()
    assert_close(groups.sums(x), x @ phi.T, 1e-12)
    total = random_matrix(3, 2, k, seed=3)
    expected = total + x @ phi.T
    groups.add_to(total, x)
    assert_close(total, expected, 1e-12)
    assert torch.equal(x, kept)


def test_a_group_without_members_is_zero():
    groups = Groups.of(torch.tensor([2, 2, 0]), torch.ones(3, dtype=torch.float64), 4)
    assert groups.sums(torch.tensor([1.0, 2.0, 4.0])).tolist() == [4.0, 0.0, 3.0, 0.0]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8])
def test_folding_sums_an_axis(length):
    x = random_matrix(2, length, 3)
    assert_close(folded(x.clone(), 1), x.sum(1), 1e-13)
