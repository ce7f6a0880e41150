"""Every format, read back by a reader of its own."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re

import pytest
from render.made_gate import ODD, judged
from results.made_results import complete_row, result, row

from sublaplace_cli.catalog import FORMAT_OF_SUFFIX, FORMATS, load
from sublaplace_cli.plain_text import visible
from sublaplace_cli.render.text import HIDDEN_AT, SHOWN, TABLE_WIDTH, short_grid, title, wide_grid
from sublaplace_cli.results.gate import Check, Gate
from sublaplace_cli.results.metric_table import METRICS, MOST_WANTED
from sublaplace_cli.results.result import Listing, References
from sublaplace_cli.results.sweep import combine


def text(name, result):
    return load(FORMATS[name])(result)


@pytest.fixture
def found():
    return judged()


def test_json(found):
    assert json.loads(text("json", found)) == found.as_dict()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["json", "jsonl"])
def test_json_is_strict(name, value):
    with pytest.raises(ValueError, match="Out of range float values"):
        text(name, result(row(w2=value)))


def test_jsonl(found):
    lines = [json.loads(line) for line in text("jsonl", found).splitlines()]
    assert lines == [*(row.as_dict() for row in found.rows), found.full.as_dict()]


@pytest.mark.parametrize(("name", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_csv_and_tsv(found, name, delimiter):
    rows = list(csv.DictReader(io.StringIO(text(name, found), newline=""), delimiter=delimiter))
    assert [row["method"] for row in rows] == ["gradient", visible(ODD), "full"]
    assert len(text(name, found).splitlines()) == 4, "one line per row"
    assert float(rows[0]["nll"]) == 1 / 3
    assert rows[1]["w2"] == rows[0]["accuracy"] == ""


def test_markdown(found):
    lines = text("markdown", found).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 3
    assert "\\|" in table[3], "a bar in a name must not end its cell"
    assert lines[-1].startswith("* gate: 2 of 4 limits hold (rows: gradient (k = 5), names:a\\|b&lt;")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("names:<img src=x>&lt;", "names:&lt;img src=x&gt;&amp;lt;"),
        ("names:[a](b)", "names:\\[a\\](b)"),
        ("names:*.`w`", "names:\\*.\\`w\\`"),
        ("names:_a_b_", "names:\\_a_b\\_"),
        ("names:a\\|b", "names:a\\\\\\|b"),
        ("names:layer_1.weight-2", "names:layer_1.weight-2"),
    ],
)
def test_names_in_markdown_are_text(name, shown):
    assert text("markdown", result(row(name, w2=1.0))).splitlines()[-1] == f"| {shown} | 5 | 1 |"


@pytest.mark.parametrize("name", ["names:[a-z0-9]*", "names:[/0-9]*", "names:[red]x[/red]", "names::cat:", "[bold]"])
def test_names_in_a_table_are_text(name):
    assert name in text("table", result(row(name, w2=1.0)))
    assert name in text("table", Listing({"schema": 1, "method": name, "reused": [name], "files": {name: 5}}))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "hostile", ["\x1b[31m", "\x9b31m", "\u202ea", "a\r\n::error::b", " ::error::b", "##[error]b", "\udcff"]
)
def test_no_format_obeys_a_name(name, hostile):
    runs = combine([(hostile, 0), ("b", 0)], [result(row(f"names:{hostile}", w2=w2)) for w2 in (1.0, 2.0)])
    gate = Gate(tuple(Check(one, "w2", "max 0.1", False) for one in runs.rows))
    for answer in (dataclasses.replace(runs, gate=gate), Listing({"schema": 1, hostile: hostile, "a": {hostile: 5}})):
        shown = text(name, answer)
        assert shown.encode().decode() == shown
        assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown) is None
        for line in shown.splitlines():
            command = line.strip().startswith("::") or "##[" in line
            assert not command or re.match(r"::(error|notice) title=sublaplace[^:]*::", line)
        if name == "json":
            assert json.loads(shown) == answer.as_dict()
        if name == "jsonl" and isinstance(answer, Listing):
            assert json.loads(shown) == answer.as_dict()


@pytest.mark.parametrize("start", "=+-@")
def test_no_name_in_a_csv_file_is_a_formula(start):
    names = [f"{start}1+1", f"a{start}", "b"]
    sweep = combine([(name, 0) for name in names], [result(row(w2=-1.0))] * 3)
    rows = list(csv.DictReader(io.StringIO(text("csv", sweep))))
    assert [row["checkpoint"] for row in rows] == [f"'{names[0]}", *names[1:], "mean"]
    assert {row["w2"] for row in rows} == {"-1.0"}, "a number is no name"
    assert text("tsv", sweep).splitlines()[1].startswith(f"{start}1+1\t")


def test_table(found):
    shown = text("table", found)
    assert "failed: gradient (k = 5): w2 = 0.125, limit max 0.1" in shown
    assert shown.splitlines()[-1].startswith("gate: 2 of 4 limits hold (rows: gradient (k = 5), ")


def test_the_columns_for_people():
    assert (
        *(
            "checkpoint",
            "seed",
            "set",
            "method",
            "k",
            "rescale",
            "remainder",
            "mean_std",
            "w2",
            "w2_se",
            "w2_low",
            "w2_high",
        ),
        *("w2_relative", "rank", "coverage95", "coverage95_total", "retained", "nll", "rmse", "crps"),
        *("accuracy", "ece", "brier", "aurc", "conformal_coverage", "conformal_size"),
        *("ood_auroc_std", "ood_auroc_entropy", "ood_auroc_mi"),
    ) == SHOWN
    assert HIDDEN_AT == {"rescale": 1.0, "remainder": 0.0, "seed": 0}


def of_task(task: str, *rows, **more):
    found = result(*rows, **more)
    return dataclasses.replace(found, setup=dataclasses.replace(found.setup, task=task))


ASKED_FOR = {"conformal_coverage": None, "conformal_size": None, "rescale": 1.0, "remainder": 0.0}
ASKED_FOR |= {name: None for name in METRICS if name.startswith("ood_")}
DEFAULT_COLUMNS = {
    "regression": [
        *("method", "k", "mean_std", "w2_relative", "rank", "coverage95_total", "retained", "nll", "rmse"),
    ],
    "multiclass": ["method", "k", "w2_relative", "rank", "nll", "accuracy", "ece", "brier", "aurc"],
}


def complete(task: str, method: str = "gradient", k: int | None = 1000, **more: float | None):
    """A row with the metrics of a task, each number as long as numbers get."""
    other = ("accuracy", "ece", "brier") if task == "regression" else ("rmse", "crps", "coverage95_total")
    names = [name for name, metric in METRICS.items() if metric.needs != "bracket"]
    return complete_row(method, k, **(dict.fromkeys(names, 0.12345) | dict.fromkeys(other) | ASKED_FOR | more))


@pytest.mark.parametrize("task", DEFAULT_COLUMNS)
def test_nine_columns_are_chosen_by_task(task):
    found = of_task(task, complete(task))
    assert short_grid(found)[0] == short_grid(found, 200)[0] == DEFAULT_COLUMNS[task]
    lines = text("table", found).splitlines()
    assert max(map(len, lines[1:])) <= TABLE_WIDTH == 80
    assert text("markdown", found).splitlines()[2] == "| " + " | ".join(DEFAULT_COLUMNS[task]) + " |"


def test_a_long_name_costs_the_least_wanted_column():
    found = of_task("binary", complete("binary"), complete("binary", "constant, calibrated", None))
    assert short_grid(found)[0] == DEFAULT_COLUMNS["multiclass"][:-1]
    assert max(map(len, text("table", found).splitlines()[1:])) <= TABLE_WIDTH


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ({"conformal_coverage": 0.9, "conformal_size": 2.0}, ["conformal_coverage", "conformal_size"]),
        ({"ood_auroc_std": 0.9}, ["ood_auroc_std"]),
        ({"rescale": 2.0, "remainder": 0.5}, ["rescale", "remainder"]),
    ],
)
def test_what_was_asked_for_is_shown(asked, first):
    columns, _ = short_grid(of_task("regression", complete("regression", **asked)), 200)
    assert set(first) < set(columns)
    assert {"w2_relative", "nll"} < set(columns)
    assert len(columns) == 9


def test_without_a_full_posterior_other_columns_take_its_place():
    missing = dict.fromkeys(("w2", "w2_se", "w2_relative", "rank", "retained"))
    columns, _ = short_grid(of_task("regression", complete("regression", **missing)))
    assert columns == ["method", "k", "mean_std", "coverage95", "coverage95_total", "nll", "rmse", "crps"]


def test_every_wanted_column_is_one_for_people():
    for wanted in MOST_WANTED.values():
        assert len(set(wanted)) == len(wanted)
        assert set(wanted) <= set(SHOWN)


def test_a_heading_in_two_lines_is_the_name():
    lines = text("table", of_task("regression", complete("regression"))).splitlines()
    above, below = lines[2], lines[3]
    for start, end in (("coverage95", "_total"), ("w2_", "relative"), ("mean", "_std")):
        assert above.index(start) + len(start) == below.index(end) + len(end)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_takes_a_listing(name):
    assert text(name, Listing({"schema": 1, "n_params": 5, "artifacts": {"a": "b"}, "seconds": {}})).strip()


def test_a_listing_shows_sizes_and_lists_in_words():
    values = {"schema": 1, "dry_run": True, "memory_limit": 1536, "tuned": None, "reused": [], "files": {"a": 2048}}
    assert short_grid(Listing(values)) == (
        ["", "value"],
        [["dry_run", "True"], ["memory_limit", "1.5 KiB"], ["reused", "–"], ["files: a", "2.0 KiB"]],
    )


def test_a_listing_as_csv_has_one_row():
    values = {"schema": 1, "k": 5, "why": None, "artifacts": {"a": "b"}}
    assert text("csv", Listing(values)) == 'schema,k,why,artifacts\n1,5,,"{""a"": ""b""}"\n'


def test_every_suffix_has_its_format():
    assert set(FORMAT_OF_SUFFIX.values()) <= set(FORMATS)


def test_a_narrow_terminal_drops_columns_but_truncates_none():
    found = result(row(w2=0.123456, w2_se=0.1, w2_relative=0.5, nll=1.0, rmse=1.0, crps=1.0))
    columns = ["method", "k", "w2", "w2_relative", "nll", "rmse", "crps"]
    assert short_grid(found) == (columns, [["gradient", "5", "0.1235", "0.5", "1", "1", "1"]])
    assert short_grid(found, 1000)[0] == columns
    assert short_grid(found, 8 + 1 + 6 + 8 + 3 + 4 + 4 + 6 * 2)[0] == columns
    assert short_grid(found, 8 + 1 + 6 + 8 + 3 + 4 + 4 + 6 * 2 - 1)[0] == [
        "method",
        "k",
        "w2_relative",
        "nll",
        *columns[5:],
    ]
    assert short_grid(found, 1)[0] == ["method", "k", "w2_relative"]


def test_a_report_has_all_columns():
    found = result(row(w2=0.5, w2_se=0.1, w2_relative=0.5, nll=1.0, crps=1.0, ipv=1.0))
    assert wide_grid(found)[0] == ["method", "k", "w2", "w2_se", "w2_relative", "nll", "crps"]


def test_columns_with_the_usual_value_are_hidden():
    assert short_grid(result(row(rescale=1.0, remainder=0.0, w2=1.0)))[0] == ["method", "k", "w2"]
    assert short_grid(result(row(rescale=1.0, w2=1.0), row(rescale=2.0)))[0] == ["method", "k", "rescale", "w2"]


def test_a_number_of_a_reference_alone_needs_no_column():
    found = result(row(rescale=1.0, remainder=0.0, w2=1.0))
    norm = row("norm", None, rescale=1.0, remainder=0.5, w2=1.0)
    assert short_grid(dataclasses.replace(found, references=References(None, (norm,))))[0] == ["method", "k", "w2"]


def test_the_full_posterior_is_shown_once():
    full = row("full", 9, w2=0.0)
    assert [cells[0] for cells in short_grid(result(row(w2=1.0), full=full))[1]] == ["gradient", "full"]
    assert [cells[0] for cells in short_grid(result(full, row(w2=1.0), full=full))[1]] == ["full", "gradient"]


@pytest.fixture
def sweep():
    runs = [result(row(w2=w2, w2_se=0.25), full=row("full", 9, w2=0.0, w2_se=0.0)) for w2 in (1.0, 2.0)]
    labels = [("a.pt", 0), ("b.pt", 3)]
    return combine(labels, runs)


def test_a_sweep_shows_its_runs_their_mean_and_the_full_posterior(sweep):
    assert short_grid(sweep) == (
        ["checkpoint", "seed", "method", "k", "w2"],
        [
            ["a.pt", "0", "gradient", "5", "1"],
            ["b.pt", "3", "gradient", "5", "2"],
            ["mean", "–", "gradient", "5", "1.5 ± 0.5"],
            ["mean", "–", "full", "9", "0 ± 0"],
        ],
    )
    rows = list(csv.DictReader(io.StringIO(text("csv", sweep))))
    assert [row["checkpoint"] for row in rows] == ["a.pt", "b.pt", "mean", "mean"]
    lines = [json.loads(line) for line in text("jsonl", sweep).splitlines()]
    assert lines[:2] == sweep.as_dict()["rows"]
    assert lines[2:] == [{"checkpoint": "mean", **row.as_dict()} for row in (*sweep.mean, sweep.full)]


def test_titles(sweep):
    said = "regression: 3 training rows, 2 test rows, 9 parameters, prior precision 1, noise variance 0.5"
    assert title(result(row())) == said
    assert title(sweep) == said.replace("regression: ", "regression: 2 runs, ")
    found = result(row())
    silent = dataclasses.replace(found, setup=dataclasses.replace(found.setup, noise_variance=None))
    assert title(silent) == said.removesuffix(", noise variance 0.5")
    assert title(Listing({"schema": 1})) == ""
    known = result(row(), details={"certified": {"tolerance": 0.05, "widest": 0.0206}})
    assert title(known) == f"{said}, σ of full certified to ± 2.1 %"
    both = combine([("a", 0), ("b", 0)], [known, result(row())])
    assert title(both) == f"{said}, σ of full certified to ± 2.1 %".replace("regression: ", "regression: 2 runs, ")


@pytest.mark.parametrize(("name", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_half_widths_are_json_in_a_cell(name, delimiter):
    own = dataclasses.replace(row(w2=0.1), half_widths={"w2": 0.03})
    (line,) = csv.DictReader(io.StringIO(text(name, result(own))), delimiter=delimiter)
    assert json.loads(line["half_widths"]) == {"w2": 0.03}
