"""Blocks: whatever factors one stores, every result is that of the numbers themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from core import problems
from core.problems import block_gram, cut, random_matrix
from torch import Tensor

from sublaplace_cli.core.jacobian import conv, linear
from sublaplace_cli.core.jacobian.blocks import Block, DenseBlock, joined, stored_bytes
from sublaplace_cli.core.jacobian.conv import ConvBlock, Geometry
from sublaplace_cli.core.jacobian.embedding import EmbeddingBlock
from sublaplace_cli.core.jacobian.linear import LinearBlock
from sublaplace_cli.core.panels import sizes

START, ROWS, OTHERS = 7, 5, 4


@dataclass(frozen=True)
class Kind:
    """How to make a block of some rows, and how many of its columns are the weight's."""

    name: str
    C: int
    n_weights: int
    make: object

    def __call__(self, rows: int, seed: int) -> Block:
        return self.make(rows, self.C, seed)


def dense_kind(C: int) -> Kind:
    return Kind(f"dense-{C}", C, 6, lambda m, C, seed: DenseBlock(START, random_matrix(m, C, 10, seed=seed)))


def linear_kind(C: int, T: int, d_in: int, d_out: int, bias: bool) -> Kind:
    def make(m: int, C: int, seed: int) -> LinearBlock:
        return LinearBlock(
            START, random_matrix(m, T, d_in, seed=seed), random_matrix(m, C, T, d_out, seed=seed + 1), bias
        )

    return Kind(f"linear-C{C}-T{T}-{d_in}x{d_out}" + ("-bias" if bias else ""), C, d_in * d_out, make)


def conv_kind(name: str, C: int, geometry: Geometry, size: tuple[int, ...]) -> Kind:
    def make(m: int, C: int, seed: int) -> ConvBlock:
        kernel = geometry.weight_shape[2:]
        places = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(size, geometry.padding, geometry.dilation, kernel, geometry.stride, strict=True)
        ]
        inputs = random_matrix(m, geometry.weight_shape[1] * geometry.groups, *size, seed=seed)
        return ConvBlock(START, geometry, inputs, random_matrix(m, C, geometry.weight_shape[0], *places, seed=seed + 1))

    return Kind(f"conv-{name}-C{C}", C, torch.Size(geometry.weight_shape).numel(), make)


def embedding_kind(C: int, T: int) -> Kind:
    def make(m: int, C: int, seed: int) -> EmbeddingBlock:
        tokens = torch.randint(0, 5, (m, T), generator=torch.Generator().manual_seed(seed))
        if T > 1:
            tokens[0] = 3  # one token at every position of a row
            tokens[1, 1] = tokens[1, 0]
        return EmbeddingBlock(START, 6, tokens, random_matrix(m, C, T, 3, seed=seed + 1))

    return Kind(f"embedding-C{C}-T{T}", C, 18, make)


