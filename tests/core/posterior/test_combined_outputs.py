"""Training rows with s combinations of the outputs, test rows with all 50: Ω on average, and dense posteriors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest
import reference
import torch
from cases import Attention, Case
from core.problems import PLENTY, assert_close, capture_of, prior_of, subset
from core.thread_workers import run_on_workers
from torch import Tensor, nn

from sublaplace_cli.core.jacobian.rows import HeldJacobian, n_outputs
from sublaplace_cli.core.kernels.arithmetic import Arithmetic
from sublaplace_cli.core.likelihoods.multiclass import Multiclass
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.posterior.bounds import bracket
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.path import fit_path, fit_subnet, path_covariances
from sublaplace_cli.core.selectors import SelectionProblem
from sublaplace_cli.core.selectors.greedy import greedy
from sublaplace_cli.core.selectors.variance import variance

C, S_OUTPUTS = 50, 4
CASES = {
    "mlp": Case(
        "mlp-50",
        "multiclass",
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, C)),
        lambda n: 3 * torch.randn(n, 4),
        n_outputs=C,
        n_train=12,
        n_test=3,
    ),
    "attention": Case(
        "attention-50",
        "multiclass",
        lambda: Attention(C),
        lambda n: torch.randint(0, 11, (n, 6)),
        n_outputs=C,
        n_train=9,
        n_test=3,
    ),
}
each_network = pytest.mark.parametrize("name", CASES)
priors = pytest.mark.parametrize("prior", ["equal", "unequal"])


@dataclass(frozen=True, eq=False)
class Problem:
    """One draw of the combinations, as the package and as the dense reference see it."""

    precision: Precision
    test: HeldJacobian
    omega: Tensor
    J_test: Tensor


@cache
def dense(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """(f, J of the training rows, J of the test rows) by plain autograd."""
    case = CASES[name]
    model, train, _, test, _ = case.make()
    f, J = reference.jacobian(model, train, case.n_train)
    return f, J, reference.jacobian(model, test, case.n_test)[1]


def combinations(f: Tensor, seed: int, count: int = S_OUTPUTS) -> Tensor:
    signs = 2.0 * torch.randint(0, 2, f.shape, generator=torch.Generator().manual_seed(seed)) - 1
    return Multiclass().combinations(f, signs, count)


@cache
def drawn(name: str, prior: str = "equal", count: int = S_OUTPUTS) -> Problem:
    case = CASES[name]
    capture, train = capture_of(case)
    f, J, J_test = dense(name)
    U = combinations(f, 0, count)
    layout = Layout.of(capture.model)
    rows = HeldJacobian(layout, f, tuple(capture(train, U=U).blocks))
    captured = capture(case.make()[3])
    root = torch.eye(count, dtype=torch.float64).expand(len(f), count, count)
    v = prior_of(prior, layout.size)
    omega = reference.precision(torch.einsum("ncs,ncp->nsp", U, J), root, v)
    test = HeldJacobian(layout, captured.f, tuple(captured.blocks))
    return Problem(Precision(rows, root, v, PLENTY), test, omega, J_test)


@each_network
def test_omega_is_unbiased(name):
    """The mean over many draws is the exact Ω, within its standard error at the sampled entries."""
    f, J, _ = dense(name)
    places = torch.randint(0, J.shape[2], (2, 400), generator=torch.Generator().manual_seed(1))
    left, right = (J[:, :, index] for index in places)  # (N, C, 400)
    exact = torch.einsum("ncj,ncd,ndj->j", left, reference.output_hessian("multiclass", f, 1.0), right)
    draws = []
    for seed in range(600):
        U = combinations(f, seed)
        draws.append((torch.einsum("ncs,ncj->nsj", U, left) * torch.einsum("ncs,ncj->nsj", U, right)).sum((0, 1)))
    found = torch.stack(draws)
    error = found.std(0) / len(found) ** 0.5
    z = (found.mean(0) - exact)[error > 0] / error[error > 0]
    assert len(z) > 200
    assert float(z.abs().max()) < 5  # of 400 normal numbers the largest is near 3
    assert 0.8 < float(z.square().mean().sqrt()) < 1.2


@each_network
@priors
@pytest.mark.parametrize("count", [1, S_OUTPUTS])
def test_posteriors_equal_the_dense_ones_with_the_same_combinations(name, prior, count):
    problem = drawn(name, prior, count)
    p = len(problem.omega)
    assert n_outputs(problem.precision.jacobian) == count
    assert n_outputs(problem.test) == C
    everything = torch.arange(p)
    full = fit_full(problem.precision)
    expected = reference.subnet_covariance(problem.J_test, problem.omega, everything)
    assert_close(full.covariance(problem.test), expected)
    for k in (5, problem.precision.n_rows + 7, p):
        S = subset(p, k)
        expected = reference.subnet_covariance(problem.J_test, problem.omega, S)
        for form in ("primal", "dual"):
            assert_close(fit_subnet(problem.precision, S, form).covariance(problem.test), expected)
    S = subset(p, p)
    path = fit_path(problem.precision, S, [5, p // 2])
    for posterior, found in zip(path, path_covariances(path, problem.test, PLENTY), strict=True):
        assert_close(found, reference.subnet_covariance(problem.J_test, problem.omega, posterior.indices))


@each_network
def test_residual_forms_at_a_weak_prior(name):
    """Where the dual form cancels, residuals mix rows with s and with C outputs."""
    problem = drawn(name)
    weak = replace(problem.precision, prior=torch.full_like(problem.precision.prior, 1e-9))
    omega = problem.omega - torch.diag(problem.precision.prior) + torch.diag(weak.prior)
    S = subset(len(omega), 6)
    exact = reference.subnet_covariance(problem.J_test, omega, S)
    assert_close(fit_subnet(weak, S, "dual").covariance(problem.test), exact, 1e-6)
    full = fit_full(weak)
    assert full.condition > 1e8
    assert float(full.variance(problem.test).min()) > 0


@each_network
def test_float32_products_check_themselves(name):
    problem = drawn(name)
    single = replace(problem.precision, gram_dtype=Arithmetic.FLOAT32)
    exact = fit_full(problem.precision).covariance(problem.test)
    assert_close(fit_full(single).covariance(problem.test), exact, 1e-2)


@each_network
def test_little_memory_and_several_workers_change_nothing(name):
    problem = drawn(name)
    p = len(problem.omega)
    S = subset(p, 9)

    def work(rows):
        precision = replace(problem.precision, jacobian=rows["train"], memory=2**15)
        large = replace(precision, memory=PLENTY)
        few = bracket(precision, rows["test"], torch.full((3, C, C), 1e3, dtype=torch.float64), 4, [])
        return [
            precision.gram(),
            precision.cross_gram(rows["test"]),
            fit_subnet(precision, S).covariance(rows["test"]),
            fit_full(large).covariance(rows["test"]),
            few.high,
        ]

    rows = {"train": problem.precision.jacobian, "test": problem.test}
    expected = work(rows)
    for size in (1, 2):
        found, _ = run_on_workers(size, 2, rows, work)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, 1e-9)


@each_network
def test_selections_follow_the_dense_omega(name):
    problem = drawn(name)
    diagonal = problem.precision.data_diagonal()
    asked = SelectionProblem(problem.precision, diagonal, diagonal, diagonal, (), other_rows=problem.test)
    expected = reference.greedy_selection(problem.omega, problem.precision.prior, 8)
    assert greedy(asked, 8).indices.tolist() == expected
    if name == "mlp":  # the reference tries out every parameter
        assert (
            variance(asked, 3).indices.tolist()
            == reference.variance_selection(problem.J_test, problem.omega, 3)[0].tolist()
        )
