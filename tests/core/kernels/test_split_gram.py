"""Gram matrices and full posteriors by products of 8-bit digits, beside the same in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from core.problems import PLENTY, dtypes_kept, held, random_matrix, solved
from torch import Tensor

from sublaplace_cli.architectures.cifar_resnet import cifar_resnet
from sublaplace_cli.core.jacobian.blocks import Block, DenseBlock
from sublaplace_cli.core.jacobian.capture import prepare_capture
from sublaplace_cli.core.jacobian.embedding import EmbeddingBlock
from sublaplace_cli.core.jacobian.linear import LinearBlock
from sublaplace_cli.core.jacobian.rows import HeldJacobian
from sublaplace_cli.core.kernels.arithmetic import Arithmetic
from sublaplace_cli.core.likelihoods.multiclass import Multiclass
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega import gram_float32
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.posterior.full import FullPosterior, fit_full
from sublaplace_cli.errors import NumericsError

SPLITS = (Arithmetic.SPLIT_4, Arithmetic.SPLIT_5)
NEAR = 1e-6  # of a variance, as promised


def dense(m: int, C: int, seed: int) -> Block:
    return DenseBlock(3, random_matrix(m, C, 70, seed=seed))


def linear(T: int, d_in: int, d_out: int, bias: bool):
    def make(m: int, C: int, seed: int) -> Block:
        return LinearBlock(3, random_matrix(m, T, d_in, seed=seed), random_matrix(m, C, T, d_out, seed=seed + 1), bias)

    return make


def embedding(m: int, C: int, seed: int) -> Block:
    tokens = torch.randint(0, 6, (m, 4), generator=torch.Generator().manual_seed(seed))
    return EmbeddingBlock(3, 6, tokens, random_matrix(m, C, 4, 3, seed=seed))


KINDS = {
    "dense": dense,
    "linear": linear(1, 40, 30, True),
    "linear without bias": linear(1, 40, 30, False),
    "positions, factored": linear(2, 40, 30, True),
    "positions, written out": linear(9, 6, 5, True),
    "embedding": embedding,
}


def gram_of(block: Block, other: Block, v: Tensor, by: Arithmetic, strips=None) -> Tensor:
    total = torch.zeros(block.n_rows * block.n_outputs, other.n_rows * other.n_outputs, dtype=torch.float64)
    block.add_gram(other, v, total, strips, by)
    return total


def lengths(block: Block, v: Tensor) -> Tensor:
    return block.own_products(v).diagonal(dim1=1, dim2=2).flatten().sqrt()


@pytest.mark.parametrize("kept", [torch.float32, torch.float64])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("by", SPLITS)
@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_block_is_close_to_float64(kind, C, by, equal, kept):
    block, other = (
        each.with_tensors({n: t.to(kept) if t.is_floating_point() else t for n, t in each.tensors().items()})
        for each in (KINDS[kind](19, C, 1), KINDS[kind](11, C, 5))
    )
    assert dtypes_kept([block]) == {kept}
    v = torch.full((block.width,), 0.7).double() if equal else random_matrix(block.width, seed=4).exp()
    for left, right in [(block, block), (block, other), (other, block)]:
        found, expected = (gram_of(left, right, v, arithmetic) for arithmetic in (by, Arithmetic.FLOAT64))
        size = lengths(left, v)[:, None] * lengths(right, v)
        error = ((found - expected) / size).triu() if left is right else (found - expected) / size
        # √n half units of the last digit for both, 4.04·√n, and up to twice as much for the levels that are left out:
        # on the diagonal these have squares among them. One digit less would be off by 256 times as much.
        assert float(error.abs().max()) <= 3 * 4.04 * block.width**0.5 * 2.0 ** (-8 * by.digits)
        assert kind == "embedding" or not torch.equal(found.triu(), expected.triu()), "digits were asked for"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "embedding"])
def test_rows_in_strips_have_the_same_bits(kind):
    block = KINDS[kind](19, 2, 1)
    v = torch.full((block.width,), 0.7, dtype=torch.float64)
    whole = gram_of(block, block, v, Arithmetic.SPLIT_4).triu()
    strips = [(0, 3), (3, 4), (4, 19)]
    assert torch.equal(gram_of(block, block, v, Arithmetic.SPLIT_4, strips).triu(), whole)
    some = gram_of(block, block, v, Arithmetic.SPLIT_4, strips[1:2])
    assert torch.equal(some[6:8].triu(6), whole[6:8])
    assert not some[:6].any()
    assert not some[8:].any()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "embedding"])
def test_with_itself_and_beside_it_in_one_go(kind):
    block, beside = KINDS[kind](19, 2, 1), KINDS[kind](11, 2, 5)
    v = torch.full((block.width,), 0.7, dtype=torch.float64)
    K, cross = torch.zeros(38, 38, dtype=torch.float64), torch.zeros(22, 38, dtype=torch.float64)
    block.add_grams(beside, v, (K, cross), (None, None), Arithmetic.SPLIT_4)
    assert torch.equal(K.triu(), gram_of(block, block, v, Arithmetic.SPLIT_4).triu())
    assert torch.equal(cross, gram_of(beside, block, v, Arithmetic.SPLIT_4))


def variances(posterior: FullPosterior, rows: HeldJacobian) -> Tensor:
    return posterior.covariance(rows).diagonal(dim1=1, dim2=2)


def error_of(precision: Precision, test: HeldJacobian, by: Arithmetic = Arithmetic.SPLIT_4) -> float:
    exact, found = (
        variances(fit_full(replace(precision, gram_dtype=arithmetic)), test) for arithmetic in (Arithmetic.FLOAT64, by)
    )
    return float(((found - exact) / exact).abs().max())


@pytest.mark.parametrize("prior", ["equal", "unequal"])
@pytest.mark.parametrize("name", ["mlp", "mlp-3-outputs", "conv-binary", "conv-multiclass", "attention", "token-block"])
def test_variances_are_those_of_float64(name, prior):
    problem = solved(name, prior)
    assert 0 < error_of(problem.precision, problem.test) <= NEAR


def test_variances_of_a_resnet_are_those_of_float64():
    """At the start of its training: every kind of layer that it has."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = cifar_resnet(depth=20, out=3).eval()
    rows, others = (torch.randn(n, 3, 32, 32, generator=generator) for n in (6, 2))
    layout = Layout.of(model)
    capture = prepare_capture(model, layout, rows[:2], PLENTY)
    train, test = (capture(X) for X in (rows, others))
    own, there = (HeldJacobian(layout, each.f.double(), tuple(each.blocks)) for each in (train, test))
    prior = torch.full((layout.size,), 1.0, dtype=torch.float64)
    precision = Precision(own, Multiclass().root(own.outputs), prior, PLENTY)
    assert 0 < error_of(precision, there) <= NEAR