KINDS = [
    *(dense_kind(C) for C in (1, 3)),
    # d_in·d_out is more than T²(d_in + d_out) in some and less in others: factored and written out.
    *(
        linear_kind(C, T, d_in, d_out, bias)
        for C in (1, 3)
        for T, d_in, d_out in [(1, 4, 3), (1, 1, 1), (2, 3, 2), (4, 3, 2), (2, 9, 11)]
        for bias in (True, False)
    ),
    *(
        kind
        for C in (1, 3)
        for kind in [
            conv_kind("1d", C, Geometry((4, 1, 3), (2,), (1,), (2,), 2), (9,)),
            conv_kind("2d", C, Geometry((3, 2, 3, 2), (1, 2), (1, 0), (1, 1), 1), (4, 5)),
            conv_kind("depthwise", C, Geometry((4, 1, 2, 2), (1, 1), (0, 0), (1, 1), 4), (3, 3)),
        ]
    ),
    *(embedding_kind(C, T) for C in (1, 3) for T in (1, 4)),
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def columns_of(block: Block, local: Tensor) -> Tensor:
    return problems.columns_of(block, local, len(numbers(block)))


def prior_for(which: str, kind: Kind, width: int) -> Tensor:
    if which == "equal":
        return torch.full((width,), 0.7, dtype=torch.float64)
    if which == "per-tensor":
        v = torch.full((width,), 0.7, dtype=torch.float64)
        v[kind.n_weights :] = 3.0
        return v
    varying = 10 ** random_matrix(width, seed=9).clamp(-1, 1)
    if which == "varying-bias":
        varying[: kind.n_weights] = 0.7
    return varying


each_prior = pytest.mark.parametrize("prior", ["equal", "per-tensor", "varying-bias", "varying"])


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """To 1e-12 of the largest number."""
    assert found.dtype == expected.dtype == torch.float64
    assert found.shape == expected.shape
    if expected.numel():
        error = float((found - expected).abs().max())
        assert error <= 1e-12 * float(expected.abs().max()), error


def numbers(block: Block) -> Tensor:
    """J (m·C, width), the numbers that `dense` gives."""
    return block.dense().values.flatten(0, 1)


@each_kind
def test_shape(kind):
    block = kind(ROWS, 0)
    m, C, width = block.dense().values.shape
    assert (m, C, width) == (block.n_rows, kind.C, block.width) == (ROWS, kind.C, block.width)
    assert block.span == slice(START, START + block.width)
    assert block.dense().start == block.start == START
    assert block.row_bytes >= stored_bytes(block)


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_block_is_the_sum_of_products_over_positions(C, bias):
    block = linear_kind(C, 3, 4, 2, bias)(ROWS, 0)
    for n in range(ROWS):
        for c in range(C):
            weight = sum(torch.outer(block.deltas[n, c, t], block.inputs[n, t]) for t in range(3)).flatten()
            row = torch.cat([weight, block.deltas[n, c].sum(0)]) if bias else weight
            assert_equal(block.dense().values[n, c], row)


def test_an_embedding_block_adds_up_what_a_token_gets_at_each_of_its_positions():
    block = embedding_kind(2, 4)(ROWS, 0)
    for n in range(ROWS):
        table = torch.zeros(2, 6, 3, dtype=torch.float64)
        for t, token in enumerate(block.tokens[n].tolist()):
            table[:, token] += block.deltas[n, :, t]
        assert_equal(block.dense().values[n], table.flatten(1))


@each_kind
@pytest.mark.parametrize("weighted", [False, True])
def test_squares(kind, weighted):
    block = kind(ROWS, 0)
    J = block.dense().values
    W = random_matrix(ROWS, kind.C, kind.C, seed=5) if weighted else None
    A = J if W is None else torch.stack([W[n].T @ J[n] for n in range(ROWS)])
    assert_equal(block.squares(W), A.square().sum((0, 1)))
    assert_equal(block.dense().squares(W), A.square().sum((0, 1)))


@each_kind
def test_columns(kind):
    block = kind(ROWS, 0)
    J = block.dense().values
    order = torch.randperm(block.width, generator=torch.Generator().manual_seed(1))
    for local in (order, order[:1], order[:3], torch.tensor([block.width - 1, 0, 0]), order[:0]):
        assert_equal(columns_of(block, local), J[:, :, local].flatten(0, 1).T)
        assert_equal(columns_of(block.dense(), local), J[:, :, local].flatten(0, 1).T)


@each_kind
@each_prior
def test_gram_with_itself_on_and_above_the_diagonal(kind, prior):
    block = kind(ROWS, 0)
    v = prior_for(prior, kind, block.width)
    expected = torch.triu(numbers(block) / v @ numbers(block).T)
    assert_equal(torch.triu(block_gram(block, block, v)), expected)
    dense = block.dense()
    assert_equal(torch.triu(block_gram(dense, dense, v)), expected)


@each_kind
@each_prior
def test_gram_with_other_rows(kind, prior):
    block, other = kind(ROWS, 0), kind(OTHERS, 20)
    v = prior_for(prior, kind, block.width)
    expected = numbers(block) / v @ numbers(other).T
    assert_equal(block_gram(block, other, v), expected)
    assert_equal(block_gram(block, other.dense(), v), expected)
    assert_equal(block_gram(block.dense(), other, v), expected)
    assert_equal(block_gram(other, block, v), expected.T)
    # Equal rows in another object: all of it, not the upper half only.
    again = kind(ROWS, 0)
    assert_equal(block_gram(block, again, v), numbers(block) / v @ numbers(block).T)


@each_kind
@each_prior
def test_products_within_each_row(kind, prior):
    block = kind(ROWS, 0)
    v = prior_for(prior, kind, block.width)
    expected = within_rows(block, v)
    assert_equal(block.own_products(v), expected)
    assert_equal(block.dense().own_products(v), expected)


def within_rows(block, v):
    J = block.dense().values
    return torch.stack([row / v @ row.T for row in J.double()])


@each_kind
@pytest.mark.parametrize("r", [1, 4, 21])
def test_pull(kind, r):
    block = kind(ROWS, 0)
    u = random_matrix(ROWS * kind.C, r, seed=6)
    assert_equal(block.pull(u), numbers(block).T @ u)
    assert_equal(block.dense().pull(u), numbers(block).T @ u)


@each_kind
@pytest.mark.parametrize("r", [1, 4, 21])
def test_push(kind, r):
    block = kind(ROWS, 0)
    x = random_matrix(block.width, r, seed=6)
    assert_equal(block.push(x), numbers(block) @ x)
    assert_equal(block.dense().push(x), numbers(block) @ x)


@each_kind
@pytest.mark.parametrize("r", [1, 21])
def test_products_with_float32_vectors_are_float32(kind, r):
    block = kind(ROWS, 0)
    J = numbers(block)
    u, x = random_matrix(ROWS * kind.C, r, seed=6).float(), random_matrix(block.width, r, seed=7).float()
    for found, A, B in ((block.pull(u), J.T, u), (block.push(x), J, x)):
        scale = A.abs() @ B.double().abs()  # the error of a sum of products is relative to their sizes
        assert bool(((found - A @ B.double()).abs() <= 1e-5 * scale + 1e-30).all())


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("r", [1, 7])
def test_products_of_a_linear_layer_a_few_rows_at_a_time(T, r, monkeypatch):
    block = linear_kind(2, T, 4, 3, bias=True)(ROWS, 0)
    monkeypatch.setattr(sizes, "CPU", cut(dense_bytes=1))
    u, x = random_matrix(ROWS * 2, r, seed=6), random_matrix(block.width, r, seed=7)
    assert_equal(block.pull(u), numbers(block).T @ u)
    assert_equal(block.push(x), numbers(block) @ x)


@each_kind
def test_rows_and_joined(kind):
    block = kind(ROWS, 0)
    J = block.dense().values
    for start, stop in [(0, ROWS), (1, 3), (ROWS - 1, ROWS)]:
        part = block.rows(start, stop)
        assert type(part) is type(block)
        assert part.n_rows == stop - start
        assert part.span == block.span
        assert_equal(part.dense().values, J[start:stop])
    whole = joined([block.rows(0, 2), block.rows(2, 3), block.rows(3, ROWS)])
    assert type(whole) is type(block)
    assert torch.equal(whole.dense().values, J)
    assert joined([block]) is block


@each_kind
def test_a_block_is_what_its_tensors_say(kind):
    block, other = kind(ROWS, 0), kind(OTHERS, 20)
    assert all(len(tensor) == ROWS for tensor in block.tensors().values())
    again = block.with_tensors(block.tensors())
    assert type(again) is type(block)
    assert torch.equal(again.dense().values, block.dense().values)
    assert torch.equal(block.with_tensors(other.tensors()).dense().values, other.dense().values)
    assert block.with_tensors(other.tensors()).span == block.span


@each_kind
@each_prior
def test_the_expanded_form_is_the_same_block(kind, prior):
    block, other = kind(ROWS, 0), kind(OTHERS, 20)
    expanded, v = block.expanded(), prior_for(prior, kind, block.width)
    assert expanded.span == block.span
    assert_equal(expanded.dense().values, block.dense().values)
    assert_equal(block_gram(expanded, other.expanded(), v), numbers(block) / v @ numbers(other).T)


@each_kind
@each_prior
def test_results_do_not_depend_on_the_pieces(kind, prior, monkeypatch):
    """Panels, strips and pieces of rows so small that there are many of each."""
    block, other = kind(ROWS, 0), kind(OTHERS, 20)
    v, W = prior_for(prior, kind, block.width), random_matrix(ROWS, kind.C, kind.C, seed=5)
    J = numbers(block)
    A = torch.stack([W[n].T @ block.dense().values[n] for n in range(ROWS)])
    monkeypatch.setattr(sizes, "CPU", cut(panel=4, strip=2, dense_bytes=1))
    local = torch.arange(block.width)
    assert_equal(block.squares(W), A.square().sum((0, 1)))
    assert_equal(columns_of(block, local), J.T)
    assert_equal(torch.triu(block_gram(block, block, v)), torch.triu(J / v @ J.T))
    assert_equal(block_gram(block, other, v), J / v @ numbers(other).T)
    assert_equal(block.own_products(v), within_rows(kind(ROWS, 0), v))
    assert_equal(block.pull(J[:, :2]), J.T @ J[:, :2])
    assert_equal(block.push(J.T[:, :2]), J @ J.T[:, :2])


@pytest.mark.parametrize("weight", [0, 10**9])
@pytest.mark.parametrize("C", [1, 3])
def test_columns_of_positions_by_either_way(weight, C, monkeypatch):
    block = linear_kind(C, 4, 3, 2, bias=True)(ROWS, 0)
    monkeypatch.setattr(linear, "ELEMENTWISE", weight)
    local = torch.tensor([7, 0, 5, 6, 2])
    assert_equal(columns_of(block, local), numbers(block)[:, local].T)


@pytest.mark.parametrize("weight", [0, 10**9])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name.startswith("conv")], ids=lambda kind: kind.name)
def test_columns_of_a_convolution_by_either_way(weight, kind, monkeypatch):
    block = kind(ROWS, 0)
    monkeypatch.setattr(conv, "SINGLE_COLUMN_COST", weight)
    monkeypatch.setattr(conv, "FEW_COLUMNS", 5)
    local = torch.randperm(block.width, generator=torch.Generator().manual_seed(1))
    assert_equal(columns_of(block, local), numbers(block)[:, local].T)


