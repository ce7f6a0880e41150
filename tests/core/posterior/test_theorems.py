"""The paper's three theorems, on matrices that satisfy their assumptions exactly."""

from __future__ import annotations

from itertools import combinations

import pytest
import reference
import torch
from core.problems import PLENTY, Problem, synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from sublaplace_cli.core.omega.row_sums import own_products
from sublaplace_cli.core.posterior.bounds import require_not_larger
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.path import fit_subnet
from sublaplace_cli.core.selectors.gradient import gradient
from sublaplace_cli.core.selectors.subnet_diagonal import subnet_diagonal
from sublaplace_cli.errors import NumericsError

P, K = 8, 3
EPS = torch.finfo(torch.float64).eps


@st.composite
def nested_problems(draw) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    """A problem with any shape, scale, rank, noise and priors, and S ⊆ S′."""
    N, C, p = draw(st.integers(1, 12)), draw(st.integers(1, 3)), draw(st.integers(2, 20))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rank = draw(st.integers(1, p))
    mix = torch.randn(rank, p, dtype=torch.float64, generator=generator)
    columns = 10 ** (draw(st.floats(0, 2)) * torch.randn(p, dtype=torch.float64, generator=generator).clamp(-2, 2))
    rows = torch.randn(N + 4, C, rank, dtype=torch.float64, generator=generator) @ mix * columns
    v = 10 ** (draw(st.floats(0, 2)) * torch.randn(p, dtype=torch.float64, generator=generator).clamp(-2, 2))
    problem = synthetic(rows[:N], v, 10 ** draw(st.floats(-2, 2)), torch.cat([rows[N:], rows[:2]]))
    order = torch.randperm(p, generator=generator)
    large = draw(st.integers(2, p))
    return problem, order[: draw(st.integers(1, large))], order[:large]


forms = st.sampled_from(["primal", "dual"])


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(nested_problems(), forms, forms)
def test_theorem_1_a_larger_subnet_never_has_a_smaller_variance(made, small_form, large_form):
    problem, S, larger = made
    products = own_products(problem.test, problem.v, PLENTY)
    small, large = fit_subnet(problem.precision, S, small_form), fit_subnet(problem.precision, larger, large_form)
    full = fit_full(problem.precision)
    variances = [posterior.variance(problem.test) for posterior in (small, large)]
    variances.append(full.variance(problem.test))
    require_not_larger(variances[0], variances[1], products, "S", "S'")
    require_not_larger(variances[1], variances[2], products, "S'", "all")
    # IPV is a mean of such variances over the training rows, with the same rounding: 400 eps of their ‖g‖² in V⁻¹.
    rounding = 400 * EPS * float((problem.precision.data_diagonal() / problem.v).sum())
    assert small.freedom <= large.freedom * (1 + 1e-9) + rounding
    assert large.freedom <= full.freedom * (1 + 1e-9) + rounding


def test_theorem_1_on_paper():
    """IPV by the dense formula over a chain of all sizes: the reference obeys the theorem too."""
    problem = synthetic(torch.randn(9, P, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), 0.3, 0.2)
    chain = [reference.ipv(problem.J, problem.H, problem.v, torch.arange(k), problem.sigma2) for k in range(1, P + 1)]
    assert chain == sorted(chain)
    assert chain[0] > 0


def alarm(smaller: list[list[float]], larger: list[list[float]], norm: float = 1.0) -> None:
    large = torch.tensor(larger, dtype=torch.float64)
    products = torch.full((*large.shape, large.shape[1]), norm)
    require_not_larger(torch.tensor(smaller, dtype=torch.float64), large, products, "A", "B")


def test_the_alarm_names_row_output_and_both_sides():
    with pytest.raises(NumericsError, match=r"row 1, output 0: the variance of A is 0\.5, that of B is 0\.4.*1 of 4"):
        alarm([[0.1, 0.2], [0.5, 0.2]], [[0.1, 0.3], [0.4, 0.2]])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_alarm_goes_off_for_what_is_not_a_number(bad):
    with pytest.raises(NumericsError, match="Theorem 1"):
        alarm([[bad]], [[1.0]])


def test_the_alarm_goes_off_where_the_larger_is_not_a_number():
    with pytest.raises(NumericsError, match="Theorem 1"):
        alarm([[0.5]], [[float("nan")]])


def test_the_alarm_allows_rounding_and_no_more():
    """1e-9 of the variance, and 400 eps of ‖g‖²."""
    alarm([[1.0 + 0.9e-9]], [[1.0]], norm=0.0)
    with pytest.raises(NumericsError):
        alarm([[1.0 + 1.1e-9]], [[1.0]], norm=0.0)
    alarm([[390 * EPS * 1e6]], [[0.0]], norm=1e6)
    with pytest.raises(NumericsError):
        alarm([[410 * EPS * 1e6]], [[0.0]], norm=1e6)


def moment_problem(second_moment: torch.Tensor, sigma2: float, c: float) -> Problem:
    """p rows with JᵀJ/N = Λ exactly: the transposed Cholesky factor of N·Λ."""
    N = len(second_moment)
    problem = synthetic(torch.linalg.cholesky(N * second_moment).T, c, sigma2)
    torch.testing.assert_close(problem.J[:, 0].T @ problem.J[:, 0] / N, second_moment, rtol=1e-12, atol=1e-12)
    return problem


def ipvs(problem: Problem, k: int) -> dict[frozenset[int], float]:
    """IPV of every subset of size k, by the dense formula."""
    return {
        frozenset(S): reference.ipv(problem.J, problem.H, problem.v, list(S), problem.sigma2)
        for S in combinations(range(problem.p), k)
    }


