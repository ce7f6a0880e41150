"""Limits as they are typed."""

from __future__ import annotations

import pytest

from sublaplace_cli.errors import UserError
from sublaplace_cli.results.limits import parse_fail_if, parse_limits, parse_max_regression


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


def test_limits_of_a_command_line_in_their_order():
    limits = parse_limits(["w2 > 0.1", "nll >= 2"], ["crps=5%"])
    assert [(limit.metric, limit.text) for limit in limits] == [
        ("w2", "max 0.1"),
        ("nll", "below 2"),
        ("crps", "max_regression 5%"),
    ]