@each_kind
def test_float32_tensors_give_float64_answers(kind):
    """Kept in float32, asked in float64: as exact as the numbers that are kept."""
    wide = kind(ROWS, 0)
    narrow = wide.with_tensors({n: t.float() if t.is_floating_point() else t for n, t in wide.tensors().items()})
    exact = wide.with_tensors({n: t.double() if t.is_floating_point() else t for n, t in narrow.tensors().items()})
    v = prior_for("equal", kind, wide.width)
    J = numbers(exact)
    assert stored_bytes(narrow) < stored_bytes(wide)
    assert_equal(narrow.squares(), J.square().sum(0))
    assert_equal(columns_of(narrow, torch.arange(wide.width)), J.T)
    assert_equal(torch.triu(block_gram(narrow, narrow, v)), torch.triu(J / v @ J.T))
    assert_equal(narrow.own_products(v), within_rows(exact, v))
    assert_equal(narrow.pull(J[:, :2]), J.T @ J[:, :2])


def test_one_row_and_one_output():
    block = replace(linear_kind(1, 1, 4, 3, bias=True)(1, 0), start=0)
    assert block.squares().shape == (15,)
    assert block.own_products(torch.ones(15, dtype=torch.float64)).shape == (1, 1, 1)
    assert block_gram(block, block, torch.ones(15, dtype=torch.float64)).shape == (1, 1)


