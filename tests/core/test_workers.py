"""Rows held by several workers: every result is that of one process, bit for bit where no sum is in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from core.problems import Problem, assert_close, cut, solved, subset
from core.thread_workers import run_on_workers, tensors_of
from torch import Tensor

from sublaplace_cli.core.jacobian.rows import HeldJacobian, HoldingJacobian, Jacobian
from sublaplace_cli.core.jacobian.sharded import ShardedJacobian, owners_of, some_rows
from sublaplace_cli.core.omega import gram as gram_module
from sublaplace_cli.core.omega.gram import gram
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.omega.row_sums import column_chunks, own_products, pull, push, squared_gradients
from sublaplace_cli.core.panels import sizes
from sublaplace_cli.core.posterior.bounds import bracket
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.kronecker import Factors, KroneckerPosterior
from sublaplace_cli.core.posterior.left_out import left_out
from sublaplace_cli.core.posterior.path import fit_path, fit_subnet, path_covariances, path_gains
from sublaplace_cli.core.posterior.rescale import outside_products
from sublaplace_cli.core.selectors import SelectionProblem
from sublaplace_cli.core.selectors.greedy import greedy
from sublaplace_cli.core.selectors.variance import variance
from sublaplace_cli.core.workers import owner_of_strip

PLENTY, LITTLE = 2**30, 2**15
CASE_NAMES = [
    "mlp",
    "mlp-3-outputs",
    "conv-binary",
    "conv-multiclass",
    "mlp-multiclass",
    "attention",
    "token-block",
    "mlp-over-positions",
]
EXACT = {"gram", "cross gram", "columns", "norms", "rows"}  # not summed over workers
HOLD: dict[str, Callable[[Jacobian], Jacobian]] = {
    "not held": lambda own: own,
    "held after the first read": lambda own: HoldingJacobian(own, lambda block: block, 2),
}


def results(precision: Precision, test: Jacobian, S: Tensor, memory: int) -> dict[str, Tensor]:
    """Everything that is computed from rows."""
    jacobian = precision.jacobian
    N, C = jacobian.outputs.shape
    u = torch.linspace(-1, 1, 2 * N * C, dtype=torch.float64).reshape(N * C, 2)
    chosen = torch.arange(0, len(test.outputs), 3)
    w = precision.cross_gram(test).reshape(N * C, *test.outputs.shape)[:, chosen].flatten(1) * 0.1
    few = some_rows(jacobian, [1, 2, 5, N - 1])
    return {
        "gram": precision.gram(),
        "cross gram": precision.cross_gram(test),
        "columns": precision.columns(S),
        "products": own_products(test, precision.prior, memory),
        "rows": torch.cat([t.double().flatten() for t in tensors_of(jacobian.load(1, N - 1))]),
        "products of some rows": own_products(few, precision.prior, memory),
        "gram of some rows": gram(few, few, precision.prior, memory),
        "columns of some rows": torch.cat([c for _, c in column_chunks(few, S, memory)], 1),
        "data diagonal": precision.data_diagonal(),
        "unweighted": squared_gradients(test, None, memory),
        "pulled": pull(jacobian, u, memory),
        "pushed": push(jacobian, pull(jacobian, u, memory), memory),
        "weighted": precision.push(precision.pull(u)),
        "submatrix": torch.triu(precision.submatrix(S)),
        "residuals": precision.residual_products(test, chosen, w),
    }


def contiguous(jacobian: HeldJacobian) -> HeldJacobian:
    """The same rows in contiguous tensors, as a run holds them: products then round in the same way."""
    tensors = [{key: t.contiguous() for key, t in block.tensors().items()} for block in jacobian.blocks]
    blocks = tuple(block.with_tensors(t) for block, t in zip(jacobian.blocks, tensors, strict=True))
    return replace(jacobian, blocks=blocks)


def problem_of(name: str, prior: str, memory: int = PLENTY) -> Problem:
    problem = solved(name, prior)
    precision = replace(problem.precision, jacobian=contiguous(problem.precision.jacobian), memory=memory)
    return replace(problem, precision=precision, test=contiguous(problem.test))


def distribute(problem: Problem, size: int, rows_per_piece: int, work: Callable, hold: Callable = HOLD["not held"]):
    """`work(precision, test)` on `size` workers, and the collective functions it called."""

    def on_leader(rows: dict[str, ShardedJacobian]):
        return work(replace(problem.precision, jacobian=rows["train"]), rows["test"])

    jacobians = {"train": problem.precision.jacobian, "test": problem.test}
    return run_on_workers(size, rows_per_piece, jacobians, on_leader, hold)


@pytest.mark.parametrize("memory", [PLENTY, LITTLE], ids=["one tile", "many tiles"])
@pytest.mark.parametrize(
    ("size", "rows_per_piece"), [(2, 3), (3, 2), (3, 64)], ids=["two", "three", "two without rows"]
)
@pytest.mark.parametrize("name", CASE_NAMES)
def test_every_result_is_that_of_one_process(name: str, size: int, rows_per_piece: int, memory: int) -> None:
    problem = problem_of(name, "unequal" if memory == LITTLE else "equal", memory)
    S = subset(problem.p, min(20, problem.p))
    expected = results(problem.precision, problem.test, S, memory)
    found, called = distribute(
        problem, size, rows_per_piece, lambda precision, test: results(precision, test, S, memory)
    )
    assert {"gram_strips", "squared_gradients", "column_products", "residual_products"} <= set(called)
    for what, value in expected.items():
        if what in EXACT and memory == PLENTY:  # with little memory, tiles end where pieces end
            assert torch.equal(found[what], value), what
        else:
            assert_close(found[what], value, 1e-10)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CASE_NAMES)
def test_gram_matrices_in_wide_strips_that_are_cut_again(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(name, "unequal")
    N, C = problem.precision.jacobian.outputs.shape
    expected = problem.precision.gram(), problem.precision.cross_gram(problem.test)
    monkeypatch.setattr(sizes, "CPU", cut(strip=C, enough_strips=4))
    assert 2 <= gram_module.strip_width(N, C, sizes.CPU.gram) < N  # wider than what a block cuts, and several of them
    alone = problem.precision.gram(), problem.precision.cross_gram(problem.test)
    distributed, _ = distribute(
        problem, size, 3, lambda precision, test: (precision.gram(), precision.cross_gram(test))
    )
    norms = expected[0].diagonal().sqrt()
    met = own_products(problem.test, problem.precision.prior, PLENTY).diagonal(dim1=1, dim2=2).flatten().sqrt()
    for one, other, usual, beside in zip(alone, distributed, expected, (norms, met), strict=True):
        assert torch.equal(one, other)
        # An entry may be far smaller than the terms of its sum: their size is that of the two rows.
        assert float(((one - usual).abs() / torch.outer(norms, beside)).nan_to_num().max()) <= 1e-14


def test_strips_are_wide_where_there_are_many_rows() -> None:
    widths = {(256, 1): 64, (2000, 1): 128, (2000, 10): 51, (500_000, 1): 512, (5, 1000): 1}
    assert {(n, C): gram_module.strip_width(n, C, sizes.CPU.gram) for n, C in widths} == widths


@pytest.mark.parametrize("how", HOLD)
@pytest.mark.parametrize("name", ["mlp", "conv-multiclass"])
def test_posteriors_and_searches_run_on_sharded_rows(name: str, how: str) -> None:
    problem = problem_of(name, "unequal")
    k = min(12, problem.p)

    def work(precision: Precision, test: Jacobian) -> dict[str, Tensor]:
        diagonal = precision.data_diagonal()
        selection = SelectionProblem(precision, diagonal, diagonal, problem.theta, problem.last_linear)
        products, S = own_products(test, precision.prior, PLENTY), subset(problem.p, k)
        full, (small, large) = fit_full(precision), fit_path(precision, S, [3, k])
        dual = fit_subnet(precision, S, "dual")
        return {
            "greedy": greedy(selection, k).indices.double(),
            "variance": variance(selection, 5).indices.double(),
            "full": full.covariance(test, products),
            "path": torch.stack(path_covariances([small, large], test, PLENTY)),
            "freedom": torch.tensor([full.freedom, small.freedom, dual.freedom]),
            "gains": path_gains(precision, S),
            "left out": left_out(full, precision),
            "left out of S": left_out(dual, precision),
            "outside": outside_products(test, products, S, precision.prior, PLENTY),
            "bracket": bracket(precision, test, products, 4, [large.variance(test)]).high,
        }

    expected = work(problem.precision, problem.test)
    found, _ = distribute(problem, 3, 2, work, HOLD[how])
    for what, value in expected.items():
        assert_close(found[what], value, 1e-10)


def test_code_that_loads_rows_itself_gets_them_from_all_workers() -> None:
    """A user's own selector, or the Kronecker reference, outside of any collective call."""
    problem = problem_of("mlp", "equal")
    weight = problem.precision.layout.parameters[0]
    d_out, d_in = weight.shape
    factors = {weight.name: Factors(torch.eye(d_in).double(), torch.eye(d_out).double())}

    def work(precision: Precision, test: Jacobian) -> Tensor:
        return KroneckerPosterior(factors, precision).variance(test)

    found, called = distribute(problem, 2, 3, work)
    assert "rows_of_all" in called
    assert torch.equal(found, work(problem.precision, problem.test))


def test_an_error_of_the_leader_leaves_no_worker_waiting() -> None:
    problem = problem_of("mlp", "equal")

    def work(precision: Precision, test: Jacobian) -> None:
        precision.data_diagonal()
        raise KeyError("of the leader")

    with pytest.raises(KeyError, match="of the leader"):
        distribute(problem, 3, 2, work)


def test_rows_are_assigned_in_pieces() -> None:
    assert owners_of(11, 2, 3).tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_long_and_short_strips_are_assigned_evenly(size: int) -> None:
    strips = 4 * size
    work = [0] * size
    for strip in range(strips):
        work[owner_of_strip(strip, size)] += strips - strip  # of a triangle: the first is the longest
    assert max(work) == min(work)
