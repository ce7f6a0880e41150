"""Ω never formed: diagonal, columns, Gram and norms equal those of the dense matrix, however the rows are read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from cases import CASES
from core.problems import (
    NOISE,
    PLENTY,
    PRIORS,
    Problem,
    assert_close,
    block_gram,
    capture_of,
    case_named,
    cut,
    dense,
    dtypes_kept,
    prior_of,
    random_matrix,
    solved,
    subset,
    synthetic,
)

from sublaplace_cli.core.jacobian import blocks
from sublaplace_cli.core.jacobian.capture import prepare_capture
from sublaplace_cli.core.jacobian.rows import (
    TILE_SHARE,
    HeldJacobian,
    RecomputedJacobian,
    StoredJacobian,
    aligned,
    row_tiles,
)
from sublaplace_cli.core.network.forward import map_inputs
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega.gram import gram
from sublaplace_cli.core.omega.row_sums import own_products, squared_gradients
from sublaplace_cli.core.panels import sizes
from sublaplace_cli.core.posterior.full import fit_full
from sublaplace_cli.core.posterior.path import fit_subnet, path_covariances

NAMES = [case.name for case in CASES]
each_problem = pytest.mark.parametrize(("name", "prior"), [(name, prior) for name in NAMES for prior in PRIORS])


def weighted_rows(problem: Problem) -> torch.Tensor:
    """A (N·C, p), rows Wₙᵀ Jₙ with the package's own root."""
    return torch.cat([W.T @ J for W, J in zip(problem.precision.root, problem.J, strict=True)])


@each_problem
def test_the_diagonal_is_that_of_the_dense_data_term(name, prior):
    problem = solved(name, prior)
    assert_close(problem.precision.data_diagonal(), reference.data_term(problem.J, problem.H).diagonal(), 1e-12)


@each_problem
def test_columns_times_columns_is_the_dense_data_term(name, prior):
    problem = solved(name, prior)
    S = subset(problem.p, min(problem.p, 20))
    A = problem.precision.columns(S).T * problem.v[S].sqrt()  # out of the prior's metric
    assert_close(A.T @ A, reference.data_term(problem.J, problem.H)[S][:, S], 1e-9)
    assert_close(A, weighted_rows(problem)[:, S], 1e-12)


@each_problem
def test_gram_and_cross_gram(name, prior):
    problem = solved(name, prior)
    A, J_test = weighted_rows(problem), problem.J_test.flatten(0, 1)
    assert_close(problem.precision.gram(), A / problem.v @ A.T, 1e-9)
    assert_close(problem.precision.cross_gram(problem.test), A / problem.v @ J_test.T, 1e-9)


@each_problem
def test_unweighted_squares_and_products_within_rows(name, prior):
    problem = solved(name, prior)
    assert_close(squared_gradients(problem.precision.jacobian, None, PLENTY), problem.J.square().sum((0, 1)), 1e-12)
    products = torch.einsum("mcp,p,mdp->mcd", problem.J_test, 1 / problem.v, problem.J_test)
    assert_close(own_products(problem.test, problem.v, PLENTY), products, 1e-9)


def test_the_gram_of_two_jacobians_is_not_taken_for_that_of_one():
    problem = solved("mlp-3-outputs")
    J, J_test = problem.J.flatten(0, 1), problem.J_test.flatten(0, 1)
    assert_close(gram(problem.precision.jacobian, problem.test, problem.v, PLENTY), J / problem.v @ J_test.T, 1e-9)


