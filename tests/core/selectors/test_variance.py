"""The variance method takes what trying out every parameter would take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from core.problems import PRIORS, assert_close, prior_of, random_matrix, synthetic

from sublaplace_cli.core.selectors import variance as variance_module
from sublaplace_cli.core.selectors.variance import variance


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("rows", [4, 30])
def test_the_variance_method_takes_what_trying_out_would_take(prior, outputs, rows):
    v = prior_of(prior, 12)
    problem = synthetic(random_matrix(rows, outputs, 12), v, sigma2=0.3, J_test=random_matrix(7, outputs, 12, seed=5))
    for other in (None, problem.test):
        J = problem.J if other is None else problem.J_test
        chosen = variance(replace(problem.selection(), other_rows=other), 12)
        expected, gains = reference.variance_selection(J, problem.omega, 12)
        # Beyond the rank of the rows all gains are rounding.
        sure = min(12, rows * outputs if other is None else len(problem.J_test) * outputs)
        assert chosen.indices[:sure].tolist() == expected[:sure].tolist()
        assert_close(chosen.values[:sure], gains[:sure], 1e-8)


def test_the_variance_method_within_a_pool_and_with_worn_numbers(monkeypatch):
    problem = synthetic(random_matrix(30, 1, 12), 0.5, sigma2=0.3)
    J, omega = problem.J, problem.omega
    best = problem.selection().score.sort(descending=True).indices[:6].sort().values
    chosen = variance(replace(problem.selection(), pool="6"), 4)
    expected, _ = reference.variance_selection(J[:, :, best], omega[best][:, best], 4)
    assert chosen.indices.tolist() == best[expected].tolist()
    monkeypatch.setattr(variance_module, "DRIFT", 0.0)  # everything afresh at every step
    monkeypatch.setattr(variance_module, "NOTHING", 0.0)
    again = variance(replace(problem.selection(), pool="6"), 4)
    assert torch.equal(again.indices, chosen.indices)