def stretched(decades: float) -> tuple[Precision, HeldJacobian]:
    """Rows close to a few directions: λmax = 10^decades, test rows in the span of the training rows but for 1."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(4, 300, dtype=torch.float64, generator=generator)
    J, J_test = (
        10 ** (decades / 2 - 2) * torch.randn(n, 4, dtype=torch.float64, generator=generator) @ common
        + torch.randn(n, 300, dtype=torch.float64, generator=generator)
        for n in (60, 20)
    )
    train, test = held(J), held(J_test)
    return Precision(
        train, torch.ones(60, 1, 1, dtype=torch.float64), torch.ones(300, dtype=torch.float64), PLENTY
    ), test


def test_more_digits_are_tried_before_anything_is_refused(monkeypatch):
    tried, real = [], gram_float32.require_accuracy

    def judged(precision, *rest):
        tried.append(precision.gram_dtype)
        return real(precision, *rest)

    monkeypatch.setattr("sublaplace_cli.core.posterior.full.require_accuracy", judged)
    precision, test = stretched(9)
    split = replace(precision, gram_dtype=Arithmetic.SPLIT_4)
    posterior = fit_full(split)
    assert tried == [Arithmetic.SPLIT_4, Arithmetic.SPLIT_5]
    assert posterior.precision.gram_dtype is Arithmetic.SPLIT_5
    exact = variances(fit_full(precision), test)
    assert float(((variances(posterior, test) - exact) / exact).abs().max()) <= 1e-3
    tried.clear()
    assert fit_full(easy(split)).precision.gram_dtype is Arithmetic.SPLIT_4
    assert tried == [Arithmetic.SPLIT_4]
    with pytest.raises(NumericsError, match=r"of products of 5 digits is not accurate enough here"):
        fit_full(replace(stretched(14)[0], gram_dtype=Arithmetic.SPLIT_4))


def easy(precision: Precision) -> Precision:
    """With a prior that the data add little to."""
    return replace(precision, prior=precision.prior * 1e10)


def test_rows_to_predict_that_four_digits_are_not_enough_for(monkeypatch):
    """Judged good enough at the training rows, and not at the test rows: the posterior is fitted again."""
    precision, test = stretched(9)
    posterior = fit_full(easy(replace(precision, gram_dtype=Arithmetic.SPLIT_4)))
    four = variances(posterior, test)
    monkeypatch.setattr(gram_float32, "NEARLY_EXACT", 1e-30)
    five = variances(posterior, test)
    exact = variances(fit_full(easy(precision)), test)
    assert float((five - exact).abs().max()) < float((four - exact).abs().max()) / 30
