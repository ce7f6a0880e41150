"""Factorisations that fail with a name, conditions that are refused, and a dual form that does not cancel."""

from __future__ import annotations

import pytest
import torch
from core.problems import assert_close, random_matrix, synthetic

from sublaplace_cli.cli.advice import hint_of
from sublaplace_cli.core.linalg import (
    REFUSE_CONDITION,
    WARN_CONDITION,
    check_condition,
    dual_covariance,
    factor_of_rows,
    largest_eigenvalue,
    row_products,
    safe_cholesky,
    solve_lower,
    solve_lower_transposed,
)
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.path import fit_subnet
from sublaplace_cli.errors import NumericsError, Reason


def positive_definite(size: int) -> torch.Tensor:
    A = random_matrix(size, size)
    return A @ A.T + torch.eye(size, dtype=torch.float64)


def test_safe_cholesky_and_the_solves_with_it():
    B, x = positive_definite(7), random_matrix(7, 2, seed=1)
    L = safe_cholesky(B.clone())
    assert torch.equal(L, L.tril())
    assert_close(L @ L.T, B, 1e-12)
    assert_close(L @ solve_lower(L, x), x, 1e-10)
    assert_close(L.T @ solve_lower_transposed(L, x), x, 1e-10)


@pytest.mark.parametrize("bad", [0, 3, 6])
def test_safe_cholesky_names_the_pivot(bad):
    B = torch.eye(7, dtype=torch.float64)
    B[bad, bad] = -1.0
    layout = Layout.from_shapes([("layer.weight", (2, 3)), ("layer.bias", (1,))])
    with pytest.raises(NumericsError) as failure:
        safe_cholesky(B, layout.describe)
    assert f"at {layout.describe(bad)} (pivot {bad + 1} of 7)" in failure.value.message
    assert failure.value.reason is Reason.NOT_POSITIVE_DEFINITE
    assert "posterior.prior_precision" in hint_of(failure.value)


def test_safe_cholesky_refuses_what_is_not_finite():
    B = torch.eye(3, dtype=torch.float64)
    B[1, 1] = float("nan")
    with pytest.raises(NumericsError, match="not positive definite"):
        safe_cholesky(B)


@pytest.mark.parametrize("heights", [[9], [4, 4, 1], [1] * 9, []])
def test_the_factor_from_rows_is_the_cholesky_factor(heights):
    A = random_matrix(sum(heights), 5)
    L = factor_of_rows(A.split(heights), 5, A)
    assert_close(L, torch.linalg.cholesky(A.T @ A + torch.eye(5, dtype=torch.float64)), 1e-12)


def test_the_largest_eigenvalue_of_a_spread_spectrum():
    Q = torch.linalg.qr(random_matrix(20, 20)).Q
    B = Q * torch.logspace(6, -6, 20, dtype=torch.float64) @ Q.T
    assert largest_eigenvalue(lambda x: B @ x, 20, B) == pytest.approx(1e6, rel=1e-6)


def test_the_largest_eigenvalue_is_within_a_few_percent_even_for_a_flat_spectrum():
    """Power iteration stops after 30 steps; a condition number needs its order of magnitude only."""
    B = positive_definite(60)
    exact = float(torch.linalg.eigvalsh(B)[-1])
    assert 0.9 * exact <= largest_eigenvalue(lambda x: B @ x, 60, B) <= exact * (1 + 1e-12)


def test_the_largest_eigenvalue_of_nothing_is_zero():
    B = torch.zeros(4, 4, dtype=torch.float64)
    assert largest_eigenvalue(lambda x: B @ x, 4, B) == 0.0


@pytest.mark.parametrize("value", [0.0, 1.0, 1e12, 9.9e14])
def test_conditions_that_float64_can_carry_pass(value):
    assert check_condition(value) == value


@pytest.mark.parametrize("value", [1e15, 1e20, float("inf"), float("nan")])
def test_conditions_that_it_cannot_are_refused(value):
    with pytest.raises(NumericsError, match="ill-conditioned") as failure:
        check_condition(value)
    assert failure.value.reason is Reason.ILL_CONDITIONED
    assert "posterior.noise_variance" in hint_of(failure.value)


def test_the_limits_are_those_of_the_design():
    assert (WARN_CONDITION, REFUSE_CONDITION) == (1e12, 1e15)


