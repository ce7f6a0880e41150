"""The marginal likelihood against the dense formula, and its optimum against everything near it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from core.problems import random_matrix

from sublaplace_cli.core.tuning.marglik import LEAST, MOST, Evidence, maximise

N, P = 14, 9
GROUPS = [torch.arange(4), torch.arange(4, 9)]


def parts(groups: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Evidence]:
    """(J, θ, residuals, evidence) of a made regression with one or two groups of parameters."""
    J, theta, residual = random_matrix(N, P, seed=1), random_matrix(P, seed=2), 0.5 * random_matrix(N, seed=3)
    chosen = GROUPS if groups == 2 else [torch.arange(P)]
    kernels = [J[:, g] @ J[:, g].T for g in chosen]
    if groups == 1:
        kernels = [torch.linalg.eigvalsh(kernels[0]).clamp(min=0)]
    squares = [float(theta[g].square().sum()) for g in chosen]
    return J, theta, residual, Evidence(kernels, squares, N, float(residual.square().sum()))


def dense(J: torch.Tensor, theta: torch.Tensor, residual: torch.Tensor, v: torch.Tensor, sigma2: float) -> float:
    """log p(y | θ) + log p(θ) + (p/2) log 2π − ½ log det Ω, all in full."""
    noise = torch.distributions.Normal(
        torch.zeros(N).double(), torch.full((N,), math.sqrt(sigma2), dtype=torch.float64)
    )
    prior = torch.distributions.Normal(torch.zeros(P).double(), v.rsqrt())
    omega = J.T @ J / sigma2 + torch.diag(v)
    free = 0.5 * P * math.log(2 * math.pi) - 0.5 * torch.linalg.slogdet(omega).logabsdet
    return float(noise.log_prob(residual).sum() + prior.log_prob(theta).sum() + free)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("sigma2", [0.3, 2.0])
def test_the_evidence_is_the_dense_one(groups, sigma2):
    J, theta, residual, evidence = parts(groups)
    alphas = [0.7, 5.0][:groups]
    v = torch.full((P,), 0.7, dtype=torch.float64)
    if groups == 2:
        v[GROUPS[1]] = 5.0
    found = evidence.at(
        torch.tensor(alphas, dtype=torch.float64).log(), torch.tensor(sigma2, dtype=torch.float64).log()
    )
    assert float(found) == pytest.approx(dense(J, theta, residual, v, sigma2), rel=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("free_noise", [True, False])
def test_nothing_near_the_optimum_is_better(groups, free_noise):
    _, _, _, evidence = parts(groups)
    best = maximise(evidence, [1.0] * groups, 0.4, [True] * groups, free_noise)
    assert best.value >= best.start_value
    assert free_noise or best.sigma2 == pytest.approx(0.4)
    assert not best.at_a_bound
    steps = itertools.product([-0.3, -0.01, 0.0, 0.01, 0.3], repeat=groups + free_noise)
    for step in steps:
        moved = torch.tensor(best.alphas, dtype=torch.float64).log() + torch.tensor(step[:groups], dtype=torch.float64)
        noise = math.log(best.sigma2) + (step[-1] if free_noise else 0.0)
        assert float(evidence.at(moved, torch.tensor(noise, dtype=torch.float64))) <= best.value + 1e-9


def test_a_fixed_group_stays_and_a_start_far_off_does_not_matter():
    _, _, _, evidence = parts(2)
    best = maximise(evidence, [1.0, 3.0], 0.4, [True, False], True)
    assert best.alphas[1] == pytest.approx(3.0)
    far = maximise(evidence, [1e5, 3.0], 1e3, [True, False], True)
    assert far.alphas[0] == pytest.approx(best.alphas[0], rel=1e-4)
    assert far.sigma2 == pytest.approx(best.sigma2, rel=1e-4)


def test_a_fixed_number_beyond_the_bounds_is_left_alone():
    _, _, _, evidence = parts(2)
    best = maximise(evidence, [1e10, 1.0], 0.4, [False, True], False)
    assert best.alphas[0] == 1e10
    assert best.sigma2 == 0.4
    assert not best.at_a_bound


def test_weights_of_zero_leave_the_prior_at_its_bound():
    kernel = random_matrix(N, P) @ random_matrix(N, P).T
    nothing = Evidence([torch.linalg.eigvalsh(kernel).clamp(min=0)], [0.0], N, 1.0)
    best = maximise(nothing, [1.0], 1.0, [True], False)
    assert best.at_a_bound
    assert LEAST <= best.alphas[0] <= MOST
    assert best.alphas[0] == pytest.approx(MOST, rel=0.1)


def test_classification_has_no_noise():
    kernel = random_matrix(N, P) @ random_matrix(N, P).T
    some = Evidence([torch.linalg.eigvalsh(kernel).clamp(min=0)], [4.0], N, None, -3.5)
    value = some.at(torch.zeros(1).double(), torch.zeros(()).double())
    expected = -3.5 - 2.0 - 0.5 * torch.linalg.slogdet(kernel + torch.eye(N).double()).logabsdet
    assert float(value) == pytest.approx(float(expected), rel=1e-10)
