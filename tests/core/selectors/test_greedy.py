"""Greedy-Laplace: the lazy panels give the order of the literal Algorithm 2, over any pool and in both Schur forms."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import replace
from functools import cache

import pytest
import reference
import torch
from cases import CASES
from core.problems import PLENTY, PRIORS, Problem, assert_close, prior_of, random_matrix, solved, subset, synthetic
from scipy.linalg.lapack import dpstrf

from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.posterior.path import path_gains
from sublaplace_cli.core.selectors import Selection, SelectorFacts
from sublaplace_cli.core.selectors import greedy as module
from sublaplace_cli.core.selectors import variance as variance_module
from sublaplace_cli.core.selectors.greedy import GREEDY_PANEL, SWEEP, greedy
from sublaplace_cli.core.selectors.pool import pool_size
from sublaplace_cli.core.selectors.search.column_cache import ColumnCache
from sublaplace_cli.core.selectors.search.device_pivots import pivots_on_device
from sublaplace_cli.core.selectors.search.schur import DualSchur, PrimalSchur
from sublaplace_cli.errors import NumericsError, Reason, UserError


@pytest.fixture(autouse=True, params=[(0, 0), module.SMALL_POOL], ids=["search", "small-pools-whole"])
def small_pool(request, monkeypatch):
    """Pools that would be factored as a whole are searched as well: the order is the same."""
    monkeypatch.setattr(module, "SMALL_POOL", request.param)


def literal(problem: Problem, k: int, pool: int | None = None) -> list[int]:
    candidates = None
    if pool is not None:
        score = reference.data_term(problem.J, problem.H).diagonal()
        candidates = reference.gradient_selection(score, problem.v, pool)
    return reference.greedy_selection(problem.omega, problem.v, k, candidates)


def lapack_order(problem: Problem, k: int) -> list[int]:
    """Pivots of LAPACK's pivoted Cholesky of V^(−½) Ω V^(−½)."""
    scale = problem.v.rsqrt()
    _, pivots, _, info = dpstrf((problem.omega * scale.unsqueeze(1) * scale).numpy(), lower=1)
    assert info == 0
    return [int(i) - 1 for i in pivots[:k]]


