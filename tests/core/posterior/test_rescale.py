"""Left-out variances against refitting without the row; the fitted numbers against trying out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from core.problems import PRIORS, Problem, assert_close, random_matrix, solved, subset, synthetic

from sublaplace_cli.core.likelihoods.binary import Binary
from sublaplace_cli.core.omega.row_sums import own_products
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.left_out import left_out
from sublaplace_cli.core.posterior.path import fit_subnet
from sublaplace_cli.core.posterior.rescale import (
    Rescale,
    fit_rescale,
    fit_scale,
    outside_products,
)

SOME = ["linear", "mlp", "mlp-3-outputs", "conv-binary", "mlp-multiclass", "attention"]
each_problem = pytest.mark.parametrize(("name", "prior"), [(n, prior) for n in SOME for prior in PRIORS])


def refitted(problem: Problem, S: torch.Tensor) -> torch.Tensor:
    """Variance of every training row under the posterior of all the others (N, C), dense."""
    rows = []
    for n in range(len(problem.J)):
        others = torch.arange(len(problem.J)) != n
        omega = reference.precision(problem.J[others], problem.H[others], problem.v)
        rows.append(reference.subnet_variance(problem.J[n : n + 1], omega, S))
    return torch.cat(rows)


@each_problem
def test_left_out_variances_are_those_of_a_fit_without_the_row(name, prior):
    problem = solved(name, prior)
    everything = torch.arange(problem.p)
    assert_close(left_out(fit_full(problem.precision), problem.precision), refitted(problem, everything), 1e-7)
    for k in sorted({1, problem.p // 3, problem.p}):
        S = subset(problem.p, k)
        for form in ("primal", "dual"):
            found = left_out(fit_subnet(problem.precision, S, form), problem.precision)
            # Softmax: 1/ε of the output Hessian, 1e6, is lost of the digits on the way back from weighted outputs.
            assert_close(found, refitted(problem, S), 1e-7)


def test_rows_of_next_to_no_weight_keep_their_variance():
    """At |f| = 40 the weight is 4e-18: what the row says of itself is nothing, its variance is not."""
    problem = synthetic(random_matrix(6, 1, 9), 0.5)
    f = torch.tensor([[0.3], [40.0], [-45.0], [1.0], [-0.5], [20.0]], dtype=torch.float64)
    precision = replace(problem.precision, root=Binary().root(f))
    weighty = replace(problem, precision=precision, H=reference.output_hessian("binary", f, 1.0))
    everything = torch.arange(9)
    assert_close(left_out(fit_full(precision), precision), refitted(weighty, everything), 1e-8)
    for form in ("primal", "dual"):
        assert_close(left_out(fit_subnet(precision, everything, form), precision), refitted(weighty, everything))


@each_problem
def test_products_outside_a_selection(name, prior):
    problem = solved(name, prior)
    S = subset(problem.p, problem.p // 3)
    others = torch.ones(problem.p, dtype=torch.bool)
    others[S] = False
    products = own_products(problem.test, problem.v, 2**30)
    found = outside_products(problem.test, products, S, problem.v, 2**30)
    outside = problem.J_test[:, :, others]
    assert_close(found, torch.einsum("mcp,p,mdp->mcd", outside, 1 / problem.v[others], outside), 1e-8)


def cost(sigma: torch.Tensor, variance: torch.Tensor) -> float:
    return float((sigma - variance.sqrt()).abs().sum())


@pytest.mark.parametrize("seed", range(5))
def test_scale_and_hybrid_are_the_best_of_their_kind(seed):
    full, own, outside = (random_matrix(40, seed=3 * seed + i).square() + 0.01 for i in range(3))
    scale = fit_rescale("scale", full, own, outside)
    hybrid = fit_rescale("hybrid", full, own, outside)
    assert scale.b == 0.0
    best = cost(full.sqrt(), scale.apply(own, outside))
    for c in torch.logspace(-3, 3, 400, dtype=torch.float64):
        assert best <= cost(full.sqrt(), c * own) + 1e-12
    found = cost(full.sqrt(), hybrid.apply(own, outside))
    assert found <= best + 1e-12
    for c in torch.linspace(0, 5, 60, dtype=torch.float64):
        for b in torch.linspace(0, 5, 60, dtype=torch.float64):
            assert found <= cost(full.sqrt(), c * own + b * outside) * (1 + 1e-3)


def test_hybrid_finds_the_two_numbers_that_made_the_data():
    own, outside = random_matrix(60, seed=1).square(), random_matrix(60, seed=2).square()
    hybrid = fit_rescale("hybrid", 1.7 * own + 0.2 * outside, own, outside)
    assert hybrid.c == pytest.approx(1.7, rel=1e-4)
    assert hybrid.b == pytest.approx(0.2, rel=1e-4)


def test_without_any_variance_of_its_own_there_is_nothing_to_scale():
    full, nothing, outside = random_matrix(8, seed=1).square(), torch.zeros(8).double(), random_matrix(8).square()
    assert fit_rescale("none", full, nothing, outside) == Rescale(1.0, 0.0)
    assert fit_rescale("scale", full, nothing, outside) == Rescale(None, 0.0)
    hybrid = fit_rescale("hybrid", full, nothing, outside)
    assert hybrid.c is None
    assert hybrid.b == pytest.approx(fit_scale(full.sqrt(), outside.sqrt()) ** 2)
