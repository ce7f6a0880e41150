"""Posteriors equal the dense inverse of Ω, in the primal and in the dual form, for every case and prior."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from cases import CASES
from core.problems import PLENTY, PRIORS, Problem, assert_close, random_matrix, solved, subset, synthetic

from sublaplace_cli.cli.advice import hint_of
from sublaplace_cli.core.posterior.diagonal import DiagonalPosterior
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.path import fit_subnet
from sublaplace_cli.errors import NumericsError, Reason, RunError

each_problem = pytest.mark.parametrize(("name", "prior"), [(case.name, prior) for case in CASES for prior in PRIORS])
FORMS = ("primal", "dual")


def sizes(problem: Problem) -> list[int]:
    """Sub-network sizes on both sides of N·C."""
    rows = problem.precision.n_rows
    return sorted({1, min(rows, problem.p), min(rows + 1, problem.p), problem.p})


def ipv(problem: Problem, freedom: float) -> float:
    return freedom * problem.sigma2 / len(problem.J)


@each_problem
def test_full_variance_and_ipv(name, prior):
    problem = solved(name, prior)
    full, everything = fit_full(problem.precision), torch.arange(problem.p)
    variance = full.variance(problem.test)
    assert_close(variance, reference.subnet_variance(problem.J_test, problem.omega, everything))
    exact = reference.subnet_covariance(problem.J_test, problem.omega, everything)
    assert_close(full.covariance(problem.test), exact, 1e-7)  # entries near 0, beside larger ones of the same row
    expected = reference.ipv(problem.J, problem.H, problem.v, everything, problem.sigma2)
    assert ipv(problem, full.freedom) == pytest.approx(expected, rel=1e-8, abs=0)


@each_problem
@pytest.mark.parametrize("form", FORMS)
def test_subnet_variance_and_ipv_in_both_forms(name, prior, form):
    problem = solved(name, prior)
    for k in sizes(problem):
        S = subset(problem.p, k)
        posterior = fit_subnet(problem.precision, S, form)
        variance = posterior.variance(problem.test)
        assert posterior.form == form
        assert_close(variance, reference.subnet_variance(problem.J_test, problem.omega, S))
        exact = reference.subnet_covariance(problem.J_test, problem.omega, S)
        assert_close(posterior.covariance(problem.test), exact, 1e-7)
        expected = reference.ipv(problem.J, problem.H, problem.v, S, problem.sigma2)
        assert ipv(problem, posterior.freedom) == pytest.approx(expected, rel=1e-8, abs=0)


@each_problem
def test_all_parameters_give_the_full_posterior(name, prior):
    problem = solved(name, prior)
    full = fit_full(problem.precision)
    variance = full.variance(problem.test)
    for form in FORMS:
        posterior = fit_subnet(problem.precision, torch.arange(problem.p), form)
        assert_close(posterior.variance(problem.test), variance)
        assert posterior.freedom == pytest.approx(full.freedom, rel=1e-8, abs=0)


@pytest.mark.parametrize("name", ["mlp", "conv", "attention"])
def test_the_smaller_of_the_two_matrices_is_factorised(name):
    problem = solved(name)
    rows = problem.precision.n_rows
    assert rows + 1 <= problem.p
    for k, form, side in [(rows, "primal", rows), (rows + 1, "dual", rows)]:
        posterior = fit_subnet(problem.precision, subset(problem.p, k))
        assert posterior.form == form
        assert posterior.factor.shape == (side, side)


@each_problem
def test_diagonal_reference(name, prior):
    problem = solved(name, prior)
    posterior = DiagonalPosterior(problem.v, problem.precision.data_diagonal(), PLENTY)
    omega = problem.omega.diagonal()
    expected = (problem.J_test.square() / omega).sum(2)
    assert_close(posterior.variance(problem.test), expected, 1e-12)
    share = (reference.data_term(problem.J, problem.H).diagonal() / omega).sum()
    assert posterior.freedom == pytest.approx(float(share), rel=1e-12, abs=0)


@pytest.mark.parametrize("name", ["mlp", "mlp-3-outputs", "conv-binary", "conv-multiclass"])
@pytest.mark.parametrize("form", FORMS)
def test_ipv_is_the_mean_weighted_variance_of_the_training_rows(name, form):
    """The contract's second definition: Σ over outputs of diag(Wₙᵀ Jₙ Ω⁻¹ Jₙᵀ Wₙ), averaged and times σ₀²."""
    problem = solved(name, "unequal")
    S = subset(problem.p, 17)
    inverse = torch.linalg.inv(problem.omega[S][:, S])
    covariance = torch.einsum("ncj,jl,ndl->ncd", problem.J[:, :, S], inverse, problem.J[:, :, S])
    mean = problem.sigma2 * torch.einsum("ncd,ndc->n", problem.H, covariance).mean()
    assert ipv(problem, fit_subnet(problem.precision, S, form).freedom) == pytest.approx(float(mean), rel=1e-8, abs=0)