def assert_pivots(problem: Problem, chosen: Selection) -> None:
    """values[i] is the Schur complement of chosen[i] given those before it: the squared Cholesky diagonal."""
    S = chosen.indices
    L = torch.linalg.cholesky(problem.omega[S][:, S])
    torch.testing.assert_close(chosen.values, L.diagonal().square(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", [case.name for case in CASES])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("pool", ["all", "2k", "paper", "40"])
def test_greedy_is_algorithm_2(name, prior, pool):
    problem = solved(name, prior)
    for k in sorted({1, min(11, problem.p), min(39, problem.p)}):
        chosen = greedy(problem.selection(pool=pool), k)
        size = {"all": problem.p, "2k": 2 * k, "paper": max(k, min(2 * k + 1000, problem.p - 1)), "40": 40}[pool]
        assert chosen.indices.tolist() == literal(problem, k, min(size, problem.p))
        assert_pivots(problem, chosen)


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(
    ("N", "p", "k", "form"),
    [(40, 1500, 300, "DualSchur"), (700, 1500, 300, "PrimalSchur"), (33, 1100, 1100, "DualSchur")],
    ids=["few-rows", "many-rows", "everything"],
)
def test_more_candidates_than_a_panel(N, p, k, form, prior, C, monkeypatch):
    rows = max(1, N // C)
    scale = torch.logspace(0, -1.5, p, dtype=torch.float64)[subset(p, p)]
    problem = synthetic(random_matrix(rows, C, p) * scale, prior_of(prior, p), sigma2=0.5)
    others = {"DualSchur": "PrimalSchur", "PrimalSchur": "DualSchur"}
    if C == 1 or form == "DualSchur":
        monkeypatch.setattr(module, others[form], None)  # the other form is not used
    chosen = greedy(problem.selection(), k)
    assert p > 2 * GREEDY_PANEL
    assert chosen.indices.tolist() == lapack_order(problem, k)
    assert_pivots(problem, chosen)


@pytest.mark.parametrize("N", [40, 700])
def test_lapack_and_the_literal_loop_agree_with_the_panels(N):
    problem = synthetic(random_matrix(N, 420), prior_of("unequal", 420), sigma2=0.5)
    chosen = greedy(problem.selection(), 300).indices.tolist()
    assert chosen == literal(problem, 300)
    assert chosen == lapack_order(problem, 300)


def test_a_small_pool_is_factored_without_a_search(small_pool, monkeypatch):
    problem = synthetic(random_matrix(200, 90), prior_of("unequal", 90), sigma2=0.1)
    searches = []
    monkeypatch.setattr(module, "_Search", lambda *given, search=module._Search: searches.append(1) or search(*given))
    greedy(problem.selection(), 60)
    assert bool(searches) == (module.SMALL_POOL == (0, 0))
    little = replace(problem, precision=replace(problem.precision, memory=3 * 8 * 90**2 - 1))  # too little
    assert greedy(little.selection(), 60).indices.tolist() == literal(problem, 60)
    assert searches


@pytest.mark.parametrize("panel", [1, 2, 7])
@pytest.mark.parametrize("N", [9, 200])
def test_the_width_of_a_panel_does_not_change_the_order(panel, N, monkeypatch):
    problem = synthetic(random_matrix(N, 90), prior_of("unequal", 90), sigma2=0.1)
    expected = literal(problem, 60)
    monkeypatch.setattr(module, "GREEDY_PANEL", panel)
    chosen = greedy(problem.selection(), 60)
    assert chosen.indices.tolist() == expected
    assert_pivots(problem, chosen)


@pytest.mark.parametrize("loose", [0.0, 1e-3, 1e9], ids=["never-trusted", "as-usual", "always-trusted"])
@pytest.mark.parametrize(("N", "prior"), [(9, "equal"), (30, "unequal"), (400, "unequal")])
def test_bounds_that_are_lowered_a_few_pivots_at_a_time(N, prior, loose, monkeypatch):
    """Many small sweeps with a short first look: values from scratch, values by the pivots between, and a mix."""
    for name, value in {"GREEDY_PANEL": 8, "SWEEP": 24, "FIRST_UPDATE": 3, "LOOSE": loose}.items():
        monkeypatch.setattr(module, name, value)
    scale = torch.logspace(0, -1, 300, dtype=torch.float64)[subset(300, 300)]
    problem = synthetic(random_matrix(N, 300) * scale, prior_of(prior, 300), sigma2=0.1)
    chosen = greedy(problem.selection(), 120)
    assert chosen.indices.tolist() == lapack_order(problem, 120)
    assert_pivots(problem, chosen)


@pytest.mark.parametrize("form", [PrimalSchur, DualSchur])
def test_directions_are_what_the_others_lose(form):
    """‖Z a‖² is the fall of d for every column, when S grows once and when it grows again."""
    A = random_matrix(12, 40)
    schur = form(12, A)
    for start in (0, 5):
        some, before = A[:, start : start + 5], schur.diagonal(A)
        directions = schur.extend(some, schur.complement(some))
        assert directions.shape == (5, 12)
        torch.testing.assert_close(before - schur.diagonal(A), (directions @ A).square().sum(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("N", [12, 700])
@pytest.mark.parametrize("share", [0.3, 0.9, 2.0])
def test_a_path_ends_where_the_posterior_has_enough_degrees_of_freedom(N, share, monkeypatch):
    """From one form of the Schur complement into the other, through more directions than there was room for."""
    monkeypatch.setattr(module, "GREEDY_PANEL", 40)
    problem = synthetic(random_matrix(N, 900), prior_of("unequal", 900), sigma2=30.0)
    asked, everything = problem.selection(), torch.arange(900)
    freedom = float(path_gains(problem.precision, everything).sum())
    path, gains = module.path_until(asked, share * freedom, 900)
    k = len(path.indices)
    expected = greedy(asked, k)
    assert torch.equal(path.indices, expected.indices)
    assert_close(path.values, expected.values, 1e-9)
    assert_close(gains.cumsum(0), path_gains(problem.precision, path.indices).cumsum(0), 1e-9)
    assert k == 900 if share > 1 else share * freedom <= float(gains.sum()) < (share + 0.2) * freedom


@pytest.mark.parametrize("most", [8, 11, 40])
def test_a_cache_gives_the_columns_asked_for_however_little_it_holds(most):
    problem = synthetic(random_matrix(6, 40), prior_of("unequal", 40), sigma2=0.5)
    candidates, bounds = torch.arange(0, 40, 1), torch.linspace(2, 1, 40, dtype=torch.float64)
    cache = ColumnCache(problem.precision, candidates, first=8, most=most)
    for positions in ([0, 3, 5], [7, 2, 9], [12, 9, 1], [0, 1, 2]):
        chosen = torch.tensor(positions)
        bounds[chosen] += 2  # the search asks only for the best
        cache.hold(chosen, bounds)
        assert torch.equal(cache.columns(chosen), problem.precision.columns(chosen).T)
        assert sum(map(len, cache.batches)) <= most
        bounds[chosen] -= 2


@pytest.mark.parametrize("N", [12, 300])
def test_rank_deficient_rows_and_k_beyond_the_rank(N):
    """Rank 6 and k = 50: beyond the rank all d_j/v_j come close to 1 and the order is decided by what is left."""
    J = random_matrix(N, 6, seed=1) @ random_matrix(6, 80, seed=2)
    problem = synthetic(J, prior_of("unequal", 80), sigma2=2.0)
    chosen = greedy(problem.selection(), 50)
    assert chosen.indices.tolist() == literal(problem, 50)
    assert_pivots(problem, chosen)


def tie_problem(N: int) -> Problem:
    """Orthogonal columns of three lengths, so that every Schur complement is known: 4 long, 300 middling, 20 zero."""
    p = 324
    J = torch.zeros(max(N, p), p, dtype=torch.float64)
    J[range(p), range(p)] = 1.0
    J[:, 4:304] *= 0.5
    J[:, 304:] = 0.0
    return synthetic(J[:, subset(p, p)], v=1.0, sigma2=0.25)


@pytest.mark.parametrize("N", [324, 900])
def test_ties_go_to_the_lower_index_also_between_panels(N):
    problem = tie_problem(N)
    norms = problem.J.square().sum((0, 1))
    expected = sorted(range(324), key=lambda j: (-float(norms[j]), j))
    assert greedy(problem.selection(), 324).indices.tolist() == expected


@pytest.mark.parametrize("N", [3, 12])
def test_a_tie_with_a_candidate_outside_the_panel_goes_to_the_lower_index(N, monkeypatch):
    """Columns 1 and 2 are copies with d = 5; once 1 is chosen, 2 falls to 1 + 4/5, which is that of column 0."""
    J = torch.zeros(N, 4, dtype=torch.float64)
    J[0, 0], J[1, 1], J[1, 2] = 0.8**0.5, 2.0, 2.0
    monkeypatch.setattr(module, "GREEDY_PANEL", 2)
    chosen = greedy(synthetic(J).selection(), 4)
    assert chosen.indices.tolist() == [1, 0, 2, 3]
    torch.testing.assert_close(chosen.values, torch.tensor([5.0, 1.8, 1.8, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("N", [10, 100])
def test_copies_of_a_column(N):
    """Copies tie at first, the lower index wins; the others then share what little is left."""
    J = random_matrix(N, 8)
    J[:, 4] = J[:, 1]
    J[:, 7] = J[:, 1]
    J[:, [2, 5]] = 0.0
    problem = synthetic(J, v=0.5, sigma2=0.2)
    order = greedy(problem.selection(), 8).indices.tolist()
    assert order == literal(problem, 8)
    assert [j for j in order if j in (1, 4, 7)] == [1, 4, 7]
    assert order[-2:] == [2, 5]


@pytest.mark.parametrize("N", [20, 200])
@pytest.mark.parametrize("v", [1e-6, 1e-8])
def test_a_tiny_prior_keeps_the_order_while_the_rank_lasts(N, v):
    """κ ≈ 1e9 to 1e11: up to the rank the pivots are far apart beside their rounding."""
    problem = synthetic(random_matrix(N, 60), v=v, sigma2=0.1)
    k = min(N, 60) - 5
    chosen = greedy(problem.selection(), k)
    assert chosen.indices.tolist() == literal(problem, k)
    assert_pivots(problem, chosen)


@contextlib.contextmanager
def at_most(seconds: int):
    """A search that never ends must fail, not hang the suite."""

    def give_up(*_):
        raise AssertionError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("N", "p", "k"), [(20, 60, 50), (400, 60, 50), (40, 600, 300), (400, 600, 190)])
@pytest.mark.parametrize("v", [1e-8, 1e-12])
def test_a_prior_below_rounding_ends_with_indices_or_an_error(N, p, k, v):
    """κ > 1e15 and k far beyond the rank: float64 has no digit left, and must neither loop nor return nonsense."""
    J = random_matrix(N, 5, seed=1) @ random_matrix(5, p, seed=2)
    problem = synthetic(J, v=v, sigma2=1e-6)
    with at_most(5), contextlib.suppress(NumericsError):
        assert len(set(greedy(problem.selection(), k).indices.tolist())) == k


@pytest.mark.parametrize(
    ("pool", "k", "p", "size"),
    [
        ("all", 10, 5000, 5000),
        ("2k", 10, 5000, 20),
        ("2k", 10, 15, 15),
        ("paper", 10, 5000, 1020),
        ("paper", 10, 500, 499),
        ("paper", 500, 500, 500),
        ("paper", 20_000, 10**6, 30_000),
        ("paper", 40_000, 10**6, 40_000),
        ("37", 10, 5000, 37),
        ("37", 10, 20, 20),
    ],
)
def test_pool_sizes(pool, k, p, size):
    assert pool_size(pool, k, p) == size


def test_a_pool_smaller_than_k_is_refused():
    with pytest.raises(UserError, match="a pool of 9 candidates is smaller than k = 10") as failure:
        pool_size("9", 10, 100)
    assert failure.value.reason is Reason.POOL_TOO_SMALL


@pytest.mark.parametrize("method", [module, variance_module], ids=["greedy", "variance"])
def test_the_early_check_refuses_a_pool_smaller_than_k(method):
    facts = SelectorFacts(Layout.from_shapes([("w", (100,))]), (), pool="9")
    method.check(facts, 9)
    method.check(facts, None)
    with pytest.raises(UserError, match="a pool of 9 candidates is smaller than k = 10"):
        method.check(facts, 10)


def test_advice_where_columns_do_not_fit_into_memory(monkeypatch):
    problem = solved("conv", "unequal").selection()
    assert module.advise(problem, 5) is None
    monkeypatch.setattr(module, "GREEDY_PANEL", 1)
    cramped = replace(problem, precision=replace(problem.precision, memory=8 * problem.precision.n_rows * 4 * 3))
    advice = module.advise(cramped, 5)
    assert f"the columns of 3 of {problem.layout.size} candidates" in advice
    assert "--" not in advice
    assert module.advise(replace(cramped, pool="2k"), 1) is None, "two candidates always fit"


def test_the_pool_restricts_the_choice():
    problem = solved("conv", "unequal")
    inside = reference.gradient_selection(problem.precision.data_diagonal(), problem.v, 22)
    assert set(greedy(problem.selection(pool="2k"), 11).indices.tolist()) <= set(inside)
    assert not set(greedy(problem.selection(), 11).indices.tolist()) <= set(inside)


@pytest.mark.parametrize("memory", [1, PLENTY])
@pytest.mark.parametrize("prior", PRIORS)
def test_more_candidates_than_a_sweep(memory, prior):
    """Little memory holds the columns of one panel at a time, which changes what is read and not what is chosen."""
    problem, k, expected = more_than_a_sweep(prior)
    problem = replace(problem, precision=replace(problem.precision, memory=memory))
    assert greedy(problem.selection(), k).indices.tolist() == expected


@cache
def more_than_a_sweep(prior):
    p, k = 2 * SWEEP + 50, GREEDY_PANEL + 10
    problem = synthetic(random_matrix(9, 2, p), prior_of(prior, p), sigma2=0.5)
    return problem, k, reference.greedy_selection_by_rows(problem.J.flatten(0, 1) / 0.5**0.5, problem.v, k)


@pytest.mark.parametrize(("rows", "memory"), [(8, 1), (8, PLENTY), (610, PLENTY)])
def test_more_ties_than_a_sweep(rows, memory):
    """p copies of 8 unit columns: of each the first is taken, then the rest of them in the order of their indices."""
    p = 2 * SWEEP + 3
    J = torch.zeros(rows, p, dtype=torch.float64)
    J[torch.arange(p) % 8, range(p)] = 1.0
    problem = synthetic(J)
    problem = replace(problem, precision=replace(problem.precision, memory=memory))
    assert greedy(problem.selection(), 300).indices.tolist() == list(range(300))


def test_pivots_sent_ahead_to_a_device_are_those_of_the_cpu():
    """The same on the CPU, where both can be run: order, values, what is left, and where it ends."""
    A = random_matrix(60, 200)
    A[:, 7] = A[:, 3]  # a tie: two parameters that are copies
    T = A.T @ A + torch.eye(200, dtype=torch.float64)
    panel = torch.arange(200)
    for most, outside in ((200, -1.0), (150, 20.0), (10, 3.0)):
        found = []
        for way in (pivots_on_device, None):
            found.append(pivots_of(T, panel, (outside, 999), most, way))
        (taken, pivots, rest), (there, values, remaining) = found
        assert taken == there
        assert len(taken) > 5
        assert pivots == pytest.approx(values, rel=1e-10)
        left = torch.ones(200, dtype=torch.bool)
        left[taken] = False
        assert torch.allclose(rest[left], remaining[left], rtol=1e-9)


def pivots_of(T, panel, outside, most, way):
    if way is None:
        return module._pivot_inside(T, panel, outside, most, True)
    return way(T, most, lambda before, pivot, place: before > 0 and module._beaten(pivot, place, outside))


def test_unsound_numbers_on_a_device_end_in_the_same_error():
    for bad in (float("nan"), -1e9):
        T = torch.eye(5, dtype=torch.float64) * bad

        def ends(before, pivot, place):
            if not pivot > module.SOUND:
                module.require_sound(torch.tensor(pivot))
            return False

        with pytest.raises(NumericsError, match="Schur complement"):
            pivots_on_device(T, 5, ends)
