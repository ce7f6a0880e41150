"""Residuals from the rows themselves: equal to the dense formulas, and accurate where the Gram matrix is not."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import pytest
import torch
from cases import CASES
from core.problems import PLENTY, PRIORS, Problem, assert_close, random_matrix, solved, synthetic
from core.thread_workers import run_on_workers

from sublaplace_cli.core.linalg import condition_of, dual_covariance, row_products, safe_cholesky
from sublaplace_cli.core.omega.row_sums import own_products

NAMES = [case.name for case in CASES]
N, P = 12, 30


def dense_rows(problem: Problem) -> torch.Tensor:
    """A (N·C, p) with the rows WᵀJ."""
    return torch.einsum("ncd,ncp->ndp", problem.precision.root, problem.J).flatten(0, 1)


def chosen_and_w(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    M, C = problem.test.outputs.shape
    chosen = torch.arange(0, M, 2)
    return chosen, random_matrix(problem.precision.n_rows, len(chosen) * C, seed=4)


@pytest.mark.parametrize("memory", [PLENTY, 2**12], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", NAMES)
def test_residuals_are_those_of_the_dense_rows(name, prior, memory):
    problem = solved(name, prior)
    precision, A = replace(problem.precision, memory=memory), dense_rows(problem)
    chosen, w = chosen_and_w(problem)
    residual = problem.J_test[chosen].flatten(0, 1).T - A.T @ w  # (p, r·C)
    by_row = residual.T.reshape(len(chosen), -1, problem.p)
    products = torch.einsum("rcp,p,rdp->rcd", by_row, 1 / problem.v, by_row)
    assert_close(precision.residual_products(problem.test, chosen, w), products, 1e-9)
    expected = A @ (residual / problem.v.unsqueeze(1)) - w
    assert_close(precision.system_residual(problem.test, chosen, w), expected, 1e-10)


@pytest.mark.parametrize(("size", "rows_per_piece"), [(2, 3), (3, 64)], ids=["two", "two without rows"])
@pytest.mark.parametrize("name", ["mlp-3-outputs", "conv-multiclass", "token-block"])
def test_several_workers_give_the_residual_of_one(name, size, rows_per_piece):
    problem = solved(name, "unequal")
    chosen, w = chosen_and_w(problem)
    expected = problem.precision.system_residual(problem.test, chosen, w)
    rows = {"train": problem.precision.jacobian, "test": problem.test}
    found, called = run_on_workers(
        size,
        rows_per_piece,
        rows,
        lambda own: replace(problem.precision, jacobian=own["train"]).system_residual(own["test"], chosen, w),
    )
    assert called == ["system_residual"]
    assert_close(found, expected, 1e-10)


SHAPES = {
    "full rank": random_matrix(N, P, seed=1),
    "graded": torch.linalg.qr(random_matrix(N, N, seed=4)).Q
    * torch.logspace(0, -6, N, dtype=torch.float64)
    @ torch.linalg.qr(random_matrix(P, N, seed=5)).Q.T,
    "rank-deficient": random_matrix(N, 4, seed=6) @ random_matrix(4, P, seed=7),
}


def exact_variance(problem: Problem) -> torch.Tensor:
    """gᵀΩ⁻¹g of each test row, to 50 digits."""
    with mpmath.workdps(50):
        A, G = mpmath.matrix(problem.J[:, 0].tolist()), mpmath.matrix(problem.J_test[:, 0].tolist())
        omega = A.T * A / mpmath.mpf(problem.sigma2) + mpmath.eye(P)
        solved_rows = omega**-1 * G.T
        values = [sum(G[m, i] * solved_rows[i, m] for i in range(P)) for m in range(G.rows)]
        return torch.tensor([float(value) for value in values], dtype=torch.float64)


def dual_variances(problem: Problem, form: str, refine: bool) -> torch.Tensor:
    """Variances of the test rows through I + K, from the blocks (full) or from explicit columns (dual)."""
    precision, test = problem.precision, problem.test
    cross, products, K = precision.cross_gram(test), own_products(test, problem.v, PLENTY), precision.gram()
    A, g = precision.columns(torch.arange(P)), problem.J_test[:, 0].T
    if form == "full":
        callbacks = (
            lambda chosen, w: precision.residual_products(test, chosen, w),
            lambda chosen, w: precision.system_residual(test, chosen, w),
        )
    else:
        callbacks = (
            lambda chosen, w: row_products(g[:, chosen] - A @ w, 1),
            lambda chosen, w: A.T @ (g[:, chosen] - A @ w) - w,
        )
    condition = condition_of(K)
    L = safe_cholesky(K + torch.eye(len(K), dtype=torch.float64))
    return dual_covariance(L, cross, products, condition, callbacks[0], callbacks[1] if refine else None).flatten()


def ill_conditioned(shape: str, condition: float) -> Problem:
    """Test rows: a training row, nearly one, a mixture, a difference, an unrelated one."""
    J = SHAPES[shape]
    near = J[1] + 1e-7 * random_matrix(P, seed=8)
    tests = torch.stack([J[0], near, J.mean(0), J[2] - J[3], random_matrix(P, seed=9)])
    return synthetic(J, v=1.0, sigma2=float(torch.linalg.matrix_norm(J, 2)) ** 2 / condition, J_test=tests)


@pytest.mark.parametrize("form", ["full", "dual"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("condition", "accuracy"), [(1e11, 1e-10), (1e12, 1e-10), (1e14, 1e-8)])
def test_refined_variances_have_ten_digits(shape, condition, accuracy, form):
    problem = ill_conditioned(shape, condition)
    found, expected = dual_variances(problem, form, refine=True), exact_variance(problem)
    assert bool((found > 0).all())
    error = (found - expected).abs() / expected
    assert float(error.max()) <= accuracy, [f"{x:.1e}" for x in error.tolist()]


@pytest.mark.parametrize("form", ["full", "dual"])
def test_without_refinement_they_do_not(form):
    """A guard on the test above: its problems do need the refinement."""
    problem = ill_conditioned("rank-deficient", 1e14)
    error = (dual_variances(problem, form, refine=False) - exact_variance(problem)).abs() / exact_variance(problem)
    assert float(error.max()) > 1e-6
