"""The formulas for the cost of sums over blocks count what the blocks' own code multiplies."""

from __future__ import annotations

import pytest
import torch
from core.problems import random_matrix
from torch.utils.flop_counter import FlopCounterMode

from sublaplace_cli.commands.planning.costs import (
    gram_products,
    is_written_out,
    square_elements,
    square_products,
    written_products,
)
from sublaplace_cli.core.jacobian.blocks import Block, DenseBlock
from sublaplace_cli.core.jacobian.embedding import EmbeddingBlock
from sublaplace_cli.core.jacobian.linear import ELEMENTWISE, LinearBlock


def linear(m: int, C: int, T: int, d_in: int, d_out: int) -> LinearBlock:
    return LinearBlock(0, random_matrix(m, T, d_in, seed=1), random_matrix(m, C, T, d_out, seed=2), True)


def embedding(m: int, C: int) -> EmbeddingBlock:
    """Of positions: all rows share all entries."""
    return EmbeddingBlock(0, 9, torch.arange(3).expand(m, 3), random_matrix(m, C, 3, 40, seed=2))


def flops_of_addmm(_total: list[int], a: list[int], b: list[int], **_more: object) -> int:
    return 2 * a[0] * a[1] * b[1]


def counting() -> FlopCounterMode:
    """Counts products that are added in place too, which torch's own counter leaves out."""
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: flops_of_addmm})


BLOCKS = {
    "linear": lambda m, C: linear(m, C, 1, 60, 50),
    "linear with positions": lambda m, C: linear(m, C, 3, 60, 50),
    "linear, written out": lambda m, C: linear(m, C, 12, 8, 5),
    "dense": lambda m, C: DenseBlock(0, random_matrix(m, C, 300, seed=1)),
    "embedding": embedding,
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("C", [1, 2])
def test_products_of_a_gram_matrix_are_those_that_run(name: str, C: int) -> None:
    n, m = 40, 30
    left, right = BLOCKS[name](n, C), BLOCKS[name](m, C)
    total, prior = torch.zeros(n * C, m * C, dtype=torch.float64), torch.ones(left.width, dtype=torch.float64)
    with counting() as counter:
        left.add_gram(right, prior, total)
    counted, expected = counter.get_total_flops() / 2, n * m * gram_products(left, C)
    # Writing out takes its own products, once per row; pairs of positions are also multiplied one by one.
    positions = left.inputs.shape[1] if isinstance(left, LinearBlock) and not is_written_out(left) else 0
    by_itself = n * m * positions**2 * C**2 * ELEMENTWISE
    written_out = (n + m) * written_products(left) if is_written_out(left) else 0
    assert 0.98 * written_out <= counted - (expected - by_itself) <= 0.02 * expected + written_out


def test_rows_share_few_entries_of_an_embedding() -> None:
    tokens = torch.randint(0, 9, (40, 3), generator=torch.Generator().manual_seed(0))
    block = EmbeddingBlock(0, 9, tokens, random_matrix(40, 1, 3, 40, seed=2))
    with counting() as counter:
        block.add_gram(block.rows(0, 30), torch.ones(block.width).double(), torch.zeros(40, 30, dtype=torch.float64))
    assert 0 < counter.get_total_flops() / 2 < 0.6 * 40 * 30 * gram_products(block, 1)


def squared(block: Block) -> tuple[int, int]:
    with counting() as counter:
        block.squares()
    return counter.get_total_flops() // 2, block.n_rows * square_products(block)


def test_products_of_squares_are_those_that_run() -> None:
    counted, expected = squared(linear(40, 2, 1, 60, 50))
    assert counted <= expected <= 1.02 * counted
    for name in ("linear with positions", "linear, written out"):
        counted, expected = squared(BLOCKS[name](40, 2))
        assert 0 < counted <= expected <= 1.02 * counted
    for name in ("dense", "embedding"):
        block = BLOCKS[name](40, 1)
        assert square_products(block) == 0
        assert square_elements(block) == block.tensors()[block.factors[-1]][0].numel()
