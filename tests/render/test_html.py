"""The report on results made by hand: complete, closed, escaped."""

from __future__ import annotations

import dataclasses
import html
import json
from html.parser import HTMLParser

import pytest
from render.made_gate import ODD, judged
from results.made_results import result, row

from sublaplace_cli.plain_text import visible
from sublaplace_cli.render.html import Origin, html_report
from sublaplace_cli.results.baseline import load_baseline
from sublaplace_cli.results.figures import Figures, LayerShare, Series
from sublaplace_cli.results.gate import Check, Gate, judge
from sublaplace_cli.results.metric_table import METRICS
from sublaplace_cli.results.sweep import combine

MISSING = {
    "calibration": "no <b>",
    "risk-coverage": "no <b>",
    "scatter": "no full posterior",
    "map": "none",
    "ood": "none",
}
NO_PICTURES = Figures(("x", "y", "rows"), [], "risk", [], [], [], MISSING)


class Page(HTMLParser):
    """All tags and words; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.unclosed: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.unclosed == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self.unclosed.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.unclosed.pop() == tag

    def handle_data(self, data) -> None:
        self.words.append(data)


def report(found, figures=None, spec_text="version: 1") -> tuple[str, Page]:
    text = html_report(found, figures, Origin("mlp, <model>.pt", ["evaluate", "--k", "5 6"], spec_text, "1.2.3"))
    return text, Page(text)


def test_it_says_what_was_run_and_how():
    text, _ = report(dataclasses.replace(result(row(w2=0.5)), artifacts={"scores": "/r/scores.x"}))
    for part in (
        "regression: 3 training rows",
        html.escape("sublaplace evaluate --k '5 6'"),
        "version: 1",
        "1.2.3",
        "rows_sha256",
        "/r/scores.x",
        "<td>n_params</td><td class='text'>9</td>",
    ):
        assert part in text


def test_it_defines_every_metric_in_its_table_and_no_other():
    names = {name: 0.5 for name, metric in METRICS.items() if metric.column}
    text, _ = report(result(row(**names)))
    for name, metric in METRICS.items():
        shown = f"<li><b>{name}</b>: {html.escape(metric.definition)}"
        assert (shown in text) is (metric.column is not None)
    assert "<b>nll</b>" not in report(result(row(w2=0.5)))[0]


def test_it_escapes_what_it_shows():
    text, page = report(judged(), NO_PICTURES, "# <script>alert(1)</script>\n# \u202e and \x1b")
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in "".join(page.words)
    assert html.escape(visible(ODD)) in text
    assert not any(character in text for character in "\x07\x1b\u202e")
    assert "Not drawn: no &lt;b&gt;." in text


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ([True, True], "Gate: all limits hold"),
        ([True, None], "Gate: a limit could not be judged"),
        ([None, False], "Gate: a limit is broken"),
    ],
)
def test_the_gate(verdicts, words):
    gate = Gate(tuple(Check(row(w2=1.0), "w2", "max 2", passed, "because") for passed in verdicts))
    text, _ = report(dataclasses.replace(result(row(w2=1.0)), gate=gate))
    assert words in text
    assert ("1 limits that hold" in text) is (verdicts.count(True) == 1)


def test_no_gate_without_checks():
    assert "Gate:" not in report(result(row(w2=1.0)))[0]


def test_changes_from_a_baseline(tmp_path):
    path = tmp_path / "b.json"
    path.write_text(json.dumps(result(row(w2=0.5)).as_dict()))
    text, _ = report(judge(result(row(w2=0.75)), [], load_baseline(path), False))
    assert "<h2>Changes from the baseline</h2>" in text
    assert "<td>w2</td><td>0.5</td><td>0.75</td><td>0.25</td>" in text


def test_missing_numbers_are_explained_once():
    rows = [row(k=k, accuracy=None, ece=None, why={"accuracy": "no", "ece": "no", "w2_se": "one"}) for k in (5, 6)]
    text, _ = report(result(*rows))
    assert text.count(": no</li>") == 1
    assert "<li>accuracy, ece: no</li>" in text


def test_a_sweep_names_its_runs():
    sweep = combine([("a.pt", 1), ("b.pt", 1)], [result(row(w2=0.5))] * 2)
    layers, line = [LayerShare("0.weight", 4, {"a": 3})], Series("a", [0.5, 1.0], [0.1, 0.2])
    missing = {"ood": "none"}
    text, _ = report(sweep, dataclasses.replace(NO_PICTURES, risk_coverage=[line], layers=layers, missing=missing))
    assert "run b.pt, seed 1" in text
    assert text.count("Of the first run, a.pt.") == 4
    assert text.count("src='data:image/svg+xml;base64,") == 5


def test_the_verdict_and_the_rows_to_look_at():
    details = {
        "verdict": {"text": ["Worse than <map>."], "nll_against_map": []},
        "review": {"method": "gradient", "k": 5, "rows": [{"row": 7, "confidence": 0.25}]},
    }
    text, page = report(result(row(w2=0.5), details=details))
    in_order = ("<h1>mlp, &lt;model&gt;.pt</h1>", "Worse than &lt;map&gt;.</p>", "<table>")
    assert sorted(in_order, key=text.index) == list(in_order)
    assert "test rows that gradient (k = 5) is most uncertain of" in text
    assert "<td>7</td><td>0.25</td>" in text
    assert "Worse than <map>." in "".join(page.words)