def chosen(method, problem: Problem, k: int) -> frozenset[int]:
    return frozenset(method(problem.selection(), k).indices.tolist())


seeds = st.integers(0, 2**31)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(seeds, st.floats(-0.9, 5.0), st.floats(0.01, 3.0), st.floats(-3, 2), st.floats(-2, 2), st.integers(1, P - 1))
def test_theorem_2_gradient_is_best_and_subnet_diagonal_worst(seed, a, b, log_sigma2, log_c, k):
    """Λ = D + C, C = b(I + a·11ᵀ/p) permutation-invariant and positive, V = cI: over all subsets of size k."""
    diagonal = torch.rand(P, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.05
    invariant = b * (torch.eye(P, dtype=torch.float64) + a * torch.ones(P, P, dtype=torch.float64) / P)
    assert float(torch.linalg.eigvalsh(invariant)[0]) > 0
    problem = moment_problem(torch.diag(diagonal) + invariant, 10**log_sigma2, 10**log_c)
    values = ipvs(problem, k)
    best, worst = values[chosen(gradient, problem, k)], values[chosen(subnet_diagonal, problem, k)]
    assert best >= max(values.values()) * (1 - 1e-9)
    assert worst <= min(values.values()) * (1 + 1e-9)


def test_theorem_2_needs_its_assumption():
    """A guard on the test above: two strongly correlated large columns, and gradient is not the best any more."""
    second_moment = torch.eye(P, dtype=torch.float64)
    second_moment[0, 0] = second_moment[1, 1] = 1.1
    second_moment[0, 1] = second_moment[1, 0] = 1.0999
    problem = moment_problem(second_moment, 1.0, 1.0)
    values = ipvs(problem, 2)
    assert chosen(gradient, problem, 2) == {0, 1}
    assert values[frozenset({0, 1})] < max(values.values()) * 0.9


def dominant(seed: int, epsilon: float, ratio: float, step: int) -> torch.Tensor:
    """ε-diagonally dominant: ε Λ_ii > Σ_j |Λ_ij|; its diagonal falls by a factor > `ratio` after `step` entries."""
    generator = torch.Generator().manual_seed(seed)
    diagonal = 1 + 0.5 * torch.rand(P, dtype=torch.float64, generator=generator)
    above = 1.001 + torch.rand(step, dtype=torch.float64, generator=generator)
    diagonal[:step] = diagonal[step:].max() * ratio * above
    off = torch.randn(P, P, dtype=torch.float64, generator=generator)
    off = (off + off.T).fill_diagonal_(0.0)
    # Scaled by the smaller of the two rows' allowances, so that each row keeps within its own.
    allowance = 0.999 * epsilon * diagonal / off.abs().sum(1)
    off = off * torch.minimum(allowance.unsqueeze(0), allowance.unsqueeze(1))
    second_moment = torch.diag(diagonal) + off
    assert bool((epsilon * diagonal > off.abs().sum(1)).all())
    order = torch.randperm(P, generator=generator)
    return second_moment[order][:, order]


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(seeds, st.floats(0.05, 0.95), st.floats(-3, 2), st.floats(-2, 2))
def test_theorem_3_gradient_is_not_worse_than_any_disjoint_subset(seed, epsilon, log_sigma2, log_c):
    second_moment = dominant(seed, epsilon, (1 + epsilon) / (1 - epsilon), K)
    diagonal = second_moment.diagonal().sort(descending=True).values
    assert float(diagonal[K - 1] / diagonal[K]) > (1 + epsilon) / (1 - epsilon)
    problem = moment_problem(second_moment, 10**log_sigma2, 10**log_c)
    values = ipvs(problem, K)
    best = chosen(gradient, problem, K)
    rivals = [S for S in values if S.isdisjoint(best)]
    assert len(rivals) == 10  # 3 of the other 5
    assert all(values[best] >= values[S] * (1 - 1e-9) for S in rivals)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(seeds, st.floats(0.05, 0.95), st.floats(-3, 2), st.floats(-2, 2))
def test_theorem_3_gradient_is_not_worse_than_subnet_diagonal(seed, epsilon, log_sigma2, log_c):
    """The weaker condition: the k-th largest against the k-th smallest, a step anywhere between them."""
    second_moment = dominant(seed, epsilon, (1 + epsilon) / (1 - epsilon), P - K)
    diagonal = second_moment.diagonal().sort(descending=True).values
    assert float(diagonal[K - 1] / diagonal[P - K]) > (1 + epsilon) / (1 - epsilon)
    problem = moment_problem(second_moment, 10**log_sigma2, 10**log_c)
    values = ipvs(problem, K)
    assert values[chosen(gradient, problem, K)] >= values[chosen(subnet_diagonal, problem, K)] * (1 - 1e-9)


def test_the_posterior_gives_the_ipv_of_the_theorems():
    """tr((Λ + σ₀²V/N)⁻¹Λ)·σ₀²/N over S, from Λ alone, is what `freedom` reports."""
    second_moment = dominant(3, 0.5, 3.0, K)
    problem = moment_problem(second_moment, 0.2, 1.5)
    S = [0, 4, 5]
    ridge = 0.2 * 1.5 / P * torch.eye(3, dtype=torch.float64)
    inner = second_moment[S][:, S]
    ipv = 0.2 / P * float(torch.trace(torch.linalg.solve(inner + ridge, inner)))
    for form in ("primal", "dual"):
        freedom = fit_subnet(problem.precision, torch.tensor(S), form).freedom
        assert freedom * 0.2 / P == pytest.approx(ipv, rel=1e-10)
