"""Certified intervals of the full posterior: they hold in floating point, and close with enough steps."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import pytest
import torch
from cases import CASES
from core.posterior.test_conditioning import CONDITIONS, SHAPES, conditioned, exact
from core.problems import PRIORS, Problem, assert_close, random_matrix, solved, subset, synthetic
from core.thread_workers import run_on_workers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.posterior.certified import intervals
from sublaplace_cli.core.posterior.certified.intervals import CertifiedVariances, certified_variances, half_width
from sublaplace_cli.core.posterior.certified.preconditioners import (
    Preconditioner,
    cholesky_preconditioner,
    no_preconditioner,
    subnet_preconditioner,
)
from sublaplace_cli.core.posterior.certified.system import System
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.errors import NumericsError, Reason

NAMES = [case.name for case in CASES]
MANY = 500
KINDS = {
    "none": no_preconditioner,
    "cholesky": lambda precision: cholesky_preconditioner(precision, max(1, precision.n_rows // 3)),
    "subnet": lambda precision: subnet_preconditioner(precision, subset(len(precision.prior), 10)),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def assert_contained(found: CertifiedVariances, variance: Tensor, allowed: float = 0.0) -> None:
    """`allowed` is the relative error of `variance` itself."""
    assert bool((found.low >= 0).all())
    assert bool((found.low <= variance * (1 + allowed)).all())
    assert bool((found.high >= variance * (1 - allowed)).all())


def dense_variance(problem: Problem) -> Tensor:
    """gᵀΩ⁻¹g (M, C) to 50 digits, from the rows' matrix, which is the smaller one here."""
    with mpmath.workdps(50):
        weights = mpmath.matrix(torch.block_diag(*problem.precision.root.mT).tolist())
        scale = mpmath.diag([1 / mpmath.sqrt(x) for x in problem.v.tolist()])
        A = weights * mpmath.matrix(problem.J.flatten(0, 1).tolist()) * scale
        G = scale * mpmath.matrix(problem.J_test.flatten(0, 1).tolist()).T
        cross = A * G
        w = (A * A.T + mpmath.eye(A.rows)) ** -1 * cross
        values = [
            mpmath.fsum(G[i, m] ** 2 for i in range(G.rows)) - mpmath.fsum(cross[i, m] * w[i, m] for i in range(A.rows))
            for m in range(G.cols)
        ]
        return torch.tensor([float(x) for x in values], dtype=torch.float64).reshape(problem.J_test.shape[:2])


@each_kind
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", NAMES)
def test_every_interval_contains_the_exact_variance(name, prior, kind):
    problem = solved(name, prior)
    variance = fit_full(problem.precision).variance(problem.test)
    preconditioner = KINDS[kind](problem.precision)
    for tolerance, steps in [(0.05, MANY), (1e-4, MANY), (0.01, 1), (0.01, 3), (0.01, 4)]:
        found = certified_variances(problem.precision, problem.test, tolerance, steps, preconditioner)
        assert_contained(found, variance, 1e-9)
        wide = (half_width(found.low, found.high) > tolerance).any(1)
        assert found.missed.tolist() == wide.nonzero().squeeze(1).tolist()
        assert not (steps == MANY and len(found.missed))
        assert found.steps <= steps


@each_kind
@pytest.mark.parametrize("condition", [c for c in CONDITIONS if c <= 2e8])
@pytest.mark.parametrize("shape", SHAPES)
def test_ill_conditioned_intervals_contain_fifty_digits(shape, condition, kind):
    problem = conditioned(shape, condition)
    variance, _ = exact(problem, "full")
    preconditioner = KINDS[kind](problem.precision)
    for tolerance, steps in [(1e-2, MANY), (1e-3, MANY), (1e-2, 4), (1e-2, 9)]:
        found = certified_variances(problem.precision, problem.test, tolerance, steps, preconditioner)
        assert_contained(found, variance.unsqueeze(1))
        assert not (steps == MANY and len(found.missed))


@pytest.mark.parametrize("condition", [1e10, 1e12])
@pytest.mark.parametrize("shape", SHAPES)
def test_beyond_that_intervals_still_hold(shape, condition):
    problem = conditioned(shape, condition)
    found = certified_variances(problem.precision, problem.test, 1e-2, MANY)
    assert_contained(found, exact(problem, "full")[0].unsqueeze(1))