FITS = {
    "full": fit_full,
    "primal": lambda precision: fit_subnet(precision, torch.arange(20), "primal"),
    "dual": lambda precision: fit_subnet(precision, torch.arange(20), "dual"),
}


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_every_posterior_reports_its_condition_and_refuses_beyond_the_limit(fit):
    J = random_matrix(12, 20)
    largest = float(torch.linalg.matrix_norm(J, 2)) ** 2
    for condition in (1e6, 5e14):
        found = fit(synthetic(J, v=2.0, sigma2=largest / 2.0 / condition).precision).condition
        assert found == pytest.approx(condition, rel=0.05)  # power iteration: see above
    harmless = fit(synthetic(J, v=2.0, sigma2=largest / 2.0).precision).condition
    assert 1.0 <= harmless <= len(J), "where nothing depends on it: the trace, at most its rank times too large"
    with pytest.raises(NumericsError, match="ill-conditioned"):
        fit(synthetic(J, v=2.0, sigma2=largest / 2.0 / 1.2e15).precision)


def test_the_dual_form_uses_residuals_only_where_it_would_cancel():
    A = torch.tensor([[1e5, 0.0, 0.0], [0.0, 0.5, 0.0]], dtype=torch.float64)
    g = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    called = []

    def residual_products(rows, w):
        called.extend(rows.tolist())
        return row_products(g[:, rows] - A.T @ w, 1)

    L = torch.linalg.cholesky(A @ A.T + torch.eye(2, dtype=torch.float64))
    expected = torch.tensor([1 / (1 + 1e10), 1 / 1.25 + 1], dtype=torch.float64)
    found = dual_covariance(L, A @ g, row_products(g, 1), 1.0, residual_products)
    assert_close(found.flatten(), expected, 1e-12)
    assert called == [0]
    called.clear()
    found = dual_covariance(L, A @ g, row_products(g, 1), 1e10, residual_products)
    assert_close(found.flatten(), expected, 1e-12)
    assert called == [0, 1], "where the Gram matrix itself is too rough, every row takes the residual form"


@pytest.mark.parametrize(("condition", "refined"), [(9.9e9, False), (1e10, True)])
def test_the_dual_form_refines_only_where_the_gram_matrix_has_few_digits(condition, refined):
    A, g = random_matrix(3, 5, seed=1), random_matrix(5, 2, seed=2)
    L = torch.linalg.cholesky(A @ A.T + torch.eye(3, dtype=torch.float64))
    rough = L + 1e-3 * torch.tril(random_matrix(3, 3, seed=3))
    calls = []

    def system_residual(rows, w):
        calls.append(rows.tolist())
        return A @ (g[:, rows] - A.T @ w) - w

    def residual_products(rows, w):
        return row_products(g[:, rows] - A.T @ w, 1)

    expected = (g * torch.linalg.solve(torch.eye(5, dtype=torch.float64) + A.T @ A, g)).sum(0)
    norms = row_products(g, 1)
    found = dual_covariance(rough, A @ g, norms, condition, residual_products, system_residual).flatten()
    plain = dual_covariance(rough, A @ g, norms, condition, residual_products).flatten()
    assert calls == ([[0, 1]] if refined else [])
    assert float((plain - expected).abs().max()) > 1e-8
    if refined:
        assert float((found - expected).abs().max()) < 1e-3 * float((plain - expected).abs().max())
    else:
        assert torch.equal(found, plain)


@pytest.mark.parametrize("condition", [1.0, 1e8, 1e11])
def test_the_dual_form_gives_the_covariance_of_each_row(condition):
    """Three outputs a row, one row that cancels; by the plain, the residual and the refined form."""
    A, G = 30 * random_matrix(8, 5, seed=1), random_matrix(4, 3, 5, seed=2)
    G[1] = A[:3]
    g = G.flatten(0, 1).T
    eye = torch.eye(8, dtype=torch.float64)

    def residual(rows, w):
        return G[rows].flatten(0, 1).T - A.T @ w

    found = dual_covariance(
        torch.linalg.cholesky(A @ A.T + eye),
        A @ g,
        row_products(g, 3),
        condition,
        lambda rows, w: row_products(residual(rows, w), 3),
        lambda rows, w: A @ residual(rows, w) - w,
    )
    inverse = torch.linalg.inv(torch.eye(5, dtype=torch.float64) + A.T @ A)
    assert_close(found, torch.einsum("mcp,pq,mdq->mcd", G, inverse, G), 1e-8)


@pytest.mark.parametrize("n", [3, 600])
def test_products_of_the_columns_of_each_row(n):
    X = random_matrix(n, 12)
    expected = torch.stack([X[:, i : i + 3].T @ X[:, i : i + 3] for i in range(0, 12, 3)])
    assert_close(row_products(X, 3), expected, 1e-10)
    assert_close(row_products(X, 1).flatten(), X.square().sum(0), 1e-12)
