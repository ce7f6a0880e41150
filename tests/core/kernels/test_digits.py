"""Rows as 8-bit digits: exact sums, an error within the bound, the same bits however the rows are cut."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from core.problems import random_matrix
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sublaplace_cli.core.kernels import digits, integers
from sublaplace_cli.core.kernels.arithmetic import Arithmetic, add_row_products, digit_products
from sublaplace_cli.core.kernels.digits import BITS, LARGEST_EXPONENT, PANEL, DigitRows, Digits, error_bound
from sublaplace_cli.core.kernels.integers import by_floats, by_integers, integer_products

SIZES = (1, 15, 16, 17, 63, 64, 65, 201)
SPLITS = (4, 5)


def exact(x: Tensor, y: Tensor) -> Fraction:
    """x·y without rounding."""
    return sum((Fraction(a) * Fraction(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)), Fraction(0))


def split_products(X: Tensor, Y: Tensor, s: int) -> Tensor:
    return digit_products(DigitRows.of(X, s), DigitRows.of(Y, s))


def wide_rows(r: int, n: int, seed: int, dtype: torch.dtype, spread: float) -> Tensor:
    """Signs at random, sizes from 1 down to 10^−spread, row by row at another scale."""
    size = 10 ** (-spread * random_matrix(r, n, seed=seed).abs().clamp(max=1))
    scale = 10 ** (3 * random_matrix(r, 1, seed=seed + 1))
    return (size * random_matrix(r, n, seed=seed + 2).sign() * scale).to(dtype)


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 90),
    panel=st.sampled_from([16, 37, PANEL]),
    seed=st.integers(0, 10**6),
    s=st.sampled_from(SPLITS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    spread=st.sampled_from([0.0, 2.0, 12.0]),
    worst=st.booleans(),
)
def test_the_error_is_within_the_bound(n, panel, seed, s, dtype, spread, worst):
    x, y = (wide_rows(1, n, seed + i, dtype, spread)[0] for i in (0, 10))
    if worst:  # all of one sign, just above a power of two and between two units: nothing cancels
        x, y = (torch.full((n,), 1 + 2.0**-20 + 2.0 ** (-BITS * s) * k, dtype=dtype) for k in (1, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "PANEL", panel)
        found = split_products(x[None], y[None], s).item()
        bound = error_bound(x, y, s)
    assert abs(Fraction(found) - exact(x, y)) <= Fraction(bound)
    largest = float(x.abs().max().double() * y.abs().max().double())
    assert bound <= n * largest * (17 * (0.5 + s / 4) * 2.0 ** (-BITS * s) + 1e-14), "a bound that says nothing"


@pytest.mark.parametrize("s", SPLITS)
def test_a_digit_less_is_outside_the_bound(s):
    """The bound is of that many digits: one fewer breaks it."""
    x, y = random_matrix(1, 300, seed=1), random_matrix(1, 300, seed=2)
    errors = {t: abs(Fraction(split_products(x, y, t).item()) - exact(x[0], y[0])) for t in (s - 1, s)}
    assert errors[s] <= error_bound(x[0], y[0], s) < errors[s - 1] * 100
    assert errors[s - 1] > 30 * errors[s]


@pytest.mark.parametrize("s", SPLITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_are_the_value_to_half_a_unit(s, dtype):
    X = wide_rows(20, 200, 3, dtype, 9.0)
    X[0], X[1, :3], X[2] = 0.0, torch.tensor([1.0, -1.0, 0.5]), -1.0 + 2.0**-20
    found = Digits.of(X, s)
    places = 2.0 ** (-BITS * torch.arange(1, s + 1, dtype=torch.float64))
    value = (found.values.double() * places[:, None]).sum(1)[:, : X.shape[1]] * found.scale[:, None]
    assert bool(((value - X.double()).abs() <= found.scale[:, None] * 2.0 ** (-BITS * s - 1)).all())
    largest = X.double().abs().amax(1)
    assert bool((found.scale[1:] < 4.04 * largest[1:]).all())
    assert bool((largest <= found.scale * 127 / 256).all())


def test_float32_numbers_of_like_size_have_exact_digits():
    """24 bits each, within the 40 of five digits."""
    X = (1 + random_matrix(6, 100, seed=5).abs().clamp(max=100)).float()
    scaled = DigitRows.of(X, 5).panels[0]
    places = 2.0 ** (-BITS * torch.arange(1, 6, dtype=torch.float64))
    assert torch.equal((scaled.values.double() * places[:, None]).sum(1)[:, :100] * scaled.scale[:, None], X.double())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("columns", SIZES)
def test_products_of_integers_are_exact(size, columns):
    generator = torch.Generator().manual_seed(size)
    A, B = (torch.randint(-128, 128, (r, columns), dtype=torch.int8, generator=generator) for r in (size, 33))
    A[0], B[0] = -128, -128
    expected = A.long() @ B.long().T
    for multiply in (by_integers, by_floats, integer_products):
        assert torch.equal(multiply(A, B).long(), expected)
    wide = torch.randint(-128, 128, (size, 3 * columns), dtype=torch.int8, generator=generator)  # rows with gaps
    assert torch.equal(
        integer_products(wide[:, columns : 2 * columns], B).long(), wide.long()[:, columns : 2 * columns] @ B.long().T
    )


def test_padding_for_a_gpu_changes_nothing(monkeypatch):
    """The rules of a GPU's integer products, applied to whatever they are called with."""

    real, seen = torch._int_mm, []

    def strict(A, B):
        assert A.shape[0] > 16
        assert A.shape[1] % 8 == B.shape[1] % 8 == 0
        seen.append(A.shape)
        return real(A, B)

    monkeypatch.setattr(torch, "_int_mm", strict)
    monkeypatch.setattr(integers, "takes_any_rows", lambda device: False)
    for rows, others, columns in [(1, 1, 1), (16, 7, 16), (17, 8, 9), (40, 33, 63), (5, 64, 64)]:
        A, B = (torch.randint(-128, 128, (r, columns), dtype=torch.int8) for r in (rows, others))
        assert torch.equal(by_integers(A, B).long(), A.long() @ B.long().T)
    assert len(seen) == 5


