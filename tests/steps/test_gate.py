"""The gate on results made by hand: which way is better, what cannot be judged, and what an error excuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sublaplace_cli.catalog import METRIC_VERSION, METRICS
from sublaplace_cli.errors import UserError
from sublaplace_cli.results.baseline import load_baseline, worsening
from sublaplace_cli.results.gate import described, exit_code, judge, verdict
from sublaplace_cli.results.limits import Limit, parse_fail_if, parse_max_regression
from sublaplace_cli.steps.evaluate import BOUND_KEYS, ROW_KEYS

MADE_FROM = {"metrics": METRIC_VERSION, "rows_sha256": "d", "oracle_sha256": None, "rescale": "none"}


def result(*rows: dict[str, Any], **made_from: Any) -> dict[str, Any]:
    filled = [{"method": "gradient", "k": 5, "why": {}, **row} for row in rows]
    return {"schema": 1, "rows": filled, "provenance": {**MADE_FROM, **made_from}}


def saved(folder: Path, *rows: dict[str, Any], **made_from: Any) -> Any:
    path = folder / "baseline.json"
    path.write_text(json.dumps(result(*rows, **made_from)))
    return load_baseline(path)


def outcome(found: dict[str, Any], limits: list[Limit], baseline: Any = None, significant: bool = False) -> tuple:
    gate = judge(found, limits, baseline, significant)
    code = exit_code({"gate": gate})
    return code, [] if gate is None else [check["passed"] for check in gate["checks"]]


def test_the_metrics_are_those_of_a_row():
    names = {key for key in (*ROW_KEYS, *BOUND_KEYS) if not key.endswith("_se")} - {"method", "k"}
    assert set(METRICS) == names


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
    assert outcome(result({limit.metric: value}), [limit]) == (0 if holds else 1, [holds])


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


def test_every_row_and_every_limit():
    rows = [{"w2": 0.1, "nll": 1.0}, {"w2": 0.3, "nll": 1.0, "k": 9}]
    limits = [parse_fail_if("w2 > 0.2"), parse_fail_if("nll > 2")]
    assert outcome(result(*rows), limits) == (1, [True, False, True, True])


def test_no_limit_is_no_gate():
    assert judge(result({"w2": 9.0}), [], None, False) is None
    assert exit_code({"gate": None}) == 0


def test_null_is_not_judged_and_a_broken_limit_wins():
    found = result({"w2": 0.5, "accuracy": None, "why": {"accuracy": "a metric of classification"}})
    accuracy, w2 = parse_fail_if("accuracy < 0.9"), parse_fail_if("w2 > 0.1")
    assert outcome(found, [accuracy]) == (4, [None])
    assert outcome(found, [accuracy, w2]) == (1, [None, False])
    gate = judge(found, [accuracy], None, False)
    assert gate["passed"] is None
    assert verdict(gate["checks"][0]) == "not judged"
    assert described(gate["checks"][0]).endswith("a metric of classification")


@pytest.mark.parametrize(
    ("metric", "before", "now", "worse_by"),
    [
        ("w2", 0.1, 0.15, 0.05),
        ("w2", 0.1, 0.05, -0.05),
        ("ece", 0.1, 0.3, 0.2),
        ("accuracy", 0.9, 0.8, 0.1),
        ("retained", 0.5, 0.6, -0.1),
        ("coverage95", 0.95, 0.99, 0.04),
        ("coverage95", 0.91, 0.99, 0.0),
        ("coverage95_total", 0.99, 0.93, -0.02),
    ],
)
def test_which_way_is_worse(metric, before, now, worse_by):
    assert worsening(metric, now, before) == pytest.approx(worse_by, abs=1e-12)


@pytest.mark.parametrize(
    ("amount", "now", "code"),
    [("0.02", 0.119, 0), ("0.02", 0.121, 1), ("5%", 0.104, 0), ("5%", 0.106, 1), ("0", 0.1, 0), ("0", 0.05, 0)],
)
def test_a_regression_against_a_baseline(tmp_path, amount, now, code):
    limit = parse_max_regression(f"w2={amount}")
    assert outcome(result({"w2": now}), [limit], saved(tmp_path, {"w2": 0.1}))[0] == code


@pytest.mark.parametrize(
    ("made_from", "words"),
    [
        ({"rows_sha256": "other"}, "other data"),
        ({"metrics": 0}, "metrics of version 0"),
        ({"rescale": "scale"}, "--rescale scale"),
    ],
)
def test_a_baseline_of_something_else_is_not_compared_with(tmp_path, made_from, words):
    baseline = saved(tmp_path, {"w2": 0.1}, **made_from)
    gate = judge(result({"w2": 0.1}), [parse_max_regression("w2=5%")], baseline, False)
    assert exit_code({"gate": gate}) == 4
    assert words in gate["checks"][0]["why"]
    assert gate["baseline"]["changes"] == []
    without_limits = judge(result({"w2": 0.1}), [], baseline, False)
    assert exit_code({"gate": without_limits}) == 4, "a comparison that cannot be made is never a pass"
    assert words in described(without_limits["checks"][0])


def test_brackets_are_compared_with_the_same_bracket(tmp_path):
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({**result({"w2_high": 0.1}), "bracket": {"rows": 50, "sets": 2}}))
    baseline, limit = load_baseline(path), parse_max_regression("w2_high=1")
    for rows, code in ((50, 0), (300, 4)):
        found = {**result({"w2_high": 0.1}), "bracket": {"rows": rows, "sets": 2}}
        assert outcome(found, [limit], baseline)[0] == code


def test_means_over_different_k_are_found_by_all_of_them(tmp_path):
    baseline = saved(tmp_path, {"w2": 0.1, "k": None, "ks": [3, 4]})
    limit = parse_max_regression("w2=1")
    assert outcome(result({"w2": 0.1, "k": None, "ks": [3, 4]}), [limit], baseline)[0] == 0
    assert outcome(result({"w2": 0.1, "k": None, "ks": [3, 5]}), [limit], baseline)[0] == 4
    assert outcome(result({"w2": 0.1, "k": None}), [limit], baseline)[0] == 4


def test_an_oracle_matters_to_its_coverage_alone(tmp_path):
    baseline = saved(tmp_path, {"w2": 0.1, "coverage95": 0.9}, oracle_sha256="other")
    found = result({"w2": 0.1, "coverage95": 0.9})
    assert outcome(found, [parse_max_regression("w2=0")], baseline) == (0, [True])
    assert outcome(found, [parse_max_regression("coverage95=0")], baseline) == (4, [None])


@pytest.mark.parametrize("row", [{"k": 6, "w2": 0.1}, {"method": "greedy", "w2": 0.1}, {"w2": None}, {}])
def test_a_baseline_without_the_row_or_the_number(tmp_path, row):
    assert outcome(result({"w2": 0.1}), [parse_max_regression("w2=5%")], saved(tmp_path, row)) == (4, [None])


def test_a_regression_without_a_baseline_is_not_judged():
    assert outcome(result({"w2": 0.1}), [parse_max_regression("w2=5%")]) == (4, [None])


def test_a_baseline_alone_reports_and_never_fails(tmp_path):
    gate = judge(result({"w2": 9.0}), [], saved(tmp_path, {"w2": 0.1}), False)
    assert exit_code({"gate": gate}) == 0
    (change,) = gate["baseline"]["changes"]
    assert (change["change"], change["worse"]) == (pytest.approx(8.9), True)


@pytest.mark.parametrize(
    ("value", "error", "significant", "code"),
    [(0.11, 0.02, False, 1), (0.11, 0.02, True, 0), (0.13, 0.02, True, 1), (0.11, None, True, 1), (0.09, 0.0, True, 0)],
)
def test_a_limit_broken_by_no_more_than_its_error(value, error, significant, code):
    found = result({"w2": value, "w2_se": error})
    gate = judge(found, [parse_fail_if("w2 > 0.1")], None, significant)
    assert exit_code({"gate": gate}) == code
    if value == 0.11 and error:
        assert gate["checks"][0]["within_error"] is True
        assert "broken by no more than the standard error" in described(gate["checks"][0])


def test_the_error_of_a_difference_is_of_both_sides(tmp_path):
    baseline, limit = saved(tmp_path, {"w2": 0.1, "w2_se": 0.04}), parse_max_regression("w2=0")
    near, far = ({"w2": value, "w2_se": 0.03} for value in (0.149, 0.151))
    assert outcome(result(near), [limit], baseline, significant=True) == (0, [True])
    assert outcome(result(far), [limit], baseline, significant=True) == (1, [False])
    assert outcome(result(near), [limit], baseline) == (1, [False])
    beyond_allowed = {"w2": 0.235, "w2_se": 0.03}  # by 0.035 more than the 0.1 that is allowed, the error being 0.05
    allowed = parse_max_regression("w2=0.1")
    assert outcome(result(beyond_allowed), [allowed], baseline, significant=True) == (0, [True])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "5",
        "{}",
        '{"schema": 1}',
        '{"schema": 2, "rows": []}',
        '{"schema": 1, "rows": [5]}',
        '{"schema": 1, "rows": [{"w2": "a"}]}',
        '{"schema": 1, "rows": [{"w2": true}]}',
        '{"schema": 1, "rows": [{"w2": NaN}]}',
        '{"schema": 1, "rows": [{"w2": 1e999}]}',
        '{"schema": 1, "rows": [{"w2_se": "x"}]}',
        f'{{"schema": 1, "rows": [{{"w2": {"9" * 400}}}]}}',
        '{"schema": 1, "rows": [{"method": "a", "k": 1}, {"method": "a", "k": 1}]}',
        "{" * 100_000,
    ],
)
def test_a_file_that_is_no_baseline(tmp_path, text):
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"--baseline .*b\.json"):
        load_baseline(path)


def test_a_baseline_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        load_baseline(tmp_path / "b.json")