def answers(problem: Problem) -> dict[str, torch.Tensor]:
    """Everything that is asked of Ω, within its memory; posteriors are fitted with enough of it."""
    precision, test, S = problem.precision, problem.test, subset(problem.p, problem.p // 2)
    roomy = replace(precision, memory=PLENTY)
    full, primal, dual = fit_full(roomy), fit_subnet(roomy, S, "primal"), fit_subnet(roomy, S, "dual")
    products = own_products(test, precision.prior, precision.memory)
    chosen, C = torch.arange(0, len(products), 2), products.shape[1]
    columns = (chosen.unsqueeze(1) * C + torch.arange(C)).flatten()
    w = precision.cross_gram(test)[:, columns] / products.max()
    return {
        "diagonal": precision.data_diagonal(),
        "unweighted": squared_gradients(precision.jacobian, None, precision.memory),
        "columns": precision.columns(S),
        "gram": precision.gram(),
        "cross": precision.cross_gram(test),
        "products": products,
        "residual": precision.residual_products(test, chosen, w),
        "full": replace(full, precision=precision).covariance(test, products),
        "primal": path_covariances([primal], test, precision.memory)[0],
        "dual": path_covariances([dual], test, precision.memory)[0],
        "freedom": torch.tensor([full.freedom, primal.freedom, dual.freedom], dtype=torch.float64),
    }


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert_close(found[name], value, 1e-12)


@pytest.mark.parametrize("name", ["mlp", "mlp-3-outputs", "conv-multiclass", "attention", "two-inputs"])
@pytest.mark.parametrize("memory", [1, 20_000, 100_000])
def test_answers_do_not_depend_on_the_memory(name, memory):
    problem = solved(name, "unequal")
    assert_same(answers(replace(problem, precision=replace(problem.precision, memory=memory))), answers(problem))


def test_no_memory_at_all_means_tiles_of_one_row():
    jacobian = solved("mlp").precision.jacobian
    assert row_tiles(jacobian, memory=1) == [(i, i + 1) for i in range(23)]
    assert row_tiles(jacobian, memory=PLENTY) == [(0, 23)]


@pytest.mark.parametrize("rows_per_read", [1, 4, 5])
def test_tiles_cover_all_rows_once_within_the_memory_and_on_the_grain(rows_per_read):
    jacobian = recomputed(solved("mlp-3-outputs").precision.jacobian, rows_per_read)
    row = sum(block.row_bytes for block in jacobian.templates)
    assert row == 3 * 51 * 8
    for rows in range(1, 30):
        tiles = row_tiles(jacobian, memory=TILE_SHARE * rows * row)
        assert [i for a, b in tiles for i in range(a, b)] == list(range(23))
        assert all(b - a <= rows for a, b in tiles)
        if rows >= rows_per_read:
            assert all(a % rows_per_read == 0 for a, _ in tiles)


@pytest.mark.parametrize("panel", [1, 3])
@pytest.mark.parametrize("name", ["mlp-3-outputs", "conv-multiclass"])
def test_answers_do_not_depend_on_the_width_of_a_panel(name, panel, monkeypatch):
    problem = solved(name, "unequal")
    expected = answers(problem)
    monkeypatch.setattr(sizes, "CPU", cut(panel=panel))
    assert_same(answers(problem), expected)


@pytest.mark.parametrize("name", ["mlp", "mlp-3-outputs", "conv-multiclass"])
def test_answers_do_not_depend_on_the_order_of_the_training_rows(name):
    problem = solved(name, "unequal")
    held, order = problem.precision.jacobian, torch.randperm(23, generator=torch.Generator().manual_seed(1))
    shuffled = HeldJacobian(
        held.layout,
        held.outputs[order],
        tuple(blocks.DenseBlock(block.start, block.values[order]) for block in held.blocks),
    )
    other = replace(
        problem, precision=replace(problem.precision, jacobian=shuffled, root=problem.precision.root[order])
    )
    of_rows = {"columns", "gram", "cross", "residual"}  # these are about training rows, and turn with them
    expected = {k: t for k, t in answers(problem).items() if k not in of_rows}
    assert_same({k: t for k, t in answers(other).items() if k not in of_rows}, expected)


def templates_of(held: HeldJacobian) -> tuple[blocks.Block, ...]:
    return tuple(block.rows(0, 1) for block in held.blocks)


def stored(held: HeldJacobian) -> StoredJacobian:
    def read(i: int, start: int, stop: int) -> blocks.Block:
        part = held.blocks[i].rows(start, stop)
        return part.with_tensors({name: tensor.clone() for name, tensor in part.tensors().items()})

    return StoredJacobian(held.layout, held.outputs, templates_of(held), read)


def recomputed(held: HeldJacobian, rows_per_read: int) -> RecomputedJacobian:
    def compute(start: int, stop: int) -> list[blocks.Block]:
        assert start % rows_per_read == 0, "passes lie on one grid"
        assert stop == min(start + rows_per_read, len(held.outputs))
        return [block.rows(start, stop) for block in held.blocks]

    return RecomputedJacobian(held.layout, held.outputs, templates_of(held), compute, rows_per_read)


@pytest.mark.parametrize("memory", [1, 20_000, PLENTY])
@pytest.mark.parametrize("name", ["mlp", "mlp-3-outputs", "conv-multiclass"])
@pytest.mark.parametrize(
    "source", [stored, lambda held: recomputed(held, 4), lambda held: recomputed(held, 64)], ids=["stored", "4", "64"]
)
def test_stored_and_recomputed_rows_answer_as_held_ones(name, source, memory):
    problem = solved(name, "unequal")
    precision = replace(problem.precision, jacobian=source(problem.precision.jacobian), memory=memory)
    assert_same(answers(replace(problem, precision=precision, test=source(problem.test))), answers(problem))


def test_rows_computed_anew_by_the_network_answer_as_held_ones():
    case = case_named("conv-multiclass")
    problem = solved(case.name, "unequal")
    capture, train = capture_of(case, memory=1)
    test = case.make()[3]

    def anew(inputs, outputs: torch.Tensor) -> RecomputedJacobian:
        def compute(start: int, stop: int) -> list[blocks.Block]:
            return capture(map_inputs(lambda t: t[start:stop], inputs)).blocks

        return RecomputedJacobian(capture.layout, outputs, capture.templates, compute, 5)

    precision = replace(problem.precision, jacobian=anew(train, problem.precision.jacobian.outputs))
    for rows in (anew(test, problem.test.outputs), captured_to_held(capture, test)):
        assert_same(answers(replace(problem, precision=precision, test=rows)), answers(problem))


def test_any_slice_of_recomputed_rows_is_that_slice():
    held = solved("mlp-3-outputs").precision.jacobian
    anew = recomputed(held, 4)
    for start, stop in [(0, 23), (3, 4), (4, 8), (3, 9), (22, 23), (7, 23)]:
        for block, expected in zip(anew.load(start, stop, [2, 0]), held.load(start, stop, [2, 0]), strict=True):
            assert block.start == expected.start
            assert torch.equal(block.values, expected.values)


def test_the_grid_of_passes_covers_what_is_asked_for():
    assert list(aligned(5, 11, 4, 23)) == [(4, 8), (8, 12)]
    assert list(aligned(20, 23, 8, 23)) == [(16, 23)]


def test_columns_keep_the_order_of_the_selection_across_blocks():
    problem = solved("attention")
    S = torch.tensor([400, 3, 250, 89, 2])
    assert_close(problem.precision.columns(S).T, weighted_columns(problem, S) / problem.v[S].sqrt(), 1e-14)


def test_a_weight_that_all_rows_share_is_seen_and_no_other():
    shared, own = solved("mlp-3-outputs").precision, solved("conv-binary").precision
    assert shared.common_weight == pytest.approx(NOISE**-0.5, rel=1e-15)
    assert own.common_weight is None
    tilted = shared.root.clone()
    tilted[-1, 0, 1] = 1e-9
    assert replace(shared, root=tilted).common_weight is None


def weighted_columns(problem: Problem, S: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ncd,nck->ndk", problem.precision.root, problem.J[:, :, S]).reshape(-1, len(S))


def test_a_parameter_without_elements_changes_nothing():
    J, v = random_matrix(5, 2, 6), prior_of("unequal", 6)
    layout = Layout.from_shapes([("a", (2, 2)), ("empty", (0, 3)), ("b", (2,))])
    assert_same(answers(synthetic(J, v, layout=layout)), answers(synthetic(J, v)))


def test_float32_rows_are_summed_in_float64():
    """A column of 1 and many 1e-5: float32 sums would lose the small squares altogether."""
    values = torch.full((1000, 1, 1), 1e-5, dtype=torch.float32)
    values[0] = 1.0
    block = blocks.DenseBlock(0, values)
    v = torch.ones(1, dtype=torch.float64)
    expected = values.double().square().sum()
    assert_close(block.squares(), expected.reshape(1), 1e-15)
    assert_close(block_gram(block, block, v).diagonal().sum().reshape(1), expected.reshape(1), 1e-15)
    assert_close(block.own_products(v).sum().reshape(1), expected.reshape(1), 1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_captured_rows_in_float32_give_the_variances_of_float64(name):
    case = case_named(name)
    problem = solved(name)
    model, train, _, test, _ = case.make(torch.float32)
    capture = prepare_capture(model, Layout.of(model), train, PLENTY)
    rows, test_rows = (captured_to_held(capture, inputs) for inputs in (train, test))
    assert dtypes_kept(rows.blocks) == {torch.float32}
    precision = replace(problem.precision, jacobian=rows)
    variance = fit_full(precision).variance(test_rows)
    exact = reference.subnet_variance(problem.J_test, problem.omega, torch.arange(problem.p))
    # A relative error of 1e-6 in the rows of J moves gᵀΩ⁻¹g by ~1e-6·‖g‖²/v, not by a share of the variance itself.
    norms = (problem.J_test.square() / problem.v).sum(2)
    assert bool(((variance - exact).abs() <= 1e-5 * norms).all())
    assert dense(rows).shape == problem.J.shape


def captured_to_held(capture, inputs) -> HeldJacobian:
    captured = capture(inputs)
    return HeldJacobian(capture.layout, captured.f, tuple(captured.blocks))