@pytest.mark.parametrize("s", SPLITS)
def test_the_largest_sums_stay_exact(s):
    """Every digit −128 over a whole panel: the last level is the largest sum of all."""
    rows = Digits(torch.full((2, s, PANEL), -128, dtype=torch.int8), torch.ones(2, dtype=torch.float64))
    level = PANEL * 2**14
    expected = sum(Fraction(level * i, 256 ** (i + 1)) for i in range(1, s + 1))
    assert s * level < 2**31
    assert Fraction(rows.products(rows)[0, 1].item()) == expected


@pytest.mark.parametrize("s", SPLITS)
def test_both_ways_of_multiplying_give_the_same_bits(s, monkeypatch):
    X, Y = wide_rows(37, 3000, 1, torch.float32, 4.0), wide_rows(21, 3000, 9, torch.float64, 4.0)
    found = []
    for multiply in (by_integers, by_floats):
        monkeypatch.setattr(integers, "_fastest", lambda device, multiply=multiply: multiply)
        found.append(split_products(X, Y, s))
    assert torch.equal(*found)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 40), n=st.integers(1, 70), cut=st.integers(0, 40), seed=st.integers(0, 10**6))
def test_products_are_symmetric_and_do_not_depend_on_the_cut(rows, n, cut, seed):
    X = wide_rows(rows, n, seed, torch.float64, 6.0)
    whole = split_products(X, X, 4)
    assert torch.equal(whole, whole.T)
    cut = min(cut, rows)
    parts = [split_products(part, X, 4) for part in (X[:cut], X[cut:]) if len(part)]
    assert torch.equal(torch.cat(parts), whole)


def test_what_is_not_finite_is_not_hidden():
    X = random_matrix(5, 40, seed=0)
    X[1, 3], X[2, 39], X[3, 0] = torch.inf, torch.nan, 2.0**LARGEST_EXPONENT
    found = split_products(X, X, 4)
    assert bool(found[1:4].isnan().all() & found[:, 1:4].isnan().all())
    assert bool(found[0, [0, 4]].isfinite().all())


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-120, 1e-30, 1e140, 1e-320])
def test_very_small_and_large_rows(scale):
    X = random_matrix(6, 50, seed=3)
    found, expected = split_products(X * scale, X * scale, 5), (X * scale) @ (X * scale).T
    largest = (X * scale).square().sum(1).max()
    assert bool(((found - expected).abs() <= 1e-10 * largest + 1e-290).all())


def test_rows_without_columns_and_without_rows():
    assert torch.equal(split_products(torch.zeros(3, 0), torch.zeros(2, 0), 4), torch.zeros(3, 2, dtype=torch.float64))
    assert split_products(torch.zeros(0, 5), torch.zeros(2, 5), 4).shape == (0, 2)


def worst_bound(X: Tensor, Y: Tensor, s: int) -> float:
    return max(error_bound(x, y, s) for x in X for y in Y)


@pytest.mark.parametrize("by", Arithmetic)
def test_products_are_added(by):
    X, Y = random_matrix(7, 130, seed=1), random_matrix(5, 130, seed=2)
    total = random_matrix(7, 5, seed=3)
    expected = total + 0.3 * X @ Y.T
    add_row_products(total, by.rows(X), by.rows(Y), 0.3)
    most = {Arithmetic.FLOAT64: 1e-14, Arithmetic.FLOAT32: 1e-5}.get(by) or worst_bound(X, Y, by.digits)
    assert float((total - expected).abs().max()) <= most < 1e-4
    with pytest.raises(TypeError, match="two kinds"):
        add_row_products(total, by.rows(X), Arithmetic.SPLIT_4.rows(Y) if not by.digits else Y)


def test_arithmetic_by_name():
    assert [Arithmetic.named(name) for name in ("float64", "float32", "split")] == [0, 1, 4]
    assert Arithmetic.SPLIT_4.finer is Arithmetic.SPLIT_5
    assert [by.finer for by in (Arithmetic.FLOAT64, Arithmetic.FLOAT32, Arithmetic.SPLIT_5)] == [None] * 3
    assert [by.products for by in Arithmetic] == [
        "float64 products",
        "float32 products",
        "products of 4 digits",
        "products of 5 digits",
    ]
