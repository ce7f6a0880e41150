"""Which code adds up products: torch unless triton is asked for, there is a GPU, and its numbers are those of torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from core.problems import random_matrix, solved
from torch import Tensor

from sublaplace_cli.core.jacobian import linear
from sublaplace_cli.core.jacobian.linear import LinearBlock
from sublaplace_cli.core.kernels import arithmetic, choice
from sublaplace_cli.core.kernels.arithmetic import Arithmetic
from sublaplace_cli.core.kernels.digits import Digits
from sublaplace_cli.core.kernels.launch import LinearFactors

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_chosen", choice.KernelChoice())


def factors(rows: int, C: int, seed: int) -> LinearFactors:
    return LinearFactors(random_matrix(rows, 9, seed=seed), random_matrix(rows, C, 7, seed=seed + 1))


def as_torch(found: Tensor, own: LinearFactors, other: LinearFactors, numbers, dtype, upper: bool) -> None:
    """Stands for the kernel: what it must do, and nothing below the diagonal."""
    added = choice.by_torch(own, other, numbers)
    found += added.triu() if upper else added


def digits_as_torch(found: Tensor, own: Digits, other: Digits, factor: float, upper: bool) -> None:
    added = own.products(other).mul_(factor)
    found += added.triu() if upper else added


@pytest.mark.parametrize(("name", "device"), [("auto", "cuda"), ("torch", "cuda"), ("triton", "cpu")])
def test_no_kernel_without_being_asked_or_without_a_gpu(name: str, device: str) -> None:
    chosen = choice.choose(name, pytest.fail)
    assert not chosen.usable(pytest.fail, torch.device(device))


def test_a_check_is_made_once_per_device_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "on_gpu", lambda device: True)
    checked: list[tuple] = []
    chosen = choice.choose("triton", pytest.fail)

    def check(*settings) -> None:
        checked.append(settings)

    for settings in [(4,), (4,), (5,), (4,)]:
        assert chosen.usable(check, CPU, *settings)
    assert checked == [(CPU, 4), (CPU, 5)]


@pytest.mark.parametrize("error", [ArithmeticError("off by 1"), ImportError("No module named 'triton'"), KeyError()])
def test_whatever_goes_wrong_is_said_once_and_torch_does_it(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "on_gpu", lambda device: True)
    said: list[str] = []
    chosen = choice.choose("triton", said.append)

    def check(*settings) -> None:
        raise error

    assert not any(chosen.usable(check, CPU, number) for number in (4, 4, 5))
    reason = str(error) or "KeyError"
    assert said == [f"the Triton kernels are not used on cpu, but torch: {reason}"]


def test_a_lack_of_memory_is_no_reason_to_use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "on_gpu", lambda device: True)

    def check(*settings) -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        choice.choose("triton", pytest.fail).usable(check, CPU)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kept", [torch.float32, torch.float64])
def test_the_check_of_linear_layers_sees_what_is_wrong(kept, several, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "outer_gram", as_torch)
    choice.check_outer_gram(CPU, torch.float64, kept, several)

    def a_little_off(found: Tensor, *rest) -> None:
        as_torch(found, *rest)
        found[-1, -1] *= 1 + 1e-10

    def one_forgotten(found: Tensor, *rest) -> None:
        as_torch(found, *rest)
        found[0, -1] = 0

    for wrong in (a_little_off, one_forgotten, lambda found, *rest: found.fill_(torch.nan)):
        monkeypatch.setattr(choice, "outer_gram", wrong)
        with pytest.raises(ArithmeticError, match="is off by"):
            choice.check_outer_gram(CPU, torch.float64, kept, several)


@pytest.mark.parametrize("digits", [4, 5])
def test_the_check_of_digits_wants_the_same_bits(digits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "level_gram", digits_as_torch)
    choice.check_level_gram(CPU, digits)

    def one_bit(found: Tensor, *rest) -> None:
        digits_as_torch(found, *rest)
        found[0, -1] = torch.nextafter(found[0, -1], torch.tensor(torch.inf, dtype=torch.float64))

    monkeypatch.setattr(choice, "level_gram", one_bit)
    with pytest.raises(ArithmeticError, match="not exact"):
        choice.check_level_gram(CPU, digits)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("strips", [None, [(0, 4), (4, 7), (9, 12)]])
def test_rows_of_a_linear_layer_by_the_kernel(strips, C: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[tuple[int, ...]] = []

    def counted(found: Tensor, *rest) -> None:
        launches.append(tuple(found.shape))
        as_torch(found, *rest)

    block, other = (
        LinearBlock(0, random_matrix(rows, 1, 20, seed=rows), random_matrix(rows, C, 1, 15, seed=rows + 1), bias)
        for rows in (12, 5)
    )
    v = torch.full((block.width,), 0.7, dtype=torch.float64)
    expected = gram_of(block, block, v, strips), gram_of(block, other, v, strips)
    monkeypatch.setattr(linear, "takes_factors", lambda *settings: True)
    monkeypatch.setattr(linear, "outer_gram", counted)
    found = gram_of(block, block, v, strips), gram_of(block, other, v, strips)
    torch.testing.assert_close(found[0].triu(), expected[0].triu(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-13, atol=1e-13)
    runs = [(0, 12)] if strips is None else [(0, 7), (9, 12)]
    assert launches == [((b - a) * C, (12 - a) * C) for a, b in runs] + [((b - a) * C, 5 * C) for a, b in runs]


def gram_of(block: LinearBlock, other: LinearBlock, v: Tensor, strips=None) -> Tensor:
    total = torch.zeros(block.n_rows * block.n_outputs, other.n_rows * other.n_outputs, dtype=torch.float64)
    block.add_gram(other, v, total, strips)
    return total


def test_digits_by_the_kernel_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole Gram matrix of a network, with one launch for all strips of a block."""
    problem = solved("mlp-3-outputs", "unequal")
    precision = replace(problem.precision, gram_dtype=Arithmetic.SPLIT_4)
    expected = precision.gram(), precision.cross_gram(problem.test)
    monkeypatch.setattr(arithmetic, "takes_digits", lambda *settings: True)
    monkeypatch.setattr("sublaplace_cli.core.panels.products.takes_digits", lambda *settings: True)
    monkeypatch.setattr(arithmetic, "level_gram", digits_as_torch)
    assert torch.equal(precision.gram(), expected[0])
    assert torch.equal(precision.cross_gram(problem.test), expected[1])
