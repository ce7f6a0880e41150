"""Random combinations of the outputs: the exact Hessian on average, and for as many groups as outputs."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from core.problems import assert_close, random_matrix

from sublaplace_cli.core.likelihoods import Likelihood
from sublaplace_cli.core.likelihoods.combinations import balanced_groups
from sublaplace_cli.core.likelihoods.multiclass import Multiclass

# from nearly uniform to so confident that the ridge is most of H
sharpness = pytest.mark.parametrize("sharpness", [0.1, 3.0, 40.0])
LIKELIHOOD = Multiclass()


def signs_of(f: torch.Tensor, seed: int) -> torch.Tensor:
    return 2.0 * torch.randint(0, 2, f.shape, generator=torch.Generator().manual_seed(seed)).double() - 1


@sharpness
@pytest.mark.parametrize("count", [7, 9])
def test_a_group_for_every_output_is_exact(sharpness, count):
    f = sharpness * random_matrix(5, 7)
    U = LIKELIHOOD.combinations(f, signs_of(f, 0), count)
    assert_close(U @ U.mT, reference.output_hessian("multiclass", f, 1.0))


@sharpness
@pytest.mark.parametrize("combine", [Multiclass.combinations, Likelihood.combinations], ids=["closed form", "any root"])
def test_the_average_over_all_signs_is_the_hessian(sharpness, combine):
    """2⁶ sign patterns: the expectation itself."""
    f = sharpness * random_matrix(3, 6)
    total = torch.zeros(3, 6, 6, dtype=torch.float64)
    for pattern in range(2**6):
        signs = torch.tensor([1.0 if pattern >> c & 1 else -1.0 for c in range(6)], dtype=torch.float64).expand(3, 6)
        U = combine(LIKELIHOOD, f, signs, 2)
        assert U.shape == (3, 6, 2)
        total += U @ U.mT / 2**6
    assert_close(total, reference.output_hessian("multiclass", f, 1.0), 1e-8)


def test_a_heavy_column_has_a_group_of_its_own():
    weights = torch.tensor([[1.0, 1.0, 9.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    groups = balanced_groups(weights, 3)
    assert int((groups[0] == groups[0, 2]).sum()) == 1
    assert sorted(groups[1].bincount().tolist()) == [2, 2, 2]
    assert math.isclose(float(weights.sum()), 20.0)  # not changed


def test_a_row_does_not_depend_on_the_others():
    f = 4 * random_matrix(9, 12)
    signs = signs_of(f, 1)
    whole = LIKELIHOOD.combinations(f, signs, 4)
    alone = torch.cat([LIKELIHOOD.combinations(f[i : i + 1], signs[i : i + 1], 4) for i in range(9)])
    assert_close(alone, whole, 1e-12)
