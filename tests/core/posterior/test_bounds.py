"""Bounds of the full posterior: they hold, they close when all rows are there, and the interval holds the distance."""

from __future__ import annotations

import pytest
import torch
from core.problems import PRIORS, assert_close, solved, subset

from sublaplace_cli.core.gaussian import Gaussian
from sublaplace_cli.core.likelihoods.regression import Regression
from sublaplace_cli.core.metrics import w2_high, w2_low
from sublaplace_cli.core.omega.row_sums import own_products
from sublaplace_cli.core.posterior.bounds import MOST_SETS, bracket
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.path import fit_subnet
from sublaplace_cli.core.prediction import Comparison, FullNumbers, Prediction
from sublaplace_cli.errors import NumericsError

SOME = ["linear", "mlp-3-outputs", "conv-binary", "mlp-multiclass", "attention"]
PLENTY = 2**30


def mean_distances(variance: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> tuple[float, float]:
    """(w2_low, w2_high) of these variances (M, C), given bounds of the full posterior's standard deviation."""
    prediction = Prediction("made", None, Gaussian(torch.zeros_like(variance), torch.diag_embed(variance)), None)
    known = Comparison(Regression(), len(variance), None, None, FullNumbers(std_bounds=(low, high)))
    return w2_low(prediction, known), w2_high(prediction, known)


def distances(variance: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for each entry alone."""
    entries = zip(variance.flatten(), low.flatten(), high.flatten(), strict=True)
    found = [mean_distances(*(t.reshape(1, 1) for t in entry)) for entry in entries]
    least, most = torch.tensor(found, dtype=torch.float64).T
    return least.reshape(variance.shape), most.reshape(variance.shape)


@pytest.mark.parametrize(("name", "prior"), [(n, prior) for n in SOME for prior in PRIORS])
def test_the_full_variance_lies_between_the_bounds(name, prior):
    problem = solved(name, prior)
    precision, N = problem.precision, len(problem.J)
    products = own_products(problem.test, problem.v, PLENTY)
    full = fit_full(precision).variance(problem.test)
    subnets = [fit_subnet(precision, subset(problem.p, k)).variance(problem.test) for k in (1, problem.p // 2)]
    for rows in (1, N // 3, N - 1):
        bounds = bracket(precision, problem.test, products, rows, subnets)
        assert bounds.n_sets == min(N // rows, MOST_SETS)
        assert bool((bounds.low <= full * (1 + 1e-9)).all())
        assert bool((bounds.high >= full * (1 - 1e-9)).all())
        for variance in subnets:
            std = variance.sqrt()
            low, high = bounds.low.sqrt(), bounds.high.sqrt()
            least, most = distances(variance, low, high)
            assert_close(least, low - std, 1e-9)
            assert_close(most, high - std, 1e-9)
            exact = float((full.sqrt() - std).mean())
            mean_least, mean_most = mean_distances(variance, low, high)
            assert mean_least == pytest.approx(float(least.mean()), rel=1e-12)
            assert mean_most == pytest.approx(float(most.mean()), rel=1e-12)
            assert mean_least <= exact * (1 + 1e-9)
            assert exact <= mean_most * (1 + 1e-9)
    everything = bracket(precision, problem.test, products, N, [full])
    assert_close(everything.high, full, 1e-9)
    assert_close(everything.low, full, 1e-9)


def test_a_lower_bound_above_the_upper_one_is_an_alarm():
    problem = solved("mlp")
    products = own_products(problem.test, problem.v, PLENTY)
    too_much = products.diagonal(dim1=1, dim2=2) * 2
    with pytest.raises(NumericsError, match="Theorem 1"):
        bracket(problem.precision, problem.test, products, 5, [too_much])


def test_distances_to_an_interval():
    low, high = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([2.0, 2.0, 2.0])
    least, most = distances(torch.tensor([0.5, 1.25, 4.0]).square(), low, high)
    assert least.tolist() == [0.5, 0.0, 2.0]
    assert most.tolist() == [1.5, 0.75, 3.0]
