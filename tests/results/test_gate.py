"""The gate on results made by hand: which way is better, what cannot be judged, and what an error excuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from results.made_results import result, row

from sublaplace_cli.errors import UserError
from sublaplace_cli.results.baseline import Baseline, Change, load_baseline
from sublaplace_cli.results.gate import Check, Gate, exit_code, judge
from sublaplace_cli.results.limits import Limit, parse_fail_if, parse_limits, parse_max_regression
from sublaplace_cli.results.result import Listing, Result, Row
from sublaplace_cli.results.sweep import combine


def saved(folder: Path, *rows: Row, **made_from: Any) -> Baseline:
    path = folder / "baseline.json"
    path.write_text(json.dumps(result(*rows, **made_from).as_dict()))
    return load_baseline(path)


def outcome(found: Result, limits: list[Limit], baseline: Baseline | None = None, significant: bool = False) -> tuple:
    judged = judge(found, limits, baseline, significant)
    return exit_code(judged), [] if judged.gate is None else [check.passed for check in judged.gate.checks]


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        *(("w2 > 0.1", value, holds) for value, holds in ((0.05, True), (0.1, True), (0.11, False))),
        *(("w2 >= 0.1", value, holds) for value, holds in ((0.05, True), (0.1, False), (0.11, False))),
        *(("nll < -1e0", value, holds) for value, holds in ((-1.5, False), (-1.0, True), (0.0, True))),
        *(("nll<=-1", value, holds) for value, holds in ((-1.5, False), (-1.0, False), (0.0, True))),
    ],
)
def test_what_must_not_be(text, value, holds):
    limit = parse_fail_if(text)
    assert outcome(result(row(**{limit.metric: value})), [limit]) == (0 if holds else 1, [holds])


def test_every_row_and_every_limit():
    rows = [row(w2=0.1, nll=1.0), row(w2=0.3, nll=1.0, k=9)]
    limits = [parse_fail_if("w2 > 0.2"), parse_fail_if("nll > 2")]
    assert outcome(result(*rows), limits) == (1, [True, False, True, True])


def test_no_limit_is_no_gate():
    found = result(row(w2=9.0))
    assert judge(found, [], None, False) is found
    assert found.gate is None
    assert exit_code(found) == exit_code(Listing({})) == 0


def test_null_is_not_judged_and_a_broken_limit_wins():
    found = result(row(w2=0.5, accuracy=None, why={"accuracy": "a metric of classification"}))
    accuracy, w2 = parse_fail_if("accuracy < 0.9"), parse_fail_if("w2 > 0.1")
    assert outcome(found, [accuracy]) == (4, [None])
    assert outcome(found, [accuracy, w2]) == (1, [None, False])
    gate = judge(found, [accuracy], None, False).gate
    assert gate.passed is None
    assert gate.checks[0].verdict == "not judged"
    assert gate.checks[0].description.endswith("a metric of classification")


@pytest.mark.parametrize(
    ("amount", "now", "code"),
    [("0.02", 0.119, 0), ("0.02", 0.121, 1), ("5%", 0.104, 0), ("5%", 0.106, 1), ("0", 0.1, 0), ("0", 0.05, 0)],
)
def test_a_regression_against_a_baseline(tmp_path, amount, now, code):
    limit = parse_max_regression(f"w2={amount}")
    assert outcome(result(row(w2=now)), [limit], saved(tmp_path, row(w2=0.1)))[0] == code


@pytest.mark.parametrize(
    ("made_from", "words"),
    [
        ({"rows_sha256": "other"}, "other data"),
        ({"metrics": 0}, "metrics of version 0"),
        ({"rescale": "scale"}, "--rescale scale"),
    ],
)
def test_a_baseline_of_something_else_is_not_compared_with(tmp_path, made_from, words):
    baseline = saved(tmp_path, row(w2=0.1), **made_from)
    found = judge(result(row(w2=0.1)), [parse_max_regression("w2=5%")], baseline, False)
    assert exit_code(found) == 4
    assert words in found.gate.checks[0].why
    assert found.gate.changes == ()
    without_limits = judge(result(row(w2=0.1)), [], baseline, False)
    assert exit_code(without_limits) == 4, "a comparison that cannot be made is never a pass"
    assert words in without_limits.gate.checks[0].description


def test_a_sweep_is_not_compared_with_a_single_run(tmp_path):
    limit, label = parse_max_regression("w2=1"), ("a.pt", 0)
    sweep = combine([label], [result(row(w2=0.1))])
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(sweep.as_dict()))
    single, several = saved(tmp_path, row(w2=0.1)), load_baseline(path)
    assert outcome(sweep, [limit], several) == (0, [True])
    assert outcome(result(row(w2=0.1)), [limit], single) == (0, [True])
    assert outcome(sweep, [limit], single) == (4, [None])
    assert outcome(result(row(w2=0.1)), [limit], several) == (4, [None])


def test_brackets_are_compared_with_the_same_bracket(tmp_path):
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(result(row(w2_high=0.1), details={"bracket": {"rows": 50, "sets": 2}}).as_dict()))
    baseline, limit = load_baseline(path), parse_max_regression("w2_high=1")
    for rows, code in ((50, 0), (300, 4)):
        found = result(row(w2_high=0.1), details={"bracket": {"rows": rows, "sets": 2}})
        assert outcome(found, [limit], baseline)[0] == code


def test_means_over_different_k_are_found_by_all_of_them(tmp_path):
    path = tmp_path / "baseline.json"
    made = result().as_dict()
    path.write_text(json.dumps({**made, "rows": [{"method": "gradient", "k": None, "ks": [3, 4], "w2": 0.1}]}))
    baseline, limit = load_baseline(path), parse_max_regression("w2=1")
    assert outcome(result(row(w2=0.1, k=None, ks=(3, 4))), [limit], baseline)[0] == 0
    assert outcome(result(row(w2=0.1, k=None, ks=(3, 5))), [limit], baseline)[0] == 4
    assert outcome(result(row(w2=0.1, k=None)), [limit], baseline)[0] == 4


def test_an_oracle_matters_to_its_coverage_alone(tmp_path):
    baseline = saved(tmp_path, row(w2=0.1, coverage95=0.9), oracle_sha256="other")
    found = result(row(w2=0.1, coverage95=0.9))
    assert outcome(found, [parse_max_regression("w2=0")], baseline) == (0, [True])
    assert outcome(found, [parse_max_regression("coverage95=0")], baseline) == (4, [None])


@pytest.mark.parametrize("before", [row(k=6, w2=0.1), row("greedy", w2=0.1), row(w2=None), row()])
def test_a_baseline_without_the_row_or_the_number(tmp_path, before):
    assert outcome(result(row(w2=0.1)), [parse_max_regression("w2=5%")], saved(tmp_path, before)) == (4, [None])


def test_a_regression_without_a_baseline_is_not_judged():
    assert outcome(result(row(w2=0.1)), [parse_max_regression("w2=5%")]) == (4, [None])


def test_a_baseline_alone_reports_and_never_fails(tmp_path):
    found = judge(result(row(w2=9.0)), [], saved(tmp_path, row(w2=0.1)), False)
    assert exit_code(found) == 0
    (change,) = found.gate.changes
    assert (change.change, change.worse) == (pytest.approx(8.9), True)


def test_a_limit_on_one_set_of_test_rows():
    rows = [dataclasses.replace(row(nll=value), set=name) for name, value in (("a", 1.0), ("b", 2.0))]
    both, one, gone = (
        judge(result(*rows), parse_limits([text], []), None, False).gate.checks
        for text in ("nll > 1.5", "b/*: nll > 1.5", "c/*: nll > 1.5")
    )
    assert [(check.row.set, check.passed) for check in both] == [("a", True), ("b", False)]
    assert [check.as_dict()["set"] for check in one] == ["b"]
    assert one[0].description.startswith("b/gradient (k = 5): nll = 2, ")
    assert gone[0].passed is None
    assert gone[0].why == "there is no such row, only a/gradient (k = 5), b/gradient (k = 5)"


def test_a_baseline_has_a_row_for_each_set(tmp_path):
    rows = [dataclasses.replace(row(nll=value), set=name) for name, value in (("a", 1.0), ("b", 2.0))]
    before, limits = saved(tmp_path, *rows), parse_limits([], ["nll=0.5"])
    found = judge(result(*reversed(rows)), limits, before, False).gate
    assert [(check.row.set, check.change) for check in found.checks] == [("b", 0.0), ("a", 0.0)]
    assert [change["set"] for change in found.as_dict()["baseline"]["changes"]] == ["b", "a"]
    named = judge(result(row(nll=1.0)), limits, before, False).gate
    assert named.passed is None  # there is no row without a set


@pytest.mark.parametrize(
    ("value", "error", "significant", "code"),
    [(0.11, 0.02, False, 1), (0.11, 0.02, True, 0), (0.13, 0.02, True, 1), (0.11, None, True, 1), (0.09, 0.0, True, 0)],
)
def test_a_limit_broken_by_no_more_than_its_error(value, error, significant, code):
    found = judge(result(row(w2=value, w2_se=error)), [parse_fail_if("w2 > 0.1")], None, significant)
    assert exit_code(found) == code
    if value == 0.11 and error:
        assert found.gate.checks[0].within_error is True
        assert "broken by no more than the standard error" in found.gate.checks[0].description


def test_the_error_of_a_difference_is_of_both_sides(tmp_path):
    baseline, limit = saved(tmp_path, row(w2=0.1, w2_se=0.04)), parse_max_regression("w2=0")
    near, far = (row(w2=value, w2_se=0.03) for value in (0.149, 0.151))
    assert outcome(result(near), [limit], baseline, significant=True) == (0, [True])
    assert outcome(result(far), [limit], baseline, significant=True) == (1, [False])
    assert outcome(result(near), [limit], baseline) == (1, [False])
    beyond_allowed = row(w2=0.235, w2_se=0.03)  # by 0.035 more than the 0.1 that is allowed, the error being 0.05
    allowed = parse_max_regression("w2=0.1")
    assert outcome(result(beyond_allowed), [allowed], baseline, significant=True) == (0, [True])


def test_the_json_of_a_gate(tmp_path):
    baseline = saved(tmp_path, row(w2=0.25, w2_se=0.0, nll=1.0), row("norm", None, w2=1.0))
    rows = [row(w2=0.5, w2_se=0.125, nll=1.0), row("norm", None, w2=None, why={"w2": "no"})]
    limits = parse_limits(["w2 > 0.1"], ["w2=0", "nll=5%"])
    found = judge(result(*rows), limits, baseline, False)
    of_gradient = {"method": "gradient", "k": 5}
    of_norm = {"method": "norm", "k": None}
    expected = {
        "passed": False,
        "checks": [
            {"metric": "w2", **of_gradient, "value": 0.5, "limit": "max 0.1", "passed": False}
            | {"standard_error": 0.125, "within_error": False},
            {"metric": "w2", **of_norm, "value": None, "limit": "max 0.1", "passed": None, "why": "no"},
            {"metric": "w2", **of_gradient, "value": 0.5, "limit": "max_regression 0", "passed": False}
            | {"baseline": 0.25, "change": 0.25, "standard_error": 0.125, "within_error": False},
            {"metric": "w2", **of_norm, "value": None, "limit": "max_regression 0", "passed": None, "why": "no"},
            {"metric": "nll", **of_gradient, "value": 1.0, "limit": "max_regression 5%", "passed": True}
            | {"baseline": 1.0, "change": 0.0},
            {"metric": "nll", **of_norm, "value": None, "limit": "max_regression 5%", "passed": None}
            | {"why": "this row has no nll"},
        ],
        "baseline": {
            "file": str(baseline.path),
            "changes": [
                {**of_gradient, "metric": "w2", "value": 0.5, "baseline": 0.25, "change": 0.25, "worse": True}
                | {"standard_error": 0.125, "within_error": False},
                {**of_gradient, "metric": "nll", "value": 1.0, "baseline": 1.0, "change": 0.0, "worse": False}
                | {"standard_error": None, "within_error": None},
            ],
        },
    }
    assert json.dumps(found.as_dict()["gate"]) == json.dumps(expected)


def test_the_json_of_checks_of_a_sweep_and_of_whole_rows(tmp_path):
    sweep = combine([("a.pt", 0)], [result(row(w2=0.5))])
    found = judge(sweep, [parse_fail_if("w2 > 1")], saved(tmp_path, row(w2=0.5)), False)
    why = "of the baseline and this run, one is of several checkpoints and one is not"
    assert json.dumps(found.as_dict()["gate"]) == json.dumps(
        {
            "passed": None,
            "checks": [
                {"metric": "w2", "method": "gradient", "k": 5, "checkpoint": "a.pt", "seed": 0, "value": 0.5}
                | {"limit": "max 1", "passed": True},
                {"metric": "baseline", "method": "gradient", "k": 5, "value": None, "limit": "comparable"}
                | {"passed": None, "why": why},
            ],
            "baseline": {"file": str(tmp_path / "baseline.json"), "changes": []},
        }
    )
    assert found.gate.checks[1].description == f"gradient (k = 5): {why}"


def test_a_gate_made_by_hand():
    check = Check(row(w2=1.0), "w2", "max 0.9", True, None, 0.5, 0.5, 0.2, True)
    assert check.verdict == "within error"
    assert check.description == (
        "gradient (k = 5): w2 = 1, limit max 0.9, baseline 0.5 (+0.5); broken by no more than the standard error of 0.2"
    )
    change = Change("gradient", 5, "w2", 1.0, 0.5, 0.5, True, 0.2, False)
    gate = Gate((check,), "b.json", (change,))
    assert gate.passed is True
    assert list(gate.as_dict()) == ["passed", "checks", "baseline"]
    assert list(gate.as_dict()["baseline"]["changes"][0].values()) == [
        "gradient",
        5,
        "w2",
        1.0,
        0.5,
        0.5,
        True,
        0.2,
        False,
    ]
    assert Gate(()).passed is True


@pytest.mark.parametrize(
    ("text", "holds"), [("w2 > 0.2", True), ("w2 > 0.12", None), ("w2 > 0.08", None), ("w2 > 0.05", False)]
)
def test_a_limit_within_the_half_width_is_not_judged(text, holds):
    own = dataclasses.replace(row(w2=0.1), half_widths={"w2": 0.03})
    assert outcome(result(own), [parse_fail_if(text)]) == ({True: 0, False: 1, None: 4}[holds], [holds])
    (check,) = judge(result(own), [parse_fail_if(text)], None, False).gate.checks
    assert ("± 0.03" in (check.why or "")) == (holds is None)


@pytest.mark.parametrize(("value", "holds"), [(0.08, True), (0.11, None), (0.13, None), (0.16, False)])
def test_a_comparison_within_both_half_widths_is_not_judged(tmp_path, value, holds):
    before = dataclasses.replace(row(w2=0.1), half_widths={"w2": 0.01})
    own = dataclasses.replace(row(w2=value), half_widths={"w2": 0.02})
    limit = parse_max_regression("w2=0.02")
    expected = {True: 0, False: 1, None: 4}[holds]
    assert outcome(result(own), [limit], saved(tmp_path, before)) == (expected, [holds])


@pytest.mark.parametrize("widths", [[1], {"w2": -1}, {"w2": "a"}, {"w2": None}, {"w2": True}])
def test_half_widths_of_a_baseline_that_are_no_numbers_are_refused(tmp_path, widths):
    path = tmp_path / "baseline.json"
    content = result(row(w2=0.1)).as_dict()
    content["rows"][0]["half_widths"] = widths
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="half_widths"):
        load_baseline(path)


def test_a_mean_over_runs_has_the_mean_half_width():
    runs = [result(dataclasses.replace(row(w2=0.1), half_widths={"w2": width})) for width in (0.01, 0.03)]
    (mean,) = combine([("a", 0), ("b", 0)], runs).mean
    assert mean.half_widths == {"w2": pytest.approx(0.02)}
    assert mean.as_dict()["half_widths"] == {"w2": pytest.approx(0.02)}
