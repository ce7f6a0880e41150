"""The public functions on every case against the dense reference, and what they refuse."""

from __future__ import annotations

import doctest
from functools import cache
from typing import NamedTuple

import pytest
import reference
import torch
from cases import CASES
from cli.cli_tools import Project
from core.problems import NOISE, assert_close, case_named, likelihood_of, prior_of, random_matrix, subset
from torch import Tensor, nn

import sublaplace_cli
from sublaplace_cli import (
    Binary,
    Multiclass,
    Regression,
    SublaplaceError,
    dense_jacobian,
    fit,
    fit_path,
    full_posterior,
    jacobian,
    precision,
    select,
    variances,
)
from sublaplace_cli.api import command, library
from sublaplace_cli.catalog import METHODS
from sublaplace_cli.core.network.forward import row_count
from sublaplace_cli.core.network.layout import Layout

NAMES = [case.name for case in CASES]
FEW = ["mlp", "mlp-3-outputs", "conv-binary", "mlp-multiclass", "attention", "two-inputs"]
each_case = pytest.mark.parametrize("name", NAMES)
each_prior = pytest.mark.parametrize("prior", ["equal", "unequal"])


class Dense(NamedTuple):
    """A case by the reference: everything (N, C, …) and Ω (p, p)."""

    f: Tensor
    J: Tensor
    J_test: Tensor
    H: Tensor
    v: Tensor
    omega: Tensor
    sigma2: float


@cache
def dense(name: str, prior: str) -> Dense:
    case = case_named(name)
    model, train, _, test, _ = case.make()
    f, J = reference.jacobian(model, train, row_count(train))
    _, J_test = reference.jacobian(model, test, row_count(test))
    sigma2 = NOISE if case.kind == "regression" else 1.0
    H, v = reference.output_hessian(case.kind, f, sigma2), prior_of(prior, J.shape[2])
    return Dense(f, J, J_test, H, v, reference.precision(J, H, v), sigma2)


@cache
def public(name: str, prior: str, hold: bool = True):
    """(Ω of the training rows, Jacobian of the test rows) of a case by the public functions."""
    case = case_named(name)
    model, train, _, test, _ = case.make()
    rows = jacobian(model, train, hold=hold)
    likelihood = likelihood_of(case, NOISE)
    prior_precision = 0.7 if prior == "equal" else prior_of(prior, rows.layout.size)
    return precision(rows, likelihood, prior_precision), jacobian(model, test, hold=hold, like=rows)


def written_out(rows) -> Tensor:
    """J (N, C, p) of any Jacobian."""
    J = torch.full((*rows.outputs.shape, rows.layout.size), float("nan"), dtype=torch.float64)
    for block in rows.load(0, len(rows.outputs)):
        J[:, :, block.span] = block.dense().values.double()
    return J


@each_case
@pytest.mark.parametrize("hold", [True, False])
def test_jacobian(name, hold):
    expected = dense(name, "equal")
    omega, test = public(name, "equal", hold)
    assert_close(omega.jacobian.outputs, expected.f, 1e-12)
    assert_close(written_out(omega.jacobian), expected.J, 1e-9)
    assert_close(written_out(test), expected.J_test, 1e-9)


@each_case
@each_prior
@pytest.mark.parametrize("hold", [True, False])
def test_precision(name, prior, hold):
    expected = dense(name, prior)
    omega, _ = public(name, prior, hold)
    everything = torch.arange(len(expected.v))
    A = omega.columns(everything)  # in the prior's metric: Ω = V^½ (I + A′ᵀA′) V^½
    root = expected.v.sqrt()
    found = (torch.eye(len(root), dtype=torch.float64) + A @ A.T) * torch.outer(root, root)
    assert_close(found, expected.omega, 1e-9)
    assert_close(omega.data_diagonal(), reference.data_term(expected.J, expected.H).diagonal(), 1e-9)
    assert torch.equal(omega.prior, expected.v)


