"""Many sub-networks along one path: each as if it were fitted alone; what each parameter adds; the variance method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from core.problems import PRIORS, Problem, assert_close, prior_of, random_matrix, solved, subset, synthetic

from sublaplace_cli.core.posterior import fitting
from sublaplace_cli.core.posterior.fitting import fit_path, fit_subnet, path_gains
from sublaplace_cli.core.posterior.posterior import path_variances, subnet_variance
from sublaplace_cli.core.selectors import variance as variance_module
from sublaplace_cli.core.selectors.variance import variance

SOME = ["linear", "mlp", "mlp-3-outputs", "conv-binary", "mlp-multiclass", "attention"]
each_problem = pytest.mark.parametrize(("name", "prior"), [(n, q) for n in SOME for q in PRIORS])


def omega_of(problem: Problem) -> torch.Tensor:
    return reference.precision(problem.J, problem.H, problem.v)


@each_problem
def test_posteriors_along_a_path_are_those_of_each_k_alone(name, prior):
    problem = solved(name, prior)
    rows = problem.precision.n_rows
    S = subset(problem.p, problem.p)
    ks = sorted({1, 2, min(rows - 1, problem.p), min(rows, problem.p), min(rows + 1, problem.p), problem.p})
    path = fit_path(problem.precision, S, ks)
    together = path_variances(path, problem.test, 2**30)
    for k, posterior, found in zip(ks, path, together, strict=True):
        alone = fit_subnet(problem.precision, S[:k])
        assert torch.equal(posterior.indices, S[:k])
        assert posterior.form == alone.form
        assert_close(found, reference.subnet_variance(problem.J_test, omega_of(problem), S[:k]))
        assert_close(found, subnet_variance(alone, problem.test, 2**30), 1e-9)
        assert posterior.freedom == pytest.approx(alone.freedom, rel=1e-9)


def test_an_ill_conditioned_path_is_factorised_from_its_rows():
    problem = synthetic(1e5 * random_matrix(12, 1, 30), 1e-3)
    S = subset(30, 30)
    for k, posterior in zip((2, 5, 9), fit_path(problem.precision, S, [2, 5, 9]), strict=True):
        assert posterior.condition > fitting.QR_CONDITION
        found = subnet_variance(posterior, problem.test, 2**30)
        assert_close(found, subnet_variance(fit_subnet(problem.precision, S[:k]), problem.test, 2**30), 1e-8)


@each_problem
@pytest.mark.parametrize("panel", [3, 1024])
def test_gains_along_a_path_add_up_to_the_ipv_of_each_beginning(name, prior, panel, monkeypatch):
    monkeypatch.setattr(fitting, "PANEL", panel)
    problem = solved(name, prior)
    rows, scale = problem.precision.n_rows, problem.sigma2 / len(problem.J)
    for longest in {min(rows, problem.p), problem.p}:  # primal and dual
        S = subset(problem.p, longest)
        reached = path_gains(problem.precision, S).cumsum(0) * scale
        assert bool((reached.diff() >= 0).all())
        for k in {1, 2, longest // 2, longest}:
            expected = reference.ipv(problem.J, problem.H, problem.v, S[:k], problem.sigma2)
            assert float(reached[k - 1]) == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("rows", [4, 30])
def test_the_variance_method_takes_what_trying_out_would_take(prior, outputs, rows):
    v = prior_of(prior, 12)
    problem = synthetic(random_matrix(rows, outputs, 12), v, sigma2=0.3, J_test=random_matrix(7, outputs, 12, seed=5))
    for other in (None, problem.test):
        J = problem.J if other is None else problem.J_test
        chosen = variance(replace(problem.selection(), other_rows=other), 12)
        expected, gains = reference.variance_selection(J, omega_of(problem), 12)
        # Beyond the rank of the rows all gains are rounding.
        sure = min(12, rows * outputs if other is None else len(problem.J_test) * outputs)
        assert chosen.indices[:sure].tolist() == expected[:sure].tolist()
        assert_close(chosen.values[:sure], gains[:sure], 1e-8)


def test_the_variance_method_within_a_pool_and_with_worn_numbers(monkeypatch):
    problem = synthetic(random_matrix(30, 1, 12), 0.5, sigma2=0.3)
    J, omega = problem.J, omega_of(problem)
    best = problem.selection().score.sort(descending=True).indices[:6].sort().values
    chosen = variance(replace(problem.selection(), pool="6"), 4)
    expected, _ = reference.variance_selection(J[:, :, best], omega[best][:, best], 4)
    assert chosen.indices.tolist() == best[expected].tolist()
    monkeypatch.setattr(variance_module, "DRIFT", 0.0)  # everything afresh at every step
    monkeypatch.setattr(variance_module, "NOTHING", 0.0)
    again = variance(replace(problem.selection(), pool="6"), 4)
    assert torch.equal(again.indices, chosen.indices)
