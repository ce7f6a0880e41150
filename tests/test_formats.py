"""Every format, read back by a reader of its own."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from junitparser import Error, Failure, JUnitXml

from sublaplace_cli.catalog import FORMATS, SUFFIXES, load

ROW = {
    "method": "gradient",
    "k": 5,
    "w2": 0.125,
    "w2_se": 0.5,
    "nll": 1 / 3,
    "accuracy": None,
    "why": {"accuracy": "no"},
}
ODD = "names:a|b<&%\"'\n\x07"


def check(passed, metric="w2", **more):
    return {
        "metric": metric,
        "method": "gradient",
        "k": 5,
        "value": 0.125,
        "limit": "max 0.1",
        "passed": passed,
        **more,
    }


@pytest.fixture
def result():
    rows = [ROW, {**ROW, "method": ODD, "k": None, "w2": None}]
    checks = [
        check(True),
        check(False, standard_error=0.01, within_error=False),
        check(None, value=None, why="the test rows have no targets", method=ODD, k=None),
        check(True, standard_error=0.2, within_error=True, baseline=0.1, change=0.025),
    ]
    head = {"schema": 1, "task": "regression", "n_train": 3, "n_test": 2, "n_params": 9, "noise_variance": 0.5}
    return {
        **head,
        "prior_precision": 1.0,
        "rows": rows,
        "full": {**ROW, "method": "full", "k": 9},
        "gate": {"passed": False, "checks": checks},
    }


def text(name, result):
    return load(FORMATS[name])(result)


def test_json(result):
    assert json.loads(text("json", result)) == result


def test_jsonl(result):
    lines = [json.loads(line) for line in text("jsonl", result).splitlines()]
    assert lines == [*result["rows"], result["full"]]


@pytest.mark.parametrize(("name", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_csv_and_tsv(result, name, delimiter):
    rows = list(csv.DictReader(io.StringIO(text(name, result), newline=""), delimiter=delimiter))
    assert [row["method"] for row in rows] == ["gradient", ODD, "full"]
    assert float(rows[0]["nll"]) == 1 / 3
    assert rows[1]["w2"] == rows[0]["accuracy"] == ""


def test_junit(result):
    (suite,) = JUnitXml.fromstring(text("junit", result).encode())
    cases = list(suite)
    assert (suite.tests, suite.failures, suite.errors) == (4, 1, 1)
    assert [[type(outcome) for outcome in case.result] for case in cases] == [[], [Failure], [Error], []]
    assert cases[1].result[0].message == (
        "gradient (k = 5): w2 = 0.125, limit max 0.1; broken by more than the standard error of 0.01"
    )
    assert "the test rows have no targets" in cases[2].result[0].message
    assert cases[2].classname.startswith("names:a|b<&%\"'")
    assert len({(case.classname, case.name) for case in cases[:3]}) == 2


def test_junit_without_a_gate_has_no_case(result):
    (suite,) = JUnitXml.fromstring(text("junit", {**result, "gate": None}).encode())
    assert suite.tests == len(list(suite)) == 0


def test_github_annotations(result):
    lines = text("github", result).splitlines()
    parsed = [re.fullmatch(r"::(error|warning|notice) title=([^:,]*)::(.*)", line).groups() for line in lines]
    assert [kind for kind, _, _ in parsed] == ["error", "warning", "warning", "notice"]
    assert parsed[0][1] == "sublaplace%3A w2 failed"
    assert "%25" in parsed[1][2]
    assert "%0A" in parsed[1][2]
    assert parsed[-1][2] == "gate: 2 of 4 limits hold"
    assert text("github", {**result, "gate": None}).startswith("::notice title=sublaplace::regression: 3 training rows")


def test_markdown(result):
    lines = text("markdown", result).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 3
    assert "\\|" in table[3], "a bar in a name must not end its cell"
    assert lines[-1] == "* gate: 2 of 4 limits hold"


def test_table(result):
    shown = text("table", result)
    assert "failed: gradient (k = 5): w2 = 0.125, limit max 0.1" in shown
    assert shown.rstrip().endswith("gate: 2 of 4 limits hold")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_takes_a_result_without_rows(name):
    assert text(name, {"schema": 1, "n_params": 5, "artifacts": {"a": "b"}, "seconds": {}}).strip()


def test_every_suffix_has_its_format():
    assert set(SUFFIXES.values()) <= set(FORMATS)
