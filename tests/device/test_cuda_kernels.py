"""The kernels on a real CUDA device: `pytest -m cuda`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from core.problems import random_matrix

from sublaplace_cli.core.jacobian.blocks import Block, DenseBlock
from sublaplace_cli.core.jacobian.linear import LinearBlock
from sublaplace_cli.core.kernels import choice, integers
from sublaplace_cli.core.kernels.arithmetic import Arithmetic
from sublaplace_cli.core.kernels.digits import Digits
from sublaplace_cli.core.kernels.launch import LinearFactors, level_gram, outer_gram

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
SIZES = (1, 15, 16, 17, 63, 64, 65, 201, 1000)
CUDA = torch.device("cuda", 0)


@pytest.fixture
def triton_chosen(monkeypatch: pytest.MonkeyPatch) -> choice.KernelChoice:
    """Asked for, and a failure if it is refused."""
    pytest.importorskip("triton")
    monkeypatch.setattr(choice, "_chosen", choice.KernelChoice())
    return choice.choose("triton", pytest.fail)


def on(block: Block, device: torch.device | str) -> Block:
    return block.with_tensors({name: tensor.to(device) for name, tensor in block.tensors().items()})


def dense(rows: int, C: int, seed: int) -> Block:
    return DenseBlock(0, random_matrix(rows, C, 5000, seed=seed).float())


def linear(rows: int, C: int, seed: int) -> Block:
    a, delta = random_matrix(rows, 1, 300, seed=seed), random_matrix(rows, C, 1, 70, seed=seed + 1)
    return LinearBlock(0, a.float(), delta.float(), True)


def gram(block: Block, other: Block, by: Arithmetic) -> torch.Tensor:
    v = torch.full((block.width,), 0.7, dtype=torch.float64, device=block.tensors()[block.factors[0]].device)
    shape = (each.n_rows * each.n_outputs for each in (block, other))
    total = torch.zeros(*shape, dtype=torch.float64, device=v.device)
    block.add_gram(other, v, total, None, by)
    return total.triu() if other is block else total


@pytest.mark.parametrize("by", [Arithmetic.SPLIT_4, Arithmetic.SPLIT_5])
@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("kind", [dense, linear])
def test_split_products_have_the_bits_of_the_cpu(kind, C: int, by: Arithmetic) -> None:
    block, other = kind(201, C, 1), kind(65, C, 5)
    there, others = on(block, CUDA), on(other, CUDA)
    assert torch.equal(gram(there, there, by).cpu(), gram(block, block, by))
    assert torch.equal(gram(there, others, by).cpu(), gram(block, other, by))


def test_integer_products_are_used() -> None:
    assert integers._fastest(CUDA) is integers.by_integers


@pytest.mark.parametrize("s", [4, 5])
@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_of_digits_has_the_bits_of_torch(size: int, s: int) -> None:
    pytest.importorskip("triton")
    for others, columns in [(65, 17), (1, 2048), (300, size)]:
        own, other = (Digits.of(random_matrix(r, columns, seed=r), s) for r in (size, others))
        expected = own.products(other).mul_(0.7).add_(1.0)
        found = torch.ones(size, others, dtype=torch.float64, device=CUDA)
        own, other = (Digits(each.values.to(CUDA), each.scale.to(CUDA)) for each in (own, other))
        level_gram(found, own, other, 0.7, upper=False)
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("kept", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("C", [1, 3, 10])
@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_of_linear_layers_is_close_to_torch(size: int, C: int, dtype, kept) -> None:
    pytest.importorskip("triton")
    own, other = (
        LinearFactors(random_matrix(r, 33, seed=r).to(CUDA, kept), random_matrix(r, C, 17, seed=r + 1).to(CUDA, kept))
        for r in (size, 65)
    )
    for met, upper in ((other, False), (own, True)):
        expected = choice.by_torch(own, met, (0.7, 0.3))
        found = torch.zeros_like(expected)
        outer_gram(found, own, met, (0.7, 0.3), dtype, upper)
        error = (found - expected) / expected.abs().max()
        assert float((error.triu() if upper else error).abs().max()) <= choice.CHECK_WITHIN[dtype]


@pytest.mark.parametrize("by", Arithmetic)
@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("kind", [dense, linear])
def test_blocks_by_the_kernels(kind, C: int, by: Arithmetic, triton_chosen: choice.KernelChoice) -> None:
    block = on(kind(201, C, 1), CUDA)
    found = gram(block, block, by)
    assert all(triton_chosen.passed.values())
    assert triton_chosen.name == "triton"
    choice.choose("torch")
    expected = gram(block, block, by)
    if by.digits:
        assert torch.equal(found, expected)
    else:
        assert float((found - expected).abs().max() / expected.abs().max()) <= choice.CHECK_WITHIN[by.dtype]


def test_the_same_bits_again(triton_chosen: choice.KernelChoice) -> None:
    block = on(linear(500, 3, 1), CUDA)
    assert torch.equal(gram(block, block, Arithmetic.FLOAT64), gram(block, replace(block), Arithmetic.FLOAT64).triu())
