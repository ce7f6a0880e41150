"""Rows that a team shares: every answer as if one process had them all, to the bit where no sum is in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from core.problems import Problem, assert_close, solved, subset
from core.threads import in_a_team, pieces
from torch import Tensor

from sublaplace_cli.core.jacobian import blocks
from sublaplace_cli.core.jacobian.rows import HeldJacobian, HoldingJacobian, Jacobian
from sublaplace_cli.core.jacobian.sharded import owners_of, some_rows
from sublaplace_cli.core.omega import row_sums as folds
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.omega.row_sums import column_chunks, gram, pull, row_norms, squared_gradients
from sublaplace_cli.core.posterior.bounds import bracket
from sublaplace_cli.core.posterior.fitting import fit_full, fit_path, fit_subnet, path_gains
from sublaplace_cli.core.posterior.kronecker import Factors, kronecker_variance
from sublaplace_cli.core.posterior.posterior import path_variances
from sublaplace_cli.core.posterior.rescale import left_out_full, left_out_subnet, outside_norms
from sublaplace_cli.core.selectors import SelectionProblem
from sublaplace_cli.core.selectors.greedy import greedy
from sublaplace_cli.core.selectors.variance import variance
from sublaplace_cli.core.workers import owner_of_strip

PLENTY, LITTLE = 2**30, 2**15
SOME = [
    "mlp",
    "mlp-3-outputs",
    "conv-binary",
    "conv-multiclass",
    "mlp-multiclass",
    "attention",
    "token-block",
    "mlp-over-positions",
]
EXACT = {"gram", "cross gram", "columns", "norms", "rows"}  # no sum over members is in them
WAYS: dict[str, Callable[[Jacobian], Jacobian]] = {
    "as it comes": lambda own: own,
    "held from the first reading on": lambda own: HoldingJacobian(own, lambda block: block, 2),
}


def answers(precision: Precision, test: Jacobian, S: Tensor, memory: int) -> dict[str, Tensor]:
    """Everything that is asked about rows."""
    jacobian = precision.jacobian
    N, C = jacobian.outputs.shape
    u = torch.linspace(-1, 1, 2 * N * C, dtype=torch.float64).reshape(N * C, 2)
    chosen = torch.arange(0, test.outputs.numel(), 3)
    few = some_rows(jacobian, [1, 2, 5, N - 1])
    return {
        "gram": precision.gram(),
        "cross gram": precision.cross_gram(test),
        "columns": precision.columns(S),
        "norms": row_norms(test, precision.prior, memory),
        "rows": torch.cat([t.double().flatten() for t in pieces(jacobian.load(1, N - 1))]),
        "norms of some rows": row_norms(few, precision.prior, memory),
        "gram of some rows": gram(few, few, precision.prior, memory),
        "columns of some rows": torch.cat([c for _, c in column_chunks(few, S, memory)], 1),
        "data diagonal": precision.data_diagonal(),
        "unweighted": squared_gradients(test, None, memory),
        "pulled": pull(jacobian, u, memory),
        "submatrix": torch.triu(precision.submatrix(S)),
        "residuals": precision.residual_norms(test, chosen, precision.cross_gram(test)[:, chosen] * 0.1),
    }


def settled_down(jacobian: HeldJacobian) -> HeldJacobian:
    """Every tensor in one run of memory, as they are where a run holds them: products then round in one way."""
    tidy = [{key: t.contiguous() for key, t in block.tensors().items()} for block in jacobian.blocks]
    made = tuple(block.with_tensors(t) for block, t in zip(jacobian.blocks, tidy, strict=True))
    return replace(jacobian, blocks=made)


def problem_of(name: str, prior: str, memory: int = PLENTY) -> Problem:
    problem = solved(name, prior)
    precision = replace(problem.precision, jacobian=settled_down(problem.precision.jacobian), memory=memory)
    return replace(problem, precision=precision, test=settled_down(problem.test))


def in_team(problem: Problem, size: int, grain: int, work: Callable, make: Callable = WAYS["as it comes"]):
    """`work(precision, test)` by a workers."""
    jacobians = {"train": problem.precision.jacobian, "test": problem.test}
    return in_a_team(
        size, grain, jacobians, lambda q: work(replace(problem.precision, jacobian=q["train"]), q["test"]), make
    )


@pytest.mark.parametrize("memory", [PLENTY, LITTLE], ids=["one tile", "many tiles"])
@pytest.mark.parametrize(("size", "grain"), [(2, 3), (3, 2), (3, 64)], ids=["two", "three", "two without rows"])
@pytest.mark.parametrize("name", SOME)
def test_every_answer_is_that_of_one_process(name: str, size: int, grain: int, memory: int) -> None:
    problem = problem_of(name, "unequal" if memory == LITTLE else "equal", memory)
    S = subset(problem.p, min(20, problem.p))
    expected = answers(problem.precision, problem.test, S, memory)
    found, asked = in_team(problem, size, grain, lambda precision, test: answers(precision, test, S, memory))
    assert {"gram_strips", "squared_gradients", "column_products", "residual_norms"} <= set(asked)
    for what, value in expected.items():
        if what in EXACT and memory == PLENTY:  # with little memory, tiles are cut where pieces end
            assert torch.equal(found[what], value), what
        else:
            assert_close(found[what], value, 1e-10)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", SOME)
def test_gram_matrices_in_wide_strips_that_are_cut_again(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(name, "unequal")
    N, C = problem.precision.jacobian.outputs.shape
    expected = problem.precision.gram(), problem.precision.cross_gram(problem.test)
    for module, name_, value in ((folds, "STRIP", C), (folds, "ENOUGH_STRIPS", 4), (blocks, "STRIP", C)):
        monkeypatch.setattr(module, name_, value)
    assert 2 <= folds.strip_width(N, C) < N  # wider than what a block cuts, and several of them
    alone = problem.precision.gram(), problem.precision.cross_gram(problem.test)
    shared, _ = in_team(problem, size, 3, lambda precision, test: (precision.gram(), precision.cross_gram(test)))
    for one, other, usual in zip(alone, shared, expected, strict=True):
        assert torch.equal(one, other)
        assert_close(one, usual, 1e-12)


def test_strips_are_wide_where_there_are_many_rows() -> None:
    assert folds.strip_width(2000, 1) == blocks.STRIP
    assert folds.strip_width(2000, 10) == 51
    assert folds.strip_width(500_000, 1) == folds.WIDEST_STRIP
    assert folds.strip_width(5, 1000) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["mlp", "conv-multiclass"])
def test_posteriors_and_searches_run_on_shared_rows(name: str, way: str) -> None:
    problem = problem_of(name, "unequal")
    k = min(12, problem.p)

    def work(precision: Precision, test: Jacobian) -> dict[str, Tensor]:
        diagonal = precision.data_diagonal()
        selection = SelectionProblem(precision, diagonal, diagonal, problem.theta, problem.last_linear)
        norms, S = row_norms(test, precision.prior, PLENTY), subset(problem.p, k)
        full, (small, large) = fit_full(precision), fit_path(precision, S, [3, k])
        dual = fit_subnet(precision, S, "dual")
        return {
            "greedy": greedy(selection, k).indices.double(),
            "variance": variance(selection, 5).indices.double(),
            "full": full.variance(test, norms),
            "path": torch.stack(path_variances([small, large], test, PLENTY)),
            "freedom": torch.tensor([full.freedom, small.freedom, dual.freedom]),
            "gains": path_gains(precision, S),
            "left out": left_out_full(full),
            "left out of S": left_out_subnet(dual, precision),
            "outside": outside_norms(test, norms, S, precision.prior, PLENTY),
            "bracket": bracket(precision, test, norms, 4, [path_variances([large], test, PLENTY)[0]]).high,
        }

    expected = work(problem.precision, problem.test)
    found, _ = in_team(problem, 3, 2, work, WAYS[way])
    for what, value in expected.items():
        assert_close(found[what], value, 1e-10)


def test_what_loads_rows_by_itself_gets_them_from_all() -> None:
    """A user's own selector, or the Kronecker reference, outside of any question."""
    problem = problem_of("mlp", "equal")
    weight = problem.precision.layout.parameters[0]
    d_out, d_in = weight.shape
    factors = {weight.name: Factors(torch.eye(d_in).double(), torch.eye(d_out).double())}

    def work(precision: Precision, test: Jacobian) -> Tensor:
        return kronecker_variance(test, factors, precision.prior, PLENTY)

    found, asked = in_team(problem, 2, 3, work)
    assert "rows_of_all" in asked
    assert torch.equal(found, work(problem.precision, problem.test))


def test_an_error_of_the_leader_leaves_no_member_waiting() -> None:
    problem = problem_of("mlp", "equal")

    def work(precision: Precision, test: Jacobian) -> None:
        precision.data_diagonal()
        raise KeyError("of the leader")

    with pytest.raises(KeyError, match="of the leader"):
        in_team(problem, 3, 2, work)


def test_rows_are_dealt_out_in_pieces() -> None:
    assert owners_of(11, 2, 3).tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_long_and_short_strips_are_shared_evenly(size: int) -> None:
    strips = 4 * size
    work = [0] * size
    for strip in range(strips):
        work[owner_of_strip(strip, size)] += strips - strip  # of a triangle: the first is the longest
    assert max(work) == min(work)
