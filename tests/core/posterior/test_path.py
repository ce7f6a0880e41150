"""Many sub-networks along one path: each as if it were fitted alone; what each parameter adds."""

from __future__ import annotations

import pytest
import reference
import torch
from core.problems import PRIORS, assert_close, random_matrix, solved, subset, synthetic

from sublaplace_cli.core.linalg import QR_CONDITION
from sublaplace_cli.core.posterior import path as path_module
from sublaplace_cli.core.posterior.path import fit_path, fit_subnet, path_covariances, path_gains

SOME = ["linear", "mlp", "mlp-3-outputs", "conv-binary", "mlp-multiclass", "attention"]
each_problem = pytest.mark.parametrize(("name", "prior"), [(n, prior) for n in SOME for prior in PRIORS])


@each_problem
def test_posteriors_along_a_path_are_those_of_each_k_alone(name, prior):
    problem = solved(name, prior)
    rows = problem.precision.n_rows
    S = subset(problem.p, problem.p)
    ks = sorted({1, 2, min(rows - 1, problem.p), min(rows, problem.p), min(rows + 1, problem.p), problem.p})
    path = fit_path(problem.precision, S, ks)
    together = path_covariances(path, problem.test, 2**30)
    for k, posterior, found in zip(ks, path, together, strict=True):
        alone = fit_subnet(problem.precision, S[:k])
        assert torch.equal(posterior.indices, S[:k])
        assert posterior.form == alone.form
        variance = found.diagonal(dim1=1, dim2=2)
        assert_close(variance, reference.subnet_variance(problem.J_test, problem.omega, S[:k]))
        assert_close(variance, alone.variance(problem.test), 1e-9)
        assert_close(found, alone.covariance(problem.test), 1e-7)
        assert posterior.freedom == pytest.approx(alone.freedom, rel=1e-9)


def test_an_ill_conditioned_path_is_factorised_from_its_rows():
    problem = synthetic(1e5 * random_matrix(12, 1, 30), 1e-3)
    S = subset(30, 30)
    for k, posterior in zip((2, 5, 9), fit_path(problem.precision, S, [2, 5, 9]), strict=True):
        assert posterior.condition > QR_CONDITION
        found = posterior.variance(problem.test)
        assert_close(found, fit_subnet(problem.precision, S[:k]).variance(problem.test), 1e-8)


@each_problem
@pytest.mark.parametrize("panel", [3, 1024])
def test_gains_along_a_path_add_up_to_the_ipv_of_each_beginning(name, prior, panel, monkeypatch):
    monkeypatch.setattr(path_module, "GAINS_PANEL", panel)
    problem = solved(name, prior)
    rows, scale = problem.precision.n_rows, problem.sigma2 / len(problem.J)
    for longest in {min(rows, problem.p), problem.p}:  # primal and dual
        S = subset(problem.p, longest)
        reached = path_gains(problem.precision, S).cumsum(0) * scale
        assert bool((reached.diff() >= 0).all())
        for k in {1, 2, longest // 2, longest}:
            expected = reference.ipv(problem.J, problem.H, problem.v, S[:k], problem.sigma2)
            assert float(reached[k - 1]) == pytest.approx(float(expected), rel=1e-8)
