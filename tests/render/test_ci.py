"""JUnit and GitHub annotations, read back."""

from __future__ import annotations

import dataclasses
import re

import pytest
from junitparser import Error, Failure, JUnitXml
from render.made_gate import judged
from results.made_results import row

from sublaplace_cli.catalog import FORMATS, load
from sublaplace_cli.render.ci import github_summary
from sublaplace_cli.render.text import markdown
from sublaplace_cli.results.gate import Check, Gate


@pytest.fixture
def found():
    return judged()


def text(name, result):
    return load(FORMATS[name])(result)


def test_junit(found):
    (suite,) = JUnitXml.fromstring(text("junit", found).encode())
    cases = list(suite)
    assert (suite.tests, suite.failures, suite.errors) == (4, 1, 1)
    assert [[type(outcome) for outcome in case.result] for case in cases] == [[], [Failure], [Error], []]
    assert cases[1].result[0].message == (
        "gradient (k = 5): w2 = 0.125, limit max 0.1; broken by more than the standard error of 0.01"
    )
    assert "the test rows have no targets" in cases[2].result[0].message
    assert cases[2].classname.startswith("names:a|b<&%\"'")
    assert len({(case.classname, case.name) for case in cases[:3]}) == 2


def test_junit_without_a_gate_has_no_case(found):
    (suite,) = JUnitXml.fromstring(text("junit", dataclasses.replace(found, gate=None)).encode())
    assert suite.tests == len(list(suite)) == 0


def test_github_annotations(found):
    lines = text("github", found).splitlines()
    parsed = [re.fullmatch(r"::(error|warning|notice) title=([^:,]*)::(.*)", line).groups() for line in lines]
    assert [kind for kind, _, _ in parsed] == ["error", "warning", "warning", "notice"]
    assert parsed[0][1] == "sublaplace%3A w2 failed"
    assert "%25" in parsed[1][2]
    assert "%0A" in parsed[1][2]
    assert parsed[-1][2].startswith("gate: 2 of 4 limits hold (rows: gradient (k = 5), names:a|b")
    assert text("github", dataclasses.replace(found, gate=None)).startswith(
        "::notice title=sublaplace::regression: 3 training rows"
    )


def test_checks_of_the_runs_of_a_sweep_have_their_own_names(found):
    runs = [dataclasses.replace(row(w2=1.0), checkpoint="a.pt", seed=seed) for seed in (0, 1)]
    gate = Gate(tuple(Check(run, "w2", "max 2", True) for run in runs))
    (suite,) = JUnitXml.fromstring(text("junit", dataclasses.replace(found, gate=gate)).encode())
    assert [case.classname for case in suite] == ["a.pt: gradient (k = 5)", "a.pt, seed 1: gradient (k = 5)"]


def test_limits_that_hold_have_one_notice(found):
    gate = Gate(tuple(Check(row(w2=1.0), "w2", "max 2", True) for _ in range(20)))
    assert text("github", dataclasses.replace(found, gate=gate)) == (
        "::notice title=sublaplace::gate: 20 of 20 limits hold (rows: gradient (k = 5))"
    )


def test_the_summary_page_is_markdown(found):
    assert github_summary(found) == f"### sublaplace\n\n{markdown(found)}\n\n"


def test_annotations_of_hostile_names_stay_one_line_each(found):
    odd = row("names:a\r\n::error::b\x1b[2J\u2028::warning::c", w2=1.0)
    gate = Gate((Check(odd, "w2", "max 0.1", False),))
    shown = text("github", dataclasses.replace(found, gate=gate))
    first, last = shown.splitlines()
    assert first.startswith(
        "::error title=sublaplace%3A w2 failed::names:a%0D%0A::error::b\\x1b[2J\\u2028::warning::c ("
    )
    assert last.startswith("::notice title=sublaplace::gate: 0 of 1 limits hold (rows: names:a%0D%0A::error::b\\x1b[2J")