def test_priors_by_glob_are_those_of_the_first_match():
    omega, _ = public("mlp", "equal")
    by_glob = precision(omega.jacobian, Regression(), {"*.bias": 10.0, "0.*": 2.0, "*": 0.5}).prior
    for parameter in omega.layout.parameters:
        wanted = 10.0 if parameter.name.endswith("bias") else 2.0 if parameter.name.startswith("0.") else 0.5
        assert set(by_glob[parameter.span].tolist()) == {wanted}


SELECTORS = [name for name, method in METHODS.items() if method.kind == "selector"]


def expected_selection(method: str, name: str, prior: str, k: int) -> list[int]:
    known, model = dense(name, prior), case_named(name).make()[0]
    p = len(known.v)
    if method == "gradient":
        return reference.gradient_selection(reference.data_term(known.J, known.H).diagonal(), known.v, k)
    if method == "greedy":
        return reference.greedy_selection(known.omega, known.v, k)
    if method == "subnet-diagonal":
        return reference.subnet_diagonal_selection(known.omega, k)
    if method == "variance":
        return reference.variance_selection(known.J, known.omega, k)[0].tolist()
    if method == "magnitude":
        theta = torch.cat([one.detach().reshape(-1) for one in reference.flat_parameters(model)]).abs()
        return sorted(range(p), key=lambda j: (-float(theta[j]), j))[:k]
    if method == "neural-linear":
        layer = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        own = {id(one) for one in layer.parameters()}
        spans = [(one, one.offset) for one in Layout.of(model).parameters]
        by_name = dict(model.named_parameters())
        return [i for one, at in spans if id(by_name[one.name]) in own for i in range(at, at + one.size)]
    return list(range(p))[-k:]  # last-k


@pytest.mark.parametrize("name", FEW)
@each_prior
@pytest.mark.parametrize("method", [method for method in SELECTORS if method != "random"])
def test_select(method, name, prior):
    omega, _ = public(name, prior)
    found = select(omega, method, k=5)
    expected = expected_selection(method, name, prior, 5)
    if method in ("neural-linear", "last-k"):  # a set: the order says nothing
        assert sorted(found.indices.tolist()) == sorted(expected)
    else:
        assert found.indices.tolist() == expected
    assert found.values.shape == found.indices.shape


