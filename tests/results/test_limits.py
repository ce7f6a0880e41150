"""Limits as they are typed."""

from __future__ import annotations

import pytest

from sublaplace_cli.errors import UserError
from sublaplace_cli.results.limits import Limit, parse_fail_if, parse_limits, parse_max_regression


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("w3 > 1", "unknown metric 'w3'"),
        ("w2 = 1", "is not a limit"),
        ("w2 == 1", "is not a limit"),
        ("w2", "is not a limit"),
        ("", "is not a limit"),
        *((f"w2 > {word}", "is not a finite number") for word in ("nan", "inf", "-inf", "1e999", "x", "0x1", "1_0")),
    ],
)
def test_limits_that_are_none(text, words):
    with pytest.raises(UserError, match=words):
        parse_fail_if(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("w2", "is not METRIC=AMOUNT"),
        ("w2=", "expected a finite number"),
        ("w2=nan", "expected a finite number"),
        ("w2=inf%", "expected a finite number"),
        ("w2=-1", "expected a finite number"),
        ("w3=1", "unknown metric 'w3'"),
        ("mean_std=1", "no better direction"),
    ],
)
def test_regressions_that_are_none(text, words):
    with pytest.raises(UserError, match=words):
        parse_max_regression(text)


@pytest.mark.parametrize(
    ("text", "row", "metric"),
    [
        ("full: ece > 0.1", "full", "ece"),
        ("map:nll > 0.1", "map", "nll"),
        (" gradient (k = 200) : w2 > 0.1", "gradient (k = 200)", "w2"),
        ("constant, calibrated: nll > 0.1", "constant, calibrated", "nll"),
        ("names:layer3.*: w2 > 0.1", "names:layer3.*", "w2"),
        ("own.code:pick: w2 > 0.1", "own.code:pick", "w2"),
        ("w2 > 0.1", None, "w2"),
    ],
)
def test_a_limit_may_name_its_row(text, row, metric):
    assert parse_fail_if(text) == Limit(metric, "max", 0.1, row=row)
    assert parse_max_regression(text.replace(" > 0.1", "=5%")) == Limit(metric, "max_regression", 0.05, True, row)


@pytest.mark.parametrize(
    ("place", "set_name", "row"),
    [
        ("shifted/full", "shifted", "full"),
        ("shifted/*", "shifted", None),
        (" b_2/gradient (k = 200) ", "b_2", "gradient (k = 200)"),
        ("b/names:layer/3.[a/b]*", "b", "names:layer/3.[a/b]*"),
        ("names:layer/3.[a/b]*", None, "names:layer/3.[a/b]*"),
        ("b/own.code:pick", "b", "own.code:pick"),
    ],
)
def test_a_limit_may_name_its_set(place, set_name, row):
    assert parse_fail_if(f"{place}: nll > 0.1") == Limit("nll", "max", 0.1, row=row, set=set_name)
    expected = Limit("nll", "max_regression", 0.05, True, row, set_name)
    assert parse_max_regression(f"{place}: nll=5%") == expected


@pytest.mark.parametrize("place", ["shifted/", "/full", "2b/full", "shifted/ful", "*", "a/b/full"])
def test_places_that_no_row_can_have(place):
    with pytest.raises(UserError, match="unknown row"):
        parse_fail_if(f"{place}: nll > 0.1")


@pytest.mark.parametrize("text", ["ful: w2 > 1", ": w2 > 1", "w2: w2 > 1", "full (k = 2: w2 > 1"])
def test_rows_that_no_result_can_have(text):
    with pytest.raises(UserError, match="unknown row") as error:
        parse_fail_if(text)
    assert "available: constant" in error.value.hint or "did you mean 'full'" in error.value.hint


def test_limits_of_a_command_line_in_their_order():
    limits = parse_limits(["w2 > 0.1", "nll >= 2"], ["crps=5%"])
    assert [(limit.metric, limit.text) for limit in limits] == [
        ("w2", "max 0.1"),
        ("nll", "below 2"),
        ("crps", "max_regression 5%"),
    ]
