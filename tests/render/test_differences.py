"""Differences of sets of test rows in words."""

from __future__ import annotations

import dataclasses

import pytest
from results.made_results import result, row

from sublaplace_cli.render.differences import LINE_WIDTH, MOST_METHODS, difference_lines
from sublaplace_cli.results.differences import Difference
from sublaplace_cli.results.result import References


def made(methods: list[str], paired: bool = True, **values: float):
    """Rows of the sets `a` and `b`, the second one larger by 1 in every metric, and `map` beside them."""

    def block(name: str, more: float) -> list:
        numbers = {key: value + more for key, value in values.items()}
        return [dataclasses.replace(row(method, **numbers), set=name) for method in methods]

    network = [dataclasses.replace(row("map", None, nll=3.0 + i), set=name) for i, name in enumerate("ab")]
    changes = [
        Difference("b", "a", method, k, "nll", 1.0, 0.25, paired)
        for method, k in [*((m, 5) for m in methods), ("map", None)]
    ]
    found = result(*block("a", 0.0), *block("b", 1.0), details={"differences": [dict(vars(own)) for own in changes]})
    return dataclasses.replace(found, references=References(None, tuple(network)))


def test_the_first_methods_and_the_network_alone():
    methods = [f"names:{letter}" for letter in "pqrst"]
    lines = difference_lines(made(methods, nll=2.0, rmse=1.0))
    assert lines[0] == "b − a, the same rows:"
    assert lines[1] == "  names:p (k = 5): nll +1 ± 0.25, rmse +1"
    assert [line.partition(": ")[0] for line in lines[1:]] == [
        *(f"  {method} (k = 5)" for method in methods[:MOST_METHODS]),
        "  map",
    ]
    assert difference_lines(made(["gradient"], paired=False, nll=2.0))[0] == "b − a, other rows:"


@pytest.mark.parametrize("length", [1, 30, 200])
def test_a_long_name_leaves_room_for_one_number(length):
    values = dict.fromkeys(("nll", "coverage95_total", "rmse", "crps", "w2_relative", "rank"), 1.0)
    (_, line, _) = difference_lines(made(["names:" + "x" * length], **values))
    assert "nll +1 ± 0.25" in line
    assert len(line) <= LINE_WIDTH or line.endswith("0.25")


def test_one_set_has_none():
    assert difference_lines(result(row(nll=1.0))) == []