def test_select_at_random_by_the_seed():
    omega, _ = public("mlp", "equal")
    first, again, other = (select(omega, "random", k=9, seed=seed).indices for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(set(first.tolist())) == 9


def test_select_by_name():
    omega, _ = public("mlp", "equal")
    biases = [one for one in omega.layout.parameters if one.name.endswith("bias")]
    wanted = [i for one in biases for i in range(one.offset, one.offset + one.size)]
    assert select(omega, "names:*.bias").indices.tolist() == wanted


def test_select_within_a_pool():
    known, (omega, _) = dense("mlp", "unequal"), public("mlp", "unequal")
    score = reference.data_term(known.J, known.H).diagonal()
    pool = reference.gradient_selection(score, known.v, 8)
    assert select(omega, "greedy", k=4, pool="8").indices.tolist() == reference.greedy_selection(
        known.omega, known.v, 4, pool
    )


@each_case
@each_prior
@pytest.mark.parametrize("hold", [True, False])
def test_fit_and_variance(name, prior, hold):
    expected, (omega, test) = dense(name, prior), public(name, prior, hold)
    p = len(expected.v)
    for k in sorted({1, min(omega.n_rows + 1, p), p}):  # both forms
        S = subset(p, k)
        posterior = fit(omega, S)
        assert_close(posterior.variance(test), reference.subnet_variance(expected.J_test, expected.omega, S), 1e-9)
        ipv = reference.ipv(expected.J, expected.H, expected.v, S, expected.sigma2)
        assert posterior.freedom * expected.sigma2 / len(expected.J) == pytest.approx(ipv, rel=1e-9)


@each_case
@each_prior
@pytest.mark.parametrize("hold", [True, False])
def test_full_posterior(name, prior, hold):
    expected, (omega, test) = dense(name, prior), public(name, prior, hold)
    everything = torch.arange(len(expected.v))
    full = full_posterior(omega)
    assert_close(full.variance(test), reference.subnet_variance(expected.J_test, expected.omega, everything), 1e-9)
    ipv = reference.ipv(expected.J, expected.H, expected.v, everything, expected.sigma2)
    assert full.freedom * expected.sigma2 / len(expected.J) == pytest.approx(ipv, rel=1e-9)


@each_case
@each_prior
def test_fit_path_and_variances(name, prior):
    expected, (omega, test) = dense(name, prior), public(name, prior)
    p = len(expected.v)
    ks = sorted({1, min(4, p), min(omega.n_rows, p), p})
    selection = select(omega, "gradient", k=p)
    path = fit_path(omega, selection, ks)
    for k, posterior, together in zip(ks, path, variances(path, test), strict=True):
        S = selection.indices[:k]
        assert torch.equal(posterior.indices, S)
        wanted = reference.subnet_variance(expected.J_test, expected.omega, S)
        assert_close(together, wanted, 1e-9)
        assert_close(posterior.variance(test), wanted, 1e-9)


def left_out(known: Dense, S: Tensor) -> Tensor:
    """Variance of every training row without that row (N, C)."""
    rows = []
    for n in range(len(known.J)):
        others = torch.arange(len(known.J)) != n
        omega = reference.precision(known.J[others], known.H[others], known.v)
        rows.append(reference.subnet_variance(known.J[n : n + 1], omega, S))
    return torch.cat(rows)


@pytest.mark.parametrize("name", ["mlp", "mlp-3-outputs", "conv-binary", "attention"])
@each_prior
@pytest.mark.parametrize("kind", ["scale", "hybrid"])
def test_rescale(name, prior, kind):
    known, (omega, test) = dense(name, prior), public(name, prior)
    p = len(known.v)
    S, everything = subset(p, p // 3), torch.arange(p)
    posterior = fit(omega, S, rescale=kind)
    own, full = left_out(known, S).flatten(), left_out(known, everything).flatten()
    outside = torch.ones(p, dtype=torch.bool)
    outside[S] = False

    def norms(J: Tensor) -> Tensor:
        return (J[:, :, outside].square() / known.v[outside]).sum(2)

    def cost(c: float, b: float) -> float:
        return float((full.sqrt() - (c * own + b * norms(known.J).flatten()).sqrt()).abs().sum())

    c, b = posterior.rescale.c, posterior.rescale.b
    best = min(cost(float(ratio), 0.0) for ratio in full / own)  # the kinks of a piecewise linear cost
    if kind == "scale":
        assert b == 0.0
        assert cost(c, 0.0) == pytest.approx(best, rel=1e-9)
    else:
        assert cost(c, b) <= best * (1 + 1e-9)
        for up in (0.99, 1.01):
            assert cost(c, b) <= min(cost(c * up, b), cost(c, b * up)) * (1 + 1e-6)
    plain = reference.subnet_variance(known.J_test, known.omega, S)
    assert_close(posterior.variance(test), c * plain + b * norms(known.J_test), 1e-9)
    assert torch.equal(posterior.indices, fit(omega, S).indices)
    assert posterior.freedom == fit(omega, S).freedom


@pytest.mark.parametrize("name", FEW)
def test_streamed_rows_give_what_held_rows_give(name):
    (held, test), (streamed, test_again) = public(name, "unequal", True), public(name, "unequal", False)
    assert_close(streamed.data_diagonal(), held.data_diagonal(), 1e-12)
    for method in SELECTORS:
        assert torch.equal(select(streamed, method, k=5).indices, select(held, method, k=5).indices)
    S = subset(held.layout.size, 7)
    assert_close(fit(streamed, S).variance(test_again), fit(held, S).variance(test), 1e-10)
    assert_close(full_posterior(streamed).variance(test_again), full_posterior(held).variance(test), 1e-10)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("hold", [True, False])
def test_like_skips_the_checks_and_gives_the_same_bits(name, hold, monkeypatch):
    model, train, _, test, _ = case_named(name).make(torch.float32)
    first, alone = jacobian(model, train, hold=hold), jacobian(model, test, hold=hold)
    monkeypatch.setattr(library, "prepare_capture", lambda *_: pytest.fail("checked again"))
    again = jacobian(model, test, hold=hold, like=first)
    assert torch.equal(again.outputs, alone.outputs)
    assert torch.equal(written_out(again), written_out(alone))
    assert again.last_linear == first.last_linear
    with pytest.raises(pytest.fail.Exception):
        jacobian(model, test, hold=hold)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("rows_per_pass", [1, 5, 23, 100])
def test_the_rows_of_a_pass_do_not_matter(name, hold, rows_per_pass):
    model, train, *_ = case_named(name).make()
    rows = jacobian(model, train, hold=hold, rows_per_pass=rows_per_pass)
    assert_close(rows.outputs, dense(name, "equal").f, 1e-12)
    assert_close(written_out(rows), dense(name, "equal").J, 1e-9)


@pytest.mark.parametrize("name", FEW)
@each_prior
def test_a_dense_jacobian_gives_the_same_posterior(name, prior):
    known, (omega, test) = dense(name, prior), public(name, prior)
    likelihood = likelihood_of(case_named(name), NOISE)
    plain = precision(dense_jacobian(known.J, known.f), likelihood, known.v)
    S = select(plain, "greedy", k=6)
    assert torch.equal(S.indices, select(omega, "greedy", k=6).indices)
    found = fit(plain, S).variance(dense_jacobian(known.J_test))
    assert_close(found, fit(omega, S).variance(test), 1e-9)
    assert_close(found, reference.subnet_variance(known.J_test, known.omega, S.indices), 1e-9)


def test_memory_is_a_limit():
    omega, _ = public("mlp", "equal")
    with pytest.raises(SublaplaceError, match=r"more than the .* allowed"):
        full_posterior(precision(omega.jacobian, Regression(), memory=1000))


def mlp_of(outputs: int = 1) -> nn.Module:
    return sublaplace_cli.mlp(**{"in": 3, "hidden": [4], "out": outputs}).double().eval()


ROWS = random_matrix(10, 3)


def some_omega(outputs: int = 1):
    return precision(jacobian(mlp_of(outputs), ROWS), Regression(0.5))


REFUSED = {
    "training mode": (lambda: jacobian(mlp_of().train(), ROWS), "training mode"),
    "no parameters": (lambda: jacobian(nn.Tanh().eval(), ROWS), "no trainable parameter"),
    "all frozen": (lambda: jacobian(mlp_of().requires_grad_(False), ROWS), "no trainable parameter"),
    "no rows": (lambda: jacobian(mlp_of(), ROWS[:0]), "no rows"),
    "no rows, streamed": (lambda: jacobian(mlp_of(), ROWS[:0], hold=False), "no rows"),
    "like another network": (lambda: jacobian(mlp_of(), ROWS, like=jacobian(mlp_of(), ROWS)), "another network"),
    "no row per pass": (lambda: jacobian(mlp_of(), ROWS, rows_per_pass=0), "rows_per_pass = 0"),
    "two dimensions": (lambda: dense_jacobian(random_matrix(9, 5)), r"\(9, 5\)"),
    "outputs of other rows": (lambda: dense_jacobian(random_matrix(9, 1, 5), random_matrix(8, 1)), r"\(8, 1\)"),
    "three logits of a binary task": (lambda: precision(jacobian(mlp_of(3), ROWS), Binary()), "needs one output"),
    "one logit of many classes": (lambda: precision(jacobian(mlp_of(), ROWS), Multiclass()), "at least two outputs"),
    "prior of another length": (lambda: precision(some_omega().jacobian, Regression(), torch.ones(3)), r"3.*21"),
    "prior of zero": (lambda: precision(some_omega().jacobian, Regression(), 0.0), "must be positive"),
    "prior without end": (lambda: precision(some_omega().jacobian, Regression(), float("inf")), "must be positive"),
    "prior of no parameter": (lambda: precision(some_omega().jacobian, Regression(), {"x*": 1.0}), "matches no"),
    "noise of zero": (lambda: precision(some_omega().jacobian, Regression(0.0)), "noise variance is 0"),
    "negative noise": (lambda: precision(some_omega().jacobian, Regression(-1.0)), "noise variance is -1"),
    "unknown method": (lambda: select(some_omega(), "gradeint", k=2), "unknown selection method 'gradeint'"),
    "a reference": (lambda: select(some_omega(), "full", k=2), "unknown selection method 'full'"),
    "k of zero": (lambda: select(some_omega(), "gradient", k=0), "k = 0 is out of range"),
    "k beyond p": (lambda: select(some_omega(), "gradient", k=22), "k = 22 is out of range.* 21"),
    "a glob without a match": (lambda: select(some_omega(), "names:head.*"), "matches 'head"),
    "no pool": (lambda: select(some_omega(), "greedy", k=2, pool="most"), "pool"),
    "a pool smaller than k": (lambda: select(some_omega(), "greedy", k=5, pool="3"), "pool of 3"),
    "magnitude without weights": (
        lambda: select(precision(dense_jacobian(random_matrix(9, 1, 5)), Regression()), "magnitude", k=2),
        "network",
    ),
    "no linear layer": (
        lambda: select(precision(dense_jacobian(random_matrix(9, 1, 5)), Regression()), "neural-linear"),
        "no trainable nn.Linear",
    ),
    "an index twice": (lambda: fit(some_omega(), torch.tensor([3, 3])), "occurs twice"),
    "an index beyond p": (lambda: fit(some_omega(), torch.tensor([3, 21])), r"0\.\.20"),
    "a mask": (lambda: fit(some_omega(), torch.ones(21, dtype=torch.bool)), "vector of integers"),
    "nothing selected": (lambda: fit(some_omega(), torch.tensor([], dtype=torch.int64)), "no parameter"),
    "unknown rescaling": (lambda: fit(some_omega(), torch.tensor([3]), rescale="double"), "double"),
    "a path beyond its selection": (lambda: fit_path(some_omega(), torch.tensor([3, 4]), [1, 3]), "k = 3"),
    "one k beyond its selection": (lambda: fit_path(some_omega(), torch.tensor([3, 4]), [3]), "k = 3"),
    "an empty sub-network": (lambda: fit_path(some_omega(), torch.tensor([3, 4]), [0, 1]), "k = 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case):
    attempt, message = REFUSED[case]
    with pytest.raises(SublaplaceError, match=message):
        attempt()


def test_an_error_suggests_the_nearest_name():
    with pytest.raises(SublaplaceError, match="did you mean 'gradient'"):
        select(some_omega(), "gradeint", k=2)


def examples(module) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]


@pytest.mark.parametrize("test", [*examples(library), *examples(command)], ids=lambda test: test.name.split(".")[-1])
def test_the_examples_of_the_docstrings(test, tmp_path):
    names = {name: getattr(sublaplace_cli, name) for name in sublaplace_cli.__all__}
    J = jacobian(sublaplace_cli.mlp(**{"in": 3, "hidden": [8], "out": 1}).eval(), torch.randn(20, 3))
    spec = Project(tmp_path).folder / "sublaplace.yaml"
    test.globs = {**names, "torch": torch, "J": J, "omega": precision(J, Regression(0.35)), "spec": spec}
    found = doctest.DocTestRunner(optionflags=doctest.REPORT_ONLY_FIRST_FAILURE).run(test)
    assert found.attempted > 0
    assert found.failed == 0


def test_every_public_function_has_an_example():
    shown = {test.name.split(".")[-1] for test in [*examples(library), *examples(command)]}
    functions = {
        name
        for name in sublaplace_cli.__all__
        if getattr(sublaplace_cli, name).__module__ in ("sublaplace_cli.api.library", "sublaplace_cli.api.command")
    }
    assert functions <= shown