@settings(deadline=None, max_examples=40)
@given(
    N=st.integers(1, 9),
    C=st.integers(1, 3),
    p=st.integers(1, 12),
    kappa=st.floats(-2, 8),
    steps=st.integers(1, 40),
    tolerance=st.sampled_from([0.3, 0.05, 1e-3]),
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 10**6),
)
def test_any_problem(N, C, p, kappa, steps, tolerance, kind, seed):
    J = random_matrix(N, C, p, seed=seed)
    J[:, :, : p // 2] *= 1e-3
    sigma2 = float(torch.linalg.matrix_norm(J.flatten(0, 1), 2)) ** 2 / 10**kappa
    test = torch.cat([J[:1], J[:1] - J[-1:], random_matrix(3, C, p, seed=seed + 1), torch.zeros(1, C, p).double()])
    v = 10 ** random_matrix(p, seed=seed + 2).clamp(-1, 1)
    problem = synthetic(J, v, sigma2, test)
    kinds = {**KINDS, "subnet": lambda precision: subnet_preconditioner(precision, subset(p, (p + 1) // 2))}
    found = certified_variances(problem.precision, problem.test, tolerance, steps, kinds[kind](problem.precision))
    assert_contained(found, dense_variance(problem))


def test_the_bound_is_that_of_its_formula():
    problem = solved("mlp-3-outputs", "unequal")
    precision = problem.precision
    A = torch.einsum("ncd,ncp->ndp", precision.root, problem.J).flatten(0, 1) / problem.v.sqrt()
    G = (problem.J_test / problem.v.sqrt()).flatten(0, 1).T
    M = A @ A.T + torch.eye(len(A)).double()
    z = torch.linalg.solve(M, A @ G) + 1e-4 * random_matrix(len(A), G.shape[1])
    residual = A @ G - M @ z
    u = G.square().sum(0) - 2 * ((A @ G) * z).sum(0) + (z * (M @ z)).sum(0)
    for kind in KINDS:
        preconditioner = KINDS[kind](precision)
        P = torch.eye(len(A)).double() + preconditioner.B @ preconditioner.B.T
        gap = (residual * torch.linalg.solve(P, residual)).sum(0)
        assert bool((u > 2 * gap).all())
        found = System(precision, preconditioner).certificate(G, z)
        assert_close(found.residual, residual)
        assert_close(found.high, u, 1e-9)
        assert_close(found.high - found.low, gap, 1e-6)  # a difference of larger numbers, and rounding is added to it
        assert_close(preconditioner.lengths(residual).square(), gap, 1e-9)
        assert_close(preconditioner.inverse_root(residual).square().sum(0), gap, 1e-9)


def slow_problem() -> Problem:
    """Eigenvalues of K from 1e6 down to 10, so that conjugate gradients need many steps."""
    N, p = 120, 150
    left, right = (torch.linalg.qr(random_matrix(n, N, seed=n)).Q for n in (N, p))
    J = left * torch.logspace(3, 0.5, N, dtype=torch.float64) @ right.T
    return synthetic(J, J_test=random_matrix(3, p, seed=3))


def test_preconditioners_need_fewer_steps():
    problem = slow_problem()
    plain = certified_variances(problem.precision, problem.test, 0.01, MANY)
    factor = cholesky_preconditioner(problem.precision, 60)
    subnet = subnet_preconditioner(problem.precision, problem.precision.data_diagonal().topk(100).indices)
    for preconditioner, share in [(factor, 0.5), (subnet, 0.8)]:
        found = certified_variances(problem.precision, problem.test, 0.01, MANY, preconditioner)
        assert_contained(found, fit_full(problem.precision).variance(problem.test), 1e-9)
        assert len(found.missed) == len(plain.missed) == 0
        assert found.steps < share * plain.steps


def test_more_steps_narrow_the_intervals():
    problem = slow_problem()
    widths = [
        float(half_width(found.low, found.high).max())
        for steps in (1, 10, 20, 40, 120)
        for found in [certified_variances(problem.precision, problem.test, 1e-6, steps)]
    ]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 1.0
    assert widths[-1] < 0.1


def test_test_rows_that_repeat_each_other():
    problem = slow_problem()
    rows = problem.J_test[:, 0]
    repeated = torch.cat([rows, rows, 2 * rows[:1], rows[:1] + rows[1:2], 0 * rows[:1]])
    again = synthetic(problem.J[:, 0], J_test=repeated)
    found = certified_variances(again.precision, again.test, 0.01, MANY)
    assert_contained(found, fit_full(again.precision).variance(again.test), 1e-9)
    assert len(found.missed) == 0
    assert float(found.high[-1]) == 0.0


@pytest.mark.parametrize("name", ["mlp-3-outputs", "mlp-multiclass", "conv-multiclass"])
def test_covariances_of_a_row_have_the_middles_on_their_diagonal(name):
    problem = solved(name, "unequal")
    exact_one = fit_full(problem.precision).covariance(problem.test)
    size = exact_one.diagonal(dim1=1, dim2=2).sqrt()
    for tolerance in (0.05, 1e-3):
        found = certified_variances(problem.precision, problem.test, tolerance, MANY)
        assert_close(found.covariance.diagonal(dim1=1, dim2=2), found.std.square(), 1e-12)
        # Off the diagonal the excess RᵀM⁻¹R is no larger than on it.
        error = (found.covariance - exact_one).abs() / (size.unsqueeze(2) * size.unsqueeze(1))
        assert float(error.max()) <= 8 * tolerance


def in_float32(problem: Problem) -> Precision:
    (block,) = problem.precision.jacobian.blocks
    rows = replace(problem.precision.jacobian, blocks=(replace(block, values=block.values.float()),))
    return replace(problem.precision, jacobian=rows)


@each_kind
def test_rows_in_float32_are_multiplied_in_float32(kind, monkeypatch):
    problem, types, multiply = slow_problem(), set(), System.multiply
    precision = in_float32(problem)
    monkeypatch.setattr(System, "multiply", lambda own, X, dtype: types.add(dtype) or multiply(own, X, dtype))
    make = {**KINDS, "subnet": lambda own: subnet_preconditioner(own, own.data_diagonal().topk(100).indices)}[kind]
    for tolerance in (0.05, 1e-6):
        found = certified_variances(precision, problem.test, tolerance, 4 * MANY, make(precision))
        assert_contained(found, fit_full(precision).variance(problem.test), 1e-9)
        assert len(found.missed) == 0
    assert types == {torch.float32}


def test_where_float32_does_not_help_float64_does(monkeypatch):
    problem, multiply = slow_problem(), System.multiply
    precision = in_float32(problem)

    def no_help(own: System, X: Tensor, dtype: torch.dtype) -> Tensor:
        return 1e6 * X if dtype == torch.float32 else multiply(own, X, dtype)

    monkeypatch.setattr(System, "multiply", no_help)
    found = certified_variances(precision, problem.test, 0.01, MANY)
    assert_contained(found, fit_full(precision).variance(problem.test), 1e-9)
    assert len(found.missed) == 0


def test_batches_by_memory(monkeypatch):
    problem = solved("mlp-3-outputs")
    whole = certified_variances(problem.precision, problem.test, 1e-3, MANY)
    monkeypatch.setattr(intervals, "rows_at_once", lambda *_: 2)
    parts = certified_variances(problem.precision, problem.test, 1e-3, MANY)
    variance = fit_full(problem.precision).variance(problem.test)
    for found in (whole, parts):
        assert_contained(found, variance, 1e-9)
        assert len(found.missed) == 0


def test_the_batch_follows_from_the_memory():
    precision = solved("mlp").precision
    sizes = [intervals.rows_at_once(replace(precision, memory=memory), 1) for memory in (0, 2**17, 2**18, 2**30)]
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] == intervals.MOST_AT_ONCE == 10 * intervals.rows_at_once(replace(precision, memory=2**30), 10) + 6
    vectors = intervals.PARAMETER_VECTORS * len(precision.prior) + intervals.ROW_VECTORS * precision.n_rows
    assert 2**17 < 8 * vectors * 2 * (sizes[2] + 1) <= 2**18 + 16 * vectors


def test_a_gradient_that_is_not_finite_is_refused():
    rows = random_matrix(2, 6)
    rows[1, 3] = torch.nan
    problem = synthetic(random_matrix(5, 6, seed=1), J_test=rows)
    with pytest.raises(NumericsError) as refused:
        certified_variances(problem.precision, problem.test, 0.01, MANY)
    assert refused.value.reason == Reason.GRADIENT_NOT_FINITE


class Shown:
    """What a progress bar was told."""

    def __init__(self) -> None:
        self.total, self.done, self.labels = 0, 0, []

    def __call__(self, label: str, total: int) -> Shown:
        self.labels, self.total = [label], total
        return self

    def advance(self, amount: int) -> None:
        assert amount >= 0
        self.done += amount

    def describe(self, label: str) -> None:
        self.labels.append(label)

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *exc: object) -> None: ...


@pytest.mark.parametrize("at_once", [2, 100])
def test_progress_counts_what_is_done_and_shows_the_widest_interval(at_once, monkeypatch):
    monkeypatch.setattr(intervals, "rows_at_once", lambda *_: at_once)
    problem, shown = slow_problem(), Shown()
    found = certified_variances(problem.precision, problem.test, 0.01, MANY, progress=shown)
    assert len(found.missed) == 0
    assert shown.done == shown.total == found.low.numel()
    assert shown.labels[1].endswith("± 100 %")
    assert len(shown.labels) > 10


@each_kind
@pytest.mark.parametrize(("size", "rows_per_piece"), [(2, 3), (3, 64)], ids=["two", "two without rows"])
@pytest.mark.parametrize("name", ["mlp-3-outputs", "conv-binary", "mlp-multiclass", "token-block"])
def test_several_workers_give_the_same_intervals(name, size, rows_per_piece, kind):
    problem = solved(name, "unequal")

    def work(precision: Precision, test) -> tuple[Preconditioner, CertifiedVariances]:
        preconditioner = KINDS[kind](precision)
        return preconditioner, certified_variances(precision, test, 1e-3, MANY, preconditioner)

    jacobians = {"train": problem.precision.jacobian, "test": problem.test}
    alone = work(problem.precision, problem.test)
    (preconditioner, found), called = run_on_workers(
        size,
        rows_per_piece,
        jacobians,
        lambda rows: work(replace(problem.precision, jacobian=rows["train"]), rows["test"]),
    )
    assert {"pull", "push", "own_products"} <= set(called)
    assert torch.allclose(preconditioner.B, alone[0].B, rtol=1e-9, atol=1e-9 * float(alone[0].B.abs().sum()))
    assert found.steps == alone[1].steps
    assert_close(found.low, alone[1].low, 1e-9)
    assert_close(found.high, alone[1].high, 1e-9)