def test_linear_regression_has_its_textbook_posterior():
    """For f = x·w + b the posterior is that of Bayesian linear regression: no Laplace, no approximation."""
    problem = solved("linear")
    ones = torch.ones(23, 1, dtype=torch.float64)
    assert torch.equal(problem.J[:, 0, 5:], ones)
    X, X_test = problem.J[:, 0], problem.J_test[:, 0]
    covariance = torch.linalg.inv(X.T @ X / problem.sigma2 + 0.7 * torch.eye(6, dtype=torch.float64))
    variance = fit_full(problem.precision).variance(problem.test)
    assert_close(variance[:, 0], (X_test @ covariance * X_test).sum(1))


@pytest.mark.parametrize("name", ["mlp", "conv-multiclass"])
@pytest.mark.parametrize("form", FORMS)
def test_a_strong_prior_leaves_its_inverse(name, form):
    """v → ∞: the variance is ‖g_S‖²/v, and IPV the mean squared gradient over v, however small both are."""
    problem = solved(name)
    v = torch.full_like(problem.v, 1e12)
    precision = replace(problem.precision, prior=v)
    S = subset(problem.p, 30)
    posterior = fit_subnet(precision, S, form)
    data = reference.data_term(problem.J, problem.H)[S][:, S]
    assert_close(posterior.variance(problem.test), (problem.J_test[:, :, S].square() / 1e12).sum(2))
    # tr((D + vI)⁻¹D) = tr(D)/v up to a relative λmax/v < 1e-8
    assert float(torch.linalg.eigvalsh(data)[-1]) < 1e4
    assert posterior.freedom == pytest.approx(float(data.trace()) / 1e12, rel=1e-8, abs=0)


def test_a_strong_prior_leaves_its_inverse_in_the_full_network_too():
    problem = solved("mlp")
    precision = replace(problem.precision, prior=torch.full_like(problem.v, 1e12))
    data = reference.data_term(problem.J, problem.H)
    assert float(torch.linalg.eigvalsh(data)[-1]) < 1e4
    assert fit_full(precision).freedom == pytest.approx(float(data.trace()) / 1e12, rel=1e-8, abs=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_test_row_outside_the_subnet_has_no_variance(form):
    J = random_matrix(9, 12)
    J_test = torch.zeros(2, 12, dtype=torch.float64)
    J_test[0, 5], J_test[1, 3] = 1.0, 1.0
    problem = synthetic(J, J_test=J_test)
    variance = fit_subnet(problem.precision, torch.tensor([3, 4]), form).variance(problem.test)
    assert float(variance[0, 0]) == 0.0
    assert 0.0 < float(variance[1, 0]) < 1.0


def test_what_does_not_fit_in_memory_is_refused_before_it_is_made():
    problem = solved("mlp")
    small = replace(problem.precision, memory=1000)
    with pytest.raises(RunError, match="a posterior over 20 parameters with 23 rows") as failure:
        fit_subnet(small, subset(problem.p, 20))
    assert failure.value.reason is Reason.NO_ROOM_FOR_SUBNET
    with pytest.raises(RunError, match="the full posterior over 23 rows") as failure:
        fit_full(small)
    assert failure.value.reason is Reason.NO_ROOM_FOR_FULL
    assert "--full none" in hint_of(failure.value)


@pytest.mark.parametrize("fit", [fit_full, lambda precision: fit_subnet(precision, subset(40, 9))])
def test_non_finite_rows_are_refused(fit):
    J = random_matrix(12, 40)
    J[4] = float("nan")
    with pytest.raises(NumericsError):
        fit(synthetic(J).precision)
