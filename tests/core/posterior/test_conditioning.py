"""Variances of ill-conditioned problems against 50 digits: right to 1e-8 up to κ = 1e12, and never negative."""

from __future__ import annotations

from functools import cache

import mpmath
import pytest
import torch
from core.problems import Problem, random_matrix, synthetic

from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.path import fit_subnet

N, P = 12, 30
CONDITIONS = [1e4, 1e7, 9e7, 2e8, 1e10, 1e12]


@cache
def exact(problem: Problem, form: str) -> tuple[torch.Tensor, float]:
    """(variance of each test row, freedom) over the subset of a form, to 50 digits."""
    S = subset_of(form)
    with mpmath.workdps(50):
        A = mpmath.matrix(problem.J[:, 0, S].tolist())
        G = mpmath.matrix(problem.J_test[:, 0, S].tolist()).T
        precision = mpmath.diag([mpmath.mpf(float(x)) for x in problem.v[S]])
        data = A.T * A / mpmath.mpf(problem.sigma2)
        inverse = (data + precision) ** -1
        solved = inverse * G
        variance = [sum(G[i, m] * solved[i, m] for i in range(G.rows)) for m in range(G.cols)]
        share = inverse * data
        freedom = sum(share[i, i] for i in range(share.rows))
        return torch.tensor([float(x) for x in variance], dtype=torch.float64), float(freedom)


def collinear(seed: int) -> torch.Tensor:
    """Rows that share one long direction and differ a little in others."""
    shared = random_matrix(1, P, seed=seed)
    return shared + 1e-3 * random_matrix(N, P, seed=seed + 1)


def probing_rows(J: torch.Tensor) -> torch.Tensor:
    """A training row, nearly one, a mixture of them, a difference of two, one across them, one of its own."""
    near = J[1] + 1e-7 * random_matrix(P, seed=8)
    away = random_matrix(P, seed=9)
    across = away - J.T @ torch.linalg.lstsq(J.T, away).solution
    return torch.stack([J[0], near, J.mean(0), J[2] - J[3], across, away])


SHAPES = {
    "plain": random_matrix(N, P, seed=1),
    "collinear": collinear(2),
    "spread": torch.linalg.qr(random_matrix(N, N, seed=4)).Q
    * torch.logspace(0, -6, N, dtype=torch.float64)
    @ torch.linalg.qr(random_matrix(P, N, seed=5)).Q.T,
    "rank-deficient": random_matrix(N, 4, seed=6) @ random_matrix(4, P, seed=7),
}


@cache
def conditioned(shape: str, condition: float) -> Problem:
    """The noise variance is what makes κ: here from 1e-3 down to 1e-11 of ‖J‖²."""
    J = SHAPES[shape]
    sigma2 = float(torch.linalg.matrix_norm(J, 2)) ** 2 / condition
    return synthetic(J, v=1.0, sigma2=sigma2, J_test=probing_rows(J))


def subset_of(form: str) -> torch.Tensor:
    return torch.arange(P) if form == "full" else torch.arange(0, P, 2 if form == "dual" else 3)


def variance_and_freedom(problem: Problem, form: str) -> tuple[torch.Tensor, float]:
    if form == "full":
        posterior = fit_full(problem.precision)
        variance = posterior.variance(problem.test)
    else:
        posterior = fit_subnet(problem.precision, subset_of(form), form)
        variance = posterior.variance(problem.test)
    return variance[:, 0], posterior.freedom


every_problem = pytest.mark.parametrize(
    ("shape", "condition", "form"),
    [(s, c, f) for s in SHAPES for c in CONDITIONS for f in ("full", "primal", "dual")],
)


@every_problem
def test_variances_have_eight_digits(shape, condition, form):
    problem = conditioned(shape, condition)
    found, _ = variance_and_freedom(problem, form)
    expected, _ = exact(problem, form)
    assert bool((found > 0).all())
    error = (found - expected).abs() / expected
    assert float(error.max()) <= 1e-8, [f"{x:.1e}" for x in error.tolist()]


@every_problem
def test_ipv_has_eight_digits_where_its_matrix_has_them(shape, condition, form):
    problem = conditioned(shape, condition)
    _, found = variance_and_freedom(problem, form)
    _, expected = exact(problem, form)
    # Forming the Gram matrix rounds its smallest eigenvalues by eps·κ, and tr((I + K)⁻¹K) moves with each of them;
    # the primal form takes its factor from the rows by QR and has no such excuse.
    gram_rounding = torch.finfo(torch.float64).eps * condition if form != "primal" else 0.0
    assert found == pytest.approx(expected, rel=max(1e-8, gram_rounding), abs=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["full", "primal", "dual"])
def test_variances_are_positive_up_to_the_limit(shape, form):
    found, freedom = variance_and_freedom(conditioned(shape, 5e14), form)
    assert bool((found > 0).all())
    assert 0 < freedom <= N


@pytest.mark.parametrize("sigma2", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("form", ["full", "dual"])
def test_a_training_row_keeps_about_its_noise(sigma2, form):
    """PV at a training row lies between 0 and σ₀²: what noise of that size leaves open."""
    problem = synthetic(SHAPES["plain"], v=1.0, sigma2=sigma2)
    found, _ = variance_and_freedom(problem, form)
    expected, _ = exact(problem, form)
    assert bool((found < sigma2).all())
    assert float(((found - expected).abs() / expected).max()) <= 1e-8


@pytest.mark.parametrize("form", ["full", "primal", "dual"])
def test_unequal_priors_of_many_orders_cost_no_digits(form):
    problem = synthetic(
        SHAPES["plain"], torch.logspace(-4, 4, P, dtype=torch.float64), 1e-2, probing_rows(SHAPES["plain"])
    )
    found, freedom = variance_and_freedom(problem, form)
    expected, expected_freedom = exact(problem, form)
    assert float(((found - expected).abs() / expected).max()) <= 1e-8
    assert freedom == pytest.approx(expected_freedom, rel=1e-8, abs=0)
