"""Draws from a sub-network's posterior: their covariance is Ω_SS⁻¹, whichever form it is kept in."""

from __future__ import annotations

import pytest
import reference
import torch
from core.problems import PRIORS, prior_of, random_matrix, subset, synthetic

from sublaplace_cli.core.posterior.path import fit_subnet

COUNT = 200_000


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_the_covariance_of_the_draws(form, prior):
    problem = synthetic(random_matrix(6, 2, 9), prior_of(prior, 9), sigma2=0.4, J_test=random_matrix(3, 2, 9, seed=4))
    S = subset(9, 5)
    posterior = fit_subnet(problem.precision, S, form)
    theta = posterior.draw(COUNT, seed=3)
    S = posterior.indices
    expected = torch.linalg.inv(reference.precision(problem.J, problem.H, problem.v)[S][:, S])
    found = theta @ theta.T / COUNT
    # A sample covariance of n draws is off by about sqrt(2/n) of its size, here 0.3 %; five times that is allowed.
    size = expected.diagonal().sqrt()
    assert float(((found - expected) / torch.outer(size, size)).abs().max()) < 5 * (2 / COUNT) ** 0.5
    assert float((theta.mean(1) / size).abs().max()) < 5 / COUNT**0.5
    g = problem.J_test.flatten(0, 1)[:, S]
    outputs = g @ theta
    joint = outputs @ outputs.T / COUNT
    exact = g @ expected @ g.T
    scale = exact.diagonal().sqrt()
    assert float(((joint - exact) / torch.outer(scale, scale)).abs().max()) < 5 * (2 / COUNT) ** 0.5


def test_draws_repeat_with_the_seed():
    posterior = fit_subnet(synthetic(random_matrix(6, 1, 9)).precision, torch.arange(4))
    first, again, other = (posterior.draw(3, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
