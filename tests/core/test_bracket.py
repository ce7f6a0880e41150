"""Bounds of the full posterior: they hold, they close when all rows are there, and the interval holds the distance."""

from __future__ import annotations

import pytest
import torch
from core.problems import PRIORS, assert_close, solved, subset

from sublaplace_cli.core.metrics import distance_bounds
from sublaplace_cli.core.omega.row_sums import row_norms
from sublaplace_cli.core.posterior.bounds import MOST_SETS, bracket
from sublaplace_cli.core.posterior.fitting import fit_full, fit_subnet
from sublaplace_cli.core.posterior.posterior import subnet_variance
from sublaplace_cli.errors import NumericsError

SOME = ["linear", "mlp-3-outputs", "conv-binary", "mlp-multiclass", "attention"]
PLENTY = 2**30


@pytest.mark.parametrize(("name", "prior"), [(n, q) for n in SOME for q in PRIORS])
def test_the_full_variance_lies_between_the_bounds(name, prior):
    problem = solved(name, prior)
    precision, N = problem.precision, len(problem.J)
    norms = row_norms(problem.test, problem.v, PLENTY)
    full = fit_full(precision).variance(problem.test, norms)
    subnets = [
        subnet_variance(fit_subnet(precision, subset(problem.p, k)), problem.test, PLENTY) for k in (1, problem.p // 2)
    ]
    for rows in (1, N // 3, N - 1):
        bounds = bracket(precision, problem.test, norms, rows, subnets)
        assert bounds.n_sets == min(N // rows, MOST_SETS)
        assert bool((bounds.low <= full * (1 + 1e-9)).all())
        assert bool((bounds.high >= full * (1 - 1e-9)).all())
        for variance in subnets:
            std = variance.sqrt()
            least, most = distance_bounds(std, bounds.low.sqrt(), bounds.high.sqrt())
            assert_close(least, bounds.low.sqrt() - std, 1e-9)
            assert_close(most, bounds.high.sqrt() - std, 1e-9)
            exact = (full.sqrt() - std).mean()
            assert float(least.mean()) <= float(exact) * (1 + 1e-9)
            assert float(exact) <= float(most.mean()) * (1 + 1e-9)
    everything = bracket(precision, problem.test, norms, N, [full])
    assert_close(everything.high, full, 1e-9)
    assert_close(everything.low, full, 1e-9)


def test_a_lower_bound_above_the_upper_one_is_an_alarm():
    problem = solved("mlp")
    norms = row_norms(problem.test, problem.v, PLENTY)
    too_much = norms.reshape(problem.test.outputs.shape) * 2
    with pytest.raises(NumericsError, match="Theorem 1"):
        bracket(problem.precision, problem.test, norms, 5, [too_much])


def test_distances_to_an_interval():
    low, high = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([2.0, 2.0, 2.0])
    least, most = distance_bounds(torch.tensor([0.5, 1.25, 4.0]), low, high)
    assert least.tolist() == [0.5, 0.0, 2.0]
    assert most.tolist() == [1.5, 0.75, 3.0]
