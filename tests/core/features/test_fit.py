"""A posterior over features: a sub-network's for a subset, that of the dense formula for any map."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from core.features.dense_maps import features_of
from core.problems import PLENTY, Problem, assert_close, capture_of, case_named, prior_of, solved, subset
from core.test_workers import distribute, problem_of

from sublaplace_cli.core.features import FeatureMap
from sublaplace_cli.core.features.beside import Beside
from sublaplace_cli.core.features.rows import FeatureJacobian
from sublaplace_cli.core.features.sketch import Sketch
from sublaplace_cli.core.features.subset import Subset
from sublaplace_cli.core.jacobian.rows import HeldJacobian, RecomputedJacobian
from sublaplace_cli.core.posterior.features import fit_features
from sublaplace_cli.core.posterior.left_out import left_out
from sublaplace_cli.core.posterior.path import fit_subnet
from sublaplace_cli.core.posterior.subnet_dual import SubnetDual
from sublaplace_cli.core.posterior.subnet_primal import SubnetPrimal

NAMES = ["mlp", "mlp-multiclass", "conv-binary", "attention"]
each_case = pytest.mark.parametrize("name", NAMES)
each_prior = pytest.mark.parametrize("prior", ["equal", "unequal"])


def variance_by_formula(problem: Problem, feature_map: FeatureMap) -> tuple[torch.Tensor, float]:
    """(Φg′)ᵀ (I + ΦA′ᵀA′Φᵀ)⁻¹ Φg′ and the degrees of freedom, dense."""
    layout, root = problem.precision.layout, problem.precision.root
    A = torch.einsum("ncd,nck->ndk", root, features_of(feature_map, layout, problem.v, problem.J)).flatten(0, 1)
    g = features_of(feature_map, layout, problem.v, problem.J_test)
    data = A.T @ A
    inverse = torch.linalg.inv(data + torch.eye(len(data), dtype=torch.float64))
    return torch.einsum("nck,kl,ndl->ncd", g, inverse, g), float((inverse @ data).trace())


@pytest.mark.parametrize("k", [6, 150])  # primal and dual
@each_prior
@each_case
def test_the_posterior_is_that_of_the_dense_formula(name, prior, k):
    problem = solved(name, prior)
    S = Subset(subset(problem.p, 5))
    for feature_map in (Sketch(k, 1), Beside(S, Sketch(k, 2))):
        posterior = fit_features(problem.precision, feature_map)
        covariance, freedom = variance_by_formula(problem, feature_map)
        assert_close(posterior.covariance(problem.test), covariance)
        assert posterior.freedom == pytest.approx(freedom, rel=1e-8)
        kind = SubnetPrimal if feature_map.k <= problem.precision.n_rows else SubnetDual
        assert isinstance(posterior.over_features, kind)


@each_prior
@each_case
def test_a_subset_is_a_sub_network(name, prior):
    problem = solved(name, prior)
    S = subset(problem.p, 9)
    posterior, expected = fit_features(problem.precision, Subset(S)), fit_subnet(problem.precision, S)
    assert_close(posterior.covariance(problem.test), expected.covariance(problem.test), 1e-12)
    assert_close(posterior.own_shares(problem.precision), expected.own_shares(problem.precision), 1e-10)
    assert_close(left_out(posterior, problem.precision), left_out(expected, problem.precision), 1e-10)


@pytest.mark.parametrize("name", ["mlp", "conv", "attention", "mlp-over-positions"])
def test_features_have_the_same_bits_for_any_pass_tile_and_memory(name):
    capture, train = capture_of(case_named(name), torch.float32)
    captured, layout = capture(train), capture.layout
    n = len(captured.f)

    def compute(start: int, stop: int):
        blocks = capture(train).blocks  # one pass, so that only the cut is another
        return [block.rows(start, stop) for block in blocks]

    features = Beside(Subset(subset(layout.size, 5)), Sketch(50, 4)).on(layout, prior_of("equal", layout.size))
    held = HeldJacobian(layout, captured.f, tuple(captured.blocks))
    whole = FeatureJacobian(held, features, 55, PLENTY).load(0, n)[0].values
    for memory in (1, 10**5, PLENTY):
        for rows_per_read in (1, 4, 16):
            source = RecomputedJacobian(layout, captured.f, capture.templates, compute, rows_per_read)
            for jacobian in (held, source):
                made = FeatureJacobian(jacobian, features, 55, memory)
                assert torch.equal(made.load(0, n)[0].values, whole)
                assert torch.equal(made.load(3, 11)[0].values, whole[3:11])


def test_the_fit_does_not_depend_on_memory():
    problem = solved("conv-multiclass")
    expected = fit_features(problem.precision, Sketch(20)).covariance(problem.test)
    few = replace(problem.precision, memory=10_000)
    assert_close(fit_features(few, Sketch(20)).covariance(problem.test), expected, 1e-10)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", ["mlp-multiclass", "conv-binary"])
def test_features_and_their_posterior_have_the_same_bits_for_any_number_of_workers(name, workers):
    problem = problem_of(name, "unequal")
    S = Subset(subset(problem.p, 5))

    def work(precision, test):
        posterior = fit_features(precision, Beside(S, Sketch(12, 3)))
        rows = posterior.view.rows(precision.jacobian)
        return rows.load(0, problem.precision.root.shape[0])[0].values, posterior.covariance(test)

    for found, expected in zip(
        distribute(problem, workers, 3, work)[0], work(problem.precision, problem.test), strict=True
    ):
        assert torch.equal(found, expected)
