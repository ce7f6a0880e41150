"""Twelve significant digits decide; what is equal to that many goes to the lower index."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sublaplace_cli.core.selectors import largest, rounded, smallest

quick = settings(max_examples=400, deadline=None, derandomize=True, database=None)
positive = st.floats(min_value=1e-280, max_value=1e300, allow_subnormal=False)


def one(x: float) -> float:
    return float(rounded(torch.tensor([x], dtype=torch.float64))[0])


def near_a_half(x: float) -> bool:
    """Whether digits 13 to 17 read 50000 up to the rounding of two float64 products: there either side is right."""
    mantissa = f"{x:.25e}".split("e")[0].replace(".", "").lstrip("-")
    return abs(int(mantissa[12:20]) / 1e8 - 0.5) < 2e-3


@quick
@given(positive)
def test_rounding_is_that_of_decimal_text(x):
    text = float(reference.significant([x])[0])
    found = one(x)
    if near_a_half(x):
        assert found == pytest.approx(x, rel=5.1e-12, abs=0)
    else:
        assert found == pytest.approx(text, rel=4e-16, abs=0)


@quick
@given(st.integers(10**11 + 1, 10**12 - 1), st.integers(-250, 250), st.floats(-0.49, 0.49), st.floats(-0.49, 0.49))
def test_values_with_the_same_twelve_digits_become_the_same_number(digits, exponent, a, b):
    """The bits must agree, not only the decimal value: they are compared with ==."""
    x, y = ((digits + shift) * 10.0**exponent for shift in (a, b))
    assert one(x) == one(y)


@quick
@given(st.integers(10**11, 10**12 - 1), st.integers(-250, 250))
def test_values_that_differ_in_the_twelfth_digit_stay_in_order(digits, exponent):
    assert one(digits * 10.0**exponent) < one((digits + 1) * 10.0**exponent)


@quick
@given(positive)
def test_the_sign_is_kept(x):
    assert one(-x) == -one(x)


@pytest.mark.parametrize("exponent", range(-200, 200, 7))
def test_both_sides_of_a_power_of_ten_meet(exponent):
    """9.999999999999 and 10.00000000000 are one number to twelve digits, whichever exponent it was found with."""
    power = 10.0**exponent
    around = [power * (1 + shift) for shift in (-1e-15, -1e-13, 0.0, 1e-13, 1e-15)]
    assert len({one(x) for x in around}) == 1
    assert one(power * (1 - 1e-11)) < one(power) < one(power * (1 + 1e-11))


@pytest.mark.parametrize("x", [0.0, -0.0])
def test_zero_stays_zero(x):
    assert one(x) == 0.0


@quick
@given(st.floats(1e-3, 1e3))
def test_the_thirteenth_digit_does_not_decide_and_the_eleventh_does(x):
    x = float(f"{x:.9e}")  # ten digits, so that the changes below reach just one further digit
    unit = 10.0 ** math.floor(math.log10(x))
    same = torch.tensor([x, x + 2e-12 * unit], dtype=torch.float64)
    other = torch.tensor([x, x + 2e-10 * unit], dtype=torch.float64)
    assert largest(same, 2).tolist() == smallest(same, 2).tolist() == [0, 1]
    assert largest(other, 2).tolist() == [1, 0]
    assert smallest(other, 2).tolist() == [0, 1]


def test_ties_go_to_the_lower_index_in_both_orders():
    values = torch.tensor([1.0, 3.0, 2.0, 3.0, 1.0, 2.0], dtype=torch.float64)
    assert largest(values, 6).tolist() == [1, 3, 2, 5, 0, 4]
    assert smallest(values, 6).tolist() == [0, 4, 2, 5, 1, 3]


def test_float32_values_are_widened_before_they_are_rounded():
    x = torch.tensor([0.1], dtype=torch.float32)
    assert rounded(x).dtype == torch.float64
    assert float(rounded(x)) == pytest.approx(float(reference.significant(x.double())[0]), rel=4e-16, abs=0)
