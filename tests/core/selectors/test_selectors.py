"""What every selector of the catalog promises, over every case; and the selectors that are a line of algebra."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from cases import CASES
from core.problems import PRIORS, case_named, prior_of, random_matrix, solved, synthetic

from sublaplace_cli.catalog import BY_NAME, METHODS, load, load_check
from sublaplace_cli.cli.advice import hint_of
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.selectors import SelectorFacts, checked
from sublaplace_cli.core.selectors.by_name import by_name
from sublaplace_cli.core.selectors.gradient import gradient
from sublaplace_cli.core.selectors.subnet_diagonal import subnet_diagonal
from sublaplace_cli.errors import Reason, UserError

SELECTORS = {name: load(method.entry) for name, method in METHODS.items() if method.kind == "selector"}
WITH_K = [name for name in SELECTORS if METHODS[name].takes_k]
NAMES = [case.name for case in CASES]

# `variance` updates every candidate at every step: one case of each kind is enough.
FEW = {"variance": ("linear", "mlp-3-outputs", "conv-binary", "mlp-multiclass")}
PAIRS = [(m, n) for m in WITH_K for n in FEW.get(m, NAMES)]

every_method_and_case = pytest.mark.parametrize(("method", "name"), PAIRS)


def sizes(p: int) -> list[int]:
    return sorted({1, 2, p // 3, p - 1, p} - {0})


@every_method_and_case
@pytest.mark.parametrize("prior", PRIORS)
def test_a_selection_is_k_different_indices_with_their_values(method, name, prior):
    problem = solved(name, prior)
    for k in sizes(problem.p):
        chosen = SELECTORS[method](problem.selection(), k)
        assert torch.equal(checked(chosen.indices, problem.p, method, k), chosen.indices)
        assert chosen.indices.dtype == torch.int64
        assert chosen.values.shape == (k,)
        assert chosen.values.dtype == torch.float64
        assert bool(torch.isfinite(chosen.values).all())


@every_method_and_case
def test_the_same_problem_gives_the_same_selection(method, name):
    problem = solved(name)
    first, second = (SELECTORS[method](problem.selection(), problem.p // 2) for _ in range(2))
    assert torch.equal(first.indices, second.indices)
    assert torch.equal(first.values, second.values)


@every_method_and_case
def test_k_equal_to_p_chooses_everything(method, name):
    problem = solved(name)
    chosen = SELECTORS[method](problem.selection(), problem.p)
    assert chosen.indices.sort().values.tolist() == list(range(problem.p))


@pytest.mark.parametrize(("method", "name"), [(m, n) for m, n in PAIRS if METHODS[m].nested])
def test_nested_methods_choose_prefixes(method, name):
    problem = solved(name, "unequal")
    longest = SELECTORS[method](problem.selection(), problem.p)
    for k in sizes(problem.p):
        chosen = SELECTORS[method](problem.selection(), k)
        assert torch.equal(chosen.indices, longest.indices[:k])
        torch.testing.assert_close(chosen.values, longest.values[:k], rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prior", PRIORS)
def test_gradient_is_algorithm_1(name, prior):
    problem = solved(name, prior)
    score = reference.data_term(problem.J, problem.H).diagonal()
    chosen = gradient(problem.selection(), problem.p)
    assert chosen.indices.tolist() == reference.gradient_selection(score, problem.v, problem.p)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prior", PRIORS)
def test_subnet_diagonal_takes_the_smallest_of_the_precision(name, prior):
    problem = solved(name, prior)
    chosen = subnet_diagonal(problem.selection(), problem.p)
    assert chosen.indices.tolist() == reference.subnet_diagonal_selection(problem.omega, problem.p)


def test_gradient_ranks_the_score_of_the_reference_rows():
    problem = solved("mlp")
    score = torch.arange(problem.p, dtype=torch.float64).flip(0)
    assert gradient(problem.selection(score=score), 3).indices.tolist() == [0, 1, 2]
    assert subnet_diagonal(problem.selection(score=score), 3).indices.tolist() != [0, 1, 2]


def tied_problem():
    """Columns 1, 4 and 7 alike, 2 and 5 zero, the rest different."""
    J = random_matrix(10, 8)
    J[:, 4] = J[:, 1]
    J[:, 7] = J[:, 1]
    J[:, [2, 5]] = 0.0
    return synthetic(J, v=0.5, sigma2=0.2)


@pytest.mark.parametrize("method", ["gradient", "subnet-diagonal"])
def test_equal_columns_are_chosen_in_the_order_of_their_indices(method):
    order = SELECTORS[method](tied_problem().selection(), 8).indices.tolist()
    assert [j for j in order if j in (1, 4, 7)] == [1, 4, 7]
    assert [j for j in order if j in (2, 5)] == [2, 5]
    assert order.index(7) - order.index(1) == 2
    assert (order[-2:] if method == "gradient" else order[:2]) == [2, 5]


def test_last_k_is_the_tail_of_the_flat_vector():
    problem = solved("conv")
    assert SELECTORS["last-k"](problem.selection(), 4).indices.sort().values.tolist() == list(
        range(problem.p - 4, problem.p)
    )


def test_magnitude_takes_the_largest_weights_and_the_lower_index_of_equals():
    problem = solved("linear")
    theta = torch.tensor([0.5, -3.0, 3.0, 0.0, -0.5, 1.0], dtype=torch.float64)
    chosen = SELECTORS["magnitude"](problem.selection(theta=theta), 6)
    assert chosen.indices.tolist() == [1, 2, 5, 0, 4, 3]
    assert chosen.values.tolist() == [3.0, 3.0, 1.0, 0.5, 0.5, 0.0]


def test_random_depends_on_the_seed_and_reaches_every_index():
    problem = solved("linear")
    drawn = [SELECTORS["random"](problem.selection(seed=seed), 2).indices.tolist() for seed in range(60)]
    assert {j for pair in drawn for j in pair} == set(range(6))
    assert len({tuple(pair) for pair in drawn}) > 15  # of 30 ordered pairs


def test_random_does_not_touch_the_global_generator():
    before = torch.random.get_rng_state()
    SELECTORS["random"](solved("mlp").selection(), 5)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp", ["4.weight", "4.bias"]),
        ("conv-multiclass", ["linear.weight", "linear.bias"]),
        ("attention", ["head.weight", "head.bias"]),
        ("tied", ["out.weight", "out.bias"]),
    ],
)
def test_neural_linear_is_the_last_linear_layer(name, expected):
    layout = Layout.of(case_named(name).make()[0])
    indices = [i for q in layout.parameters if q.name in expected for i in range(q.span.start, q.span.stop)]
    assert len(indices) > 1
    assert SELECTORS["neural-linear"](solved(name).selection(), 0).indices.tolist() == indices


def test_neural_linear_without_a_linear_layer_points_to_names():
    problem = synthetic(random_matrix(4, 3)).selection()
    early = load_check(METHODS["neural-linear"])
    for refuse in (lambda: SELECTORS["neural-linear"](problem, 0), lambda: early(SelectorFacts(problem.layout, ()), 0)):
        with pytest.raises(UserError, match=r"no trainable nn\.Linear") as failure:
            refuse()
        assert failure.value.reason is Reason.NO_LINEAR_LAYER
        assert "names:PATTERN" in hint_of(failure.value)
    early(SelectorFacts(problem.layout, ("w",)), 0)


def test_names_takes_whole_tensors():
    layout = Layout.of(case_named("conv").make()[0])
    biases = [i for q in layout.parameters if q.name.endswith("bias") for i in range(q.span.start, q.span.stop)]
    assert by_name(solved("conv").selection(), "*bias").indices.tolist() == biases


def test_a_name_that_matches_nothing_is_answered_with_a_suggestion():
    problem, early = solved("conv").selection(), load_check(BY_NAME)
    facts = SelectorFacts(problem.layout, (), pattern="linaer.weight")
    for refuse in (lambda: by_name(problem, "linaer.weight"), lambda: early(facts, None)):
        with pytest.raises(UserError, match=r"no trainable parameter matches 'linaer\.weight'") as failure:
            refuse()
        assert "did you mean 'linear.weight'?" in str(failure.value)
    early(replace(facts, pattern="linear.*"), None)


@pytest.mark.parametrize("name", SELECTORS)
def test_early_checks_pass_what_the_method_can_do(name):
    problem = solved("conv").selection()
    check = load_check(METHODS[name])
    if check is not None:
        check(SelectorFacts(problem.layout, problem.last_linear, problem.pool), 3)


@pytest.mark.parametrize(
    ("indices", "finding"),
    [
        (torch.tensor([0, 1, 1]), "twice"),
        (torch.tensor([0, 1, 9]), r"0\.\.8, got 0\.\.9"),
        (torch.tensor([-1, 1, 2]), r"got -1\.\.2"),
        (torch.tensor([0, 1]), "expected 3 indices, got 2"),
        (torch.tensor([0.0, 1.0, 2.0]), "float32"),
        (torch.tensor([True, False, True]), "bool"),
        (torch.tensor([[0, 1, 2]]), r"shape \(1, 3\)"),
    ],
)
def test_wrong_indices_are_refused(indices, finding):
    with pytest.raises(UserError, match=finding):
        checked(indices, 9, "mine", 3)


def test_an_empty_selection_is_refused():
    with pytest.raises(UserError, match="no parameter"):
        checked(torch.empty(0, dtype=torch.int64), 9, "mine")


def test_unequal_priors_change_the_gradient_order():
    """A guard on the tests above: the unequal priors do matter."""
    problem = solved("mlp", "unequal")
    score = problem.precision.data_diagonal()
    assert not torch.equal(prior_of("equal", problem.p), problem.v)
    assert gradient(problem.selection(), 10).indices.tolist() != torch.topk(score, 10).indices.tolist()
