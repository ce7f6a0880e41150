"""Files that are no baseline, odd ones, and which way is worse."""

from __future__ import annotations

import json

import pytest
from results.made_results import result, row

from sublaplace_cli.errors import UserError
from sublaplace_cli.results.baseline import load_baseline, worsening
from sublaplace_cli.results.gate import exit_code, judge
from sublaplace_cli.results.limits import parse_max_regression


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
        ("signed_ece", 0.01, -0.05, 0.04),
        ("signed_ece", -0.05, 0.02, -0.03),
        ("aurc", 0.1, 0.3, 0.2),
        ("error_rank", 0.5, 0.4, 0.1),
    ],
)
def test_which_way_is_worse(metric, before, now, worse_by):
    assert worsening(metric, now, before) == pytest.approx(worse_by, abs=1e-12)


@pytest.mark.parametrize(
    ("before", "now", "worse_by"), [(0.92, 0.85, 0.05), (0.85, 0.99, -0.05), (0.9, 0.99, 0.0), (0.8, 0.85, -0.05)]
)
def test_a_conformal_coverage_is_worse_only_below_its_level(before, now, worse_by):
    assert worsening("conformal_coverage", now, before, level=0.9) == pytest.approx(worse_by, abs=1e-12)


@pytest.mark.parametrize(
    ("level", "by", "verdict"), [(0.9, None, False), (0.8, None, None), (0.9, "class", None), (None, None, None)]
)
def test_conformal_metrics_are_compared_at_one_level(tmp_path, level, by, verdict):
    here = {"level": 0.9, "by": None}
    there = None if level is None else {"level": level, "by": by}
    path = tmp_path / "b.json"
    path.write_text(json.dumps(result(row(conformal_coverage=0.95, w2=0.1), conformal=there).as_dict()))
    limits = [parse_max_regression("conformal_coverage=0.01"), parse_max_regression("w2=0.01")]
    found = judge(result(row(conformal_coverage=0.8, w2=0.1), conformal=here), limits, load_baseline(path), False)
    assert [check.passed for check in found.gate.checks] == [verdict, True]
    changed = {change.metric: change.worse for change in found.gate.changes}
    assert changed == {"w2": False} | ({} if verdict is None else {"conformal_coverage": True})


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
        '{"schema": 1, "mean": 5, "rows": []}',
        '{"schema": 1, "mean": [], "checkpoints": 5}',
        '{"schema": 1, "mean": [], "checkpoints": [5]}',
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


@pytest.mark.parametrize(
    "rows",
    [
        [{}],
        [{"method": {"a": 1}, "k": [1]}, {"method": None, "ks": "3"}],
        [{"method": "gradient", "k": "5", "w2": 0.1}, {"method": "gradient", "k": 5, "ks": {}, "w2": 0.1}],
    ],
)
@pytest.mark.parametrize("provenance", [None, 5, "x", {"metrics": 1, "rows_sha256": "d", "rescale": "none"}])
def test_a_baseline_of_odd_types_is_compared_with_nothing(tmp_path, rows, provenance):
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"schema": 1, "rows": rows, "provenance": provenance, "bracket": 5}))
    limits = [parse_max_regression("w2=1"), parse_max_regression("w2_low=1")]
    found = judge(result(row(w2=0.1, w2_low=0.1)), limits, load_baseline(path), False)
    assert exit_code(found) == 4
    assert [check.passed for check in found.gate.checks] == [None, None]
    assert found.gate.changes == ()
