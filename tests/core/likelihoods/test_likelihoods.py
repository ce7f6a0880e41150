"""W Wᵀ is the Hessian of the negative log-likelihood in the outputs."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import reference
import torch
from core.problems import assert_close, random_matrix
from torch.nn import functional as F

from sublaplace_cli.catalog import TASKS, load
from sublaplace_cli.core.gaussian import Gaussian
from sublaplace_cli.core.likelihoods.binary import Binary
from sublaplace_cli.core.likelihoods.heteroscedastic import Heteroscedastic
from sublaplace_cli.core.likelihoods.multiclass import SOFTMAX_RIDGE, Multiclass
from sublaplace_cli.core.likelihoods.regression import Regression
from sublaplace_cli.errors import UserError


def hessian(negative_log_likelihood, f: torch.Tensor) -> torch.Tensor:
    """(N, C, C) by autograd, one row at a time."""
    return torch.stack([torch.autograd.functional.hessian(negative_log_likelihood, row) for row in f])


def squared(W: torch.Tensor) -> torch.Tensor:
    return W @ W.transpose(1, 2)


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("sigma2", [1e-3, 0.4, 25.0])
def test_regression_root(C, sigma2):
    f, y = random_matrix(6, C), random_matrix(C, seed=1)
    expected = hessian(lambda row: ((y - row) ** 2).sum() / (2 * sigma2), f)
    assert_close(squared(Regression(sigma2).root(f)), expected, 1e-12)


def gaussian_nll(y):
    """Of one row of means and log-variances, by torch."""
    T = len(y)
    return lambda row: F.gaussian_nll_loss(row[:T], y, row[T:].exp(), full=True, reduction="sum", eps=0.0)


@pytest.mark.parametrize("T", [1, 3])
def test_the_root_of_means_and_log_variances_is_expected_over_the_targets(T):
    """Three nodes of Gauss–Hermite are exact: the Hessian is a polynomial of degree 2 in each target."""
    f = random_matrix(6, 2 * T)
    nodes = [(-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6)]
    expected = torch.zeros(6, 2 * T, 2 * T, dtype=torch.float64)
    for n, row in enumerate(f):
        for z, weight in nodes:
            y = row[:T] + z * (row[T:] / 2).exp()
            expected[n] += weight * torch.autograd.functional.hessian(gaussian_nll(y), row)
    found = squared(Heteroscedastic().root(f))
    assert_close(found, expected, 1e-10)  # entries that are 0 cancel over the nodes
    assert_close(found, reference.output_hessian("mean-and-log-variance", f, None), 1e-14)
    assert Heteroscedastic().root(f.float()).dtype == torch.float64


def test_nll_of_means_and_log_variances_is_that_of_torch():
    """Without a variance; with one it adds to the noise, and the uncertainty of the log-variances does not count."""
    f, y = random_matrix(7, 4), random_matrix(7, 2, seed=1)
    expected = torch.stack([gaussian_nll(target)(row) for row, target in zip(f, y, strict=True)])
    assert_close(Heteroscedastic().nll(Gaussian.certain(f), y), expected / 2, 1e-12)
    none, log_likelihood = Heteroscedastic().fit_terms(f, y)
    assert none is None
    assert log_likelihood == pytest.approx(-float(expected.sum()), rel=1e-12)
    variance = random_matrix(7, 4, seed=2).square()
    total = (variance[:, :2] + f[:, 2:].exp()).sqrt()
    found = Heteroscedastic().nll(Gaussian(f, torch.diag_embed(variance)), y)
    assert_close(found, -torch.distributions.Normal(f[:, :2], total).log_prob(y).mean(1), 1e-12)


@pytest.mark.parametrize("value", [231.0, -231.0, 1e300, math.inf, math.nan])
def test_a_log_variance_out_of_range_is_refused(value):
    f = torch.tensor([[0.0, 1.0], [0.0, value]], dtype=torch.float64)
    with pytest.raises(UserError, match="log-variance"):
        Heteroscedastic().root(f)
    with pytest.raises(UserError, match="log-variance"):
        Heteroscedastic().noise(Gaussian.certain(f))


def test_means_and_log_variances_fit_together():
    Heteroscedastic().check_outputs(4)
    with pytest.raises(UserError, match="even number of outputs, the model has 3"):
        Heteroscedastic().check_outputs(3)
    Heteroscedastic().check_targets(np.zeros((5, 2)), np.arange(5), 4, "test")
    with pytest.raises(UserError, match="the test rows have 4 target columns, the model has 4 outputs: 2 means"):
        Heteroscedastic().check_targets(np.zeros((5, 4)), np.arange(5), 4, "test")


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_binary_root(y):
    f = 3 * random_matrix(9, 1)
    target = torch.tensor([y], dtype=torch.float64)
    expected = hessian(lambda row: F.binary_cross_entropy_with_logits(row, target), f)
    assert_close(squared(Binary().root(f)), expected, 1e-12)


@pytest.mark.parametrize("y", [0, 3])
def test_multiclass_root(y):
    f = 2 * random_matrix(9, 4)
    expected = hessian(lambda row: F.cross_entropy(row.unsqueeze(0), torch.tensor([y])), f)
    assert_close(squared(Multiclass().root(f)), expected + 1e-6 * torch.eye(4, dtype=torch.float64), 1e-10)


@pytest.mark.parametrize("f", [0.0, 1.0, -40.0, 40.0, -700.0, 700.0])
def test_the_binary_weight_does_not_vanish(f):
    """p(1 − p) is 0 in float64 from f = 37 on; the closed form is right as far as float64 reaches."""
    with mpmath.workdps(50):
        exact = float(mpmath.exp(-abs(f)) / (1 + mpmath.exp(-abs(f))) ** 2)
    found = float(squared(Binary().root(torch.tensor([[f]], dtype=torch.float64))))
    assert found > 0
    assert found == pytest.approx(exact, rel=1e-12, abs=0)


def test_a_certain_softmax_keeps_its_ridge():
    H = squared(Multiclass().root(torch.tensor([[800.0, 0.0, -800.0]], dtype=torch.float64)))[0]
    assert_close(H, SOFTMAX_RIDGE * torch.eye(3, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_roots_agree_with_the_reference_and_are_double(task):
    f = 2 * random_matrix(8, 1 if task == "binary" else 3)
    likelihood = load(TASKS[task].entry)().with_noise(0.5)
    assert likelihood.root(f.float()).dtype == torch.float64
    assert_close(squared(likelihood.root(f)), reference.output_hessian(task, f, 0.5), 1e-10)


def test_rows_are_weighted_each_by_its_own_output():
    f = torch.tensor([[0.0], [math.log(3.0)]], dtype=torch.float64)
    assert_close(squared(Binary().root(f)).flatten(), torch.tensor([1 / 4, 3 / 16]), 1e-14)
