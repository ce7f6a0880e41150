"""Degrees of freedom and left-out variances from certified variances at a sample of the training rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from core.posterior.test_rescale import SOME
from core.problems import assert_close, solved

from sublaplace_cli.core.features.sketch import Sketch
from sublaplace_cli.core.features.views import EntryView, view_of
from sublaplace_cli.core.gaussian import diagonal_covariance
from sublaplace_cli.core.jacobian.sharded import some_rows
from sublaplace_cli.core.posterior.certified.intervals import certified_variances
from sublaplace_cli.core.posterior.certified.preconditioners import cholesky_preconditioner, no_preconditioner
from sublaplace_cli.core.posterior.certified.training_rows import SampledRows
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.left_out import LeftOut, left_out, left_out_of
from sublaplace_cli.core.posterior.path import fit_subnet

each_problem = pytest.mark.parametrize("name", SOME)


def sampled(problem, rows, tolerance=1e-6, rank=None) -> SampledRows:
    precision = problem.precision
    preconditioner = no_preconditioner(precision) if rank is None else cholesky_preconditioner(precision, rank)
    some = some_rows(precision.jacobian, rows.tolist())
    found = certified_variances(precision, some, tolerance, 1000, preconditioner)
    return SampledRows(rows, len(precision.root), precision.root[rows], found, preconditioner)


@each_problem
def test_all_rows_give_the_numbers_of_the_full_posterior(name):
    problem = solved(name, "unequal")
    full, N = fit_full(problem.precision), len(problem.precision.root)
    own = sampled(problem, torch.arange(N))
    assert own.freedom.value == pytest.approx(full.freedom, rel=1e-4)
    assert abs(own.freedom.value - full.freedom) <= own.freedom.half_width * (1 + 1e-6) + 1e-9
    found, dropped = own.left_out()
    assert dropped == 0
    assert_close(found.variances, left_out(full, problem.precision), 1e-4)


@each_problem
@pytest.mark.parametrize("rank", [None, 4])
def test_a_sample_gives_an_estimate_with_an_error(name, rank):
    problem = solved(name, "equal")
    full, N = fit_full(problem.precision), len(problem.precision.root)
    generator = torch.Generator().manual_seed(1)
    estimates = [
        sampled(problem, torch.randperm(N, generator=generator)[: N // 2].sort().values, rank=rank).freedom
        for _ in range(40)
    ]
    inside = sum(abs(each.value - full.freedom) <= each.half_width for each in estimates)
    assert inside >= 30  # 95 % in the limit of large samples
    mean = sum(each.value for each in estimates) / len(estimates)
    assert mean == pytest.approx(full.freedom, rel=0.05)


def test_a_good_preconditioner_makes_the_estimate_sharper():
    problem = solved("mlp", "equal")
    rows = torch.arange(0, len(problem.precision.root), 3)
    plain, sharp = (sampled(problem, rows, rank=rank).freedom.half_width for rank in (None, 12))
    assert sharp < plain / 2


@pytest.mark.parametrize("tolerance", [0.2, 0.02])
def test_the_half_width_covers_the_intervals(tolerance):
    problem = solved("mlp-3-outputs", "equal")
    full, N = fit_full(problem.precision), len(problem.precision.root)
    estimate = sampled(problem, torch.arange(N), tolerance).freedom
    assert abs(estimate.value - full.freedom) <= estimate.half_width


def test_rows_that_may_determine_their_output_alone_are_dropped():
    problem = solved("mlp", "equal")
    N = len(problem.precision.root)
    own = sampled(problem, torch.arange(N))
    wide = replace(own.found, high=own.found.high.clone())
    limit = 1 / own.root[0].square()  # at which the row's share is 1
    wide.high[0] = 1.01 * float(limit)
    wide = replace(wide, covariance=diagonal_covariance(wide.std.square()))
    found, dropped = replace(own, found=wide).left_out()
    assert dropped == 1
    assert found.rows.tolist() == list(range(1, N))
    assert_close(found.variances, own.left_out()[0].variances[1:], 1e-12)


@each_problem
@pytest.mark.parametrize("k", [3, 60])  # primal and dual
def test_a_sub_network_or_features_at_the_same_rows(name, k):
    problem = solved(name, "unequal")
    precision, rows = problem.precision, torch.tensor([1, 4, 7])
    k = min(k, problem.p)
    S = torch.arange(k)
    views = [EntryView(S), view_of(Sketch(k, 2), precision.layout, precision.prior, precision.memory)]
    for view in views:
        posterior = fit_subnet(view.precision(precision), view.indices)
        every = left_out_of(posterior, view, precision, LeftOut(torch.empty(0)))
        some = left_out_of(posterior, view, precision, LeftOut(torch.empty(0), rows))
        assert_close(some, every[rows], 1e-10)