@each_prior
@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_written_out_some_units_at_a_time(monkeypatch, prior, C, bias):
    """With itself, with other rows, and with rows that are written out already: 11 units, 4 at a time."""
    monkeypatch.setattr(sizes, "CPU", cut(least_units=4, written_columns=1, dense_bytes=100))
    kind = linear_kind(C, 4, 9, 11, bias)
    block, other = kind(ROWS, 0), kind(OTHERS, 5)
    assert len(block.cuts) == 3 + bias
    v = prior_for(prior, kind, block.width)
    J, J2 = numbers(block), numbers(other)
    assert_equal(torch.cat([part.clone() for part in block.written_out(block.cuts)], 1), J)
    assert_equal(block_gram(block, block, v).triu(), (J / v @ J.T).triu())
    for left, right in [(block, other), (block.dense(), other), (block, other.dense())]:
        assert_equal(block_gram(left, right, v), J / v @ J2.T)
    W = random_matrix(ROWS, C, C, seed=3)
    assert_equal(block.squares(W), block.dense().squares(W))


def test_rows_are_kept_written_out_where_that_takes_little_more_memory():
    small, large = linear_kind(1, 4, 5, 5, False)(ROWS, 0), linear_kind(1, 2, 30, 30, False)(ROWS, 0)
    assert isinstance(small.expanded(), DenseBlock)
    assert large.expanded() is large


@pytest.mark.parametrize("C", [1, 3])
def test_products_of_an_embedding_in_some_strips_only(C):
    block = embedding_kind(C, 4)(ROWS, 0)
    v = torch.full((block.width,), 0.7, dtype=torch.float64)
    J, total = numbers(block), torch.zeros(ROWS * C, ROWS * C, dtype=torch.float64)
    block.add_gram(block, v, total, [(1, 2), (3, 5)])
    expected = (J / v @ J.T).triu()
    assert_equal(total[C : 2 * C].triu(C), expected[C : 2 * C])
    assert_equal(total[3 * C :].triu(3 * C), expected[3 * C :])
    assert not total[:C].any()
    assert not total[2 * C : 3 * C].any()
