"""Several sets of test rows: each as if it were alone, their differences, and what is fitted once for all of them."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.cli_tools import Project, Tool, refused

TASKS = {"regression": 1, "binary": 1, "multiclass": 3}
METHODS = ("--method", "gradient,full,constant", "--k", "5,20", "--json")
ROWS_OF_TRAIN = "0:40"


def with_files(project: Project) -> Project:
    """`clean.csv`, the same rows moved (`shifted.csv`), and others, fewer (`other.csv`), none of them in the spec."""
    rng = np.random.default_rng(5)
    header = ["a", "b", "c", *(f"y{c}" for c in range(project.y.shape[1]))]
    x, y = project.x[40:], project.y[40:]
    moved, fewer = rng.normal(size=(9, 3)), y[:9][::-1]
    for name, own in (("clean", (x, y)), ("shifted", (1.5 * x + 0.7, y)), ("other", (moved, fewer))):
        project.write_csv(f"{name}.csv", header, np.hstack(own))
    project.spec["data"]["splits"] = {"train": {"rows": ROWS_OF_TRAIN}, "test": {"path": "clean.csv"}}
    project.save()
    return project


@pytest.fixture(params=TASKS)
def each_task(request, make) -> Project:
    return with_files(make(request.param, TASKS[request.param], rows=60))


@pytest.fixture
def project(make) -> Project:
    return with_files(make(rows=60))


def with_test(project: Project, test: Any, **more: Any) -> Project:
    project.spec["data"]["splits"] = {"train": {"rows": ROWS_OF_TRAIN}, "test": test, **more}
    project.save()
    return project


def without_set(rows: list[dict[str, Any]], name: str | None = None) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "set"} for row in rows if row.get("set") == name]


def test_each_set_is_as_it_is_alone(tool: Tool, each_task: Project) -> None:
    """To the last digit, and whether the sets come from the spec or from the command line."""
    folder = each_task.folder
    alone = {}
    for name in ("clean", "shifted", "other"):
        with_test(each_task, {"path": f"{name}.csv"})
        alone[name] = tool("evaluate", *METHODS, "--run-dir", name, cwd=folder).json()
    with_test(each_task, {name: {"path": f"{name}.csv"} for name in alone})
    named = tool("evaluate", *METHODS, "--run-dir", "named", cwd=folder).json()
    with_test(each_task, {"path": "clean.csv"})
    words = [word for name in alone for word in ("--test", f"{name}.csv")]
    typed = tool("evaluate", *METHODS, *words, "--run-dir", "typed", cwd=folder).json()
    for result in (named, typed):
        assert [row["set"] for row in result["rows"]] == [name for name in alone for _ in range(4)]
        for name, own in alone.items():
            assert without_set(result["rows"], name) == own["rows"]
            if name == "clean" or each_task.task == "regression":  # others have the temperature of the first set
                assert without_set(result["references"], name) == own["references"]
        assert without_set([result["full"]], "clean") == [alone["clean"]["full"]]
        assert result["test_sets"] == [{"name": name, "rows": own["n_test"]} for name, own in alone.items()]
        assert result["n_test"] == alone["clean"]["n_test"]
    assert typed["differences"] == named["differences"]
    assert "test_sets" not in alone["clean"]
    assert "differences" not in alone["clean"]


def nll_by_row(folder: Path, name: str, noise: float) -> np.ndarray:
    with open(folder / "p.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["set"] == name]
    mean, std, target = (np.array([float(line[key]) for line in lines]) for key in ("mean", "std", "target"))
    variance = std**2 + noise
    return 0.5 * (np.log(2 * math.pi * variance) + (target - mean) ** 2 / variance)


def test_differences_with_standard_errors(tool: Tool, project: Project) -> None:
    """By row where the targets are the same, else of independent rows."""
    words = ("--test", "clean.csv", "--test", "shifted.csv", "--test", "other.csv")
    predicted = ("--k", 20, "--predictions", "p.csv", "--json")
    result = tool("evaluate", *words, *predicted, cwd=project.folder).json()
    found = {(each["set"], each["method"], each["metric"]): each for each in result["differences"]}
    clean, shifted, other = (
        nll_by_row(project.folder, name, result["noise_variance"]) for name in ("clean", "shifted", "other")
    )
    paired = found["shifted", "gradient", "nll"]
    assert (paired["reference"], paired["k"], paired["paired"]) == ("clean", 20, True)
    assert paired["difference"] == pytest.approx(np.mean(shifted - clean), rel=1e-9)
    assert paired["standard_error"] == pytest.approx(np.std(shifted - clean, ddof=1) / math.sqrt(20), rel=1e-9)
    unpaired = found["other", "gradient", "nll"]
    assert unpaired["paired"] is False
    assert unpaired["difference"] == pytest.approx(np.mean(other) - np.mean(clean), rel=1e-9)
    error = math.sqrt(np.var(other, ddof=1) / 9 + np.var(clean, ddof=1) / 20)
    assert unpaired["standard_error"] == pytest.approx(error, rel=1e-9)
    metrics = {each["metric"] for each in result["differences"]}
    assert metrics == {"w2", "coverage95_total", "nll", "crps"}  # means over rows alone
    assert {each["method"] for each in result["differences"]} >= {"gradient", "map", "full", "norm"}
    rows = {(row["set"], row["method"]): row for row in (*result["rows"], *result["references"])}
    for (name, method, metric), each in found.items():
        if method != "full":
            change = rows[name, method][metric] - rows["clean", method][metric]
            assert each["difference"] == pytest.approx(change, abs=1e-12)


def test_the_training_part_is_computed_once(tool: Tool, project: Project) -> None:
    """A set more, in the spec or on the command line, belongs to the same run folder."""
    plain = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()
    more = tool("evaluate", "--k", 20, "--json", "--test", "clean.csv", "--test", "shifted.csv", cwd=project.folder)
    shared = ("jacobians-train", "scores", "indices-gradient-k20", "posterior-gradient-k20", "posterior-full-k41")
    for name in shared:
        assert more.json()["artifacts"][name] == plain["artifacts"][name]
    assert {"jacobians-test.shifted", "predictions-gradient-k20-test.shifted"} <= set(more.json()["artifacts"])
    assert all(f"reusing {name}\n" in more.err for name in shared)
    assert more.json()["provenance"]["fingerprint"] == plain["provenance"]["fingerprint"]
    assert more.json()["provenance"]["rows_sha256"] != plain["provenance"]["rows_sha256"]
    with_test(project, {"clean": {"path": "clean.csv"}, "shifted": {"path": "shifted.csv"}})
    named = tool("evaluate", "--k", 20, "--json", cwd=project.folder)
    assert named.json()["provenance"]["fingerprint"] == plain["provenance"]["fingerprint"]
    assert named.json()["rows"] == more.json()["rows"]
    before = (Path(plain["artifacts"]["predictions-gradient-k20"])).read_bytes()
    with_test(project, {"path": "clean.csv"})
    again = tool("evaluate", "--k", 20, "--json", cwd=project.folder)
    assert "reusing predictions-gradient-k20\n" in again.err
    assert Path(plain["artifacts"]["predictions-gradient-k20"]).read_bytes() == before
    assert again.json()["rows"] == plain["rows"]
    assert again.json()["provenance"] == plain["provenance"]


def test_other_rows_under_the_same_name_are_never_reused(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--k", 20, "--json", "--test", "clean.csv")
    first = tool(*words, "--test", "b=shifted.csv", cwd=project.folder).json()
    other = tool(*words, "--test", "b=other.csv", cwd=project.folder).json()
    fresh = tool(*words, "--test", "b=other.csv", "--run-dir", "fresh", cwd=project.folder).json()
    assert first["provenance"]["fingerprint"] == other["provenance"]["fingerprint"]
    assert first["provenance"]["rows_sha256"] != other["provenance"]["rows_sha256"]
    assert other["rows"] == fresh["rows"] != first["rows"]
    again = tool(*words, "--test", "b=shifted.csv", cwd=project.folder)
    assert again.json()["rows"] == first["rows"]
    fewer = {"clean": {"path": "clean.csv"}, "b": {"path": "shifted.csv", "rows": "0:7"}}
    with_test(project, fewer)
    assert tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()["test_sets"][1] == {"name": "b", "rows": 7}


def test_one_named_set_is_the_run_without_a_name(tool: Tool, project: Project) -> None:
    plain = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()
    with_test(project, {"clean": {"path": "clean.csv"}})
    named = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()
    assert named["rows"] == plain["rows"]
    assert named["provenance"]["fingerprint"] == plain["provenance"]["fingerprint"]
    assert named["test_sets"] == [{"name": "clean", "rows": 20}]
    assert "differences" not in named


def test_a_calibration_is_fitted_to_the_first_set(tool: Tool, each_task: Project) -> None:
    """Its rows are calibrated in folds, as alone; the others have the factor that a stored posterior keeps."""
    folder = each_task.folder
    words = ("--rescale", "calibrated", "--folds", 4, "--method", "gradient,norm", "--k", 20, "--json")
    alone = tool("evaluate", *words, cwd=folder).json()
    result = tool("evaluate", *words, "--test", "clean.csv", "--test", "shifted.csv", cwd=folder).json()
    assert without_set(result["rows"], "clean") == alone["rows"]
    assert result["calibration"]["set"] == "clean"
    assert result["calibration"]["factors"] == alone["calibration"]["factors"]
    factor = result["calibration"]["factors"][0]["factor"]
    shifted = without_set(result["rows"], "shifted")[0]
    assert shifted["rescale"] == pytest.approx(factor, rel=1e-12)
    stored = alone["artifacts"]["posterior-gradient-k20-calibrated"]
    served = tool("evaluate", "--posterior", stored, "--test", "shifted.csv", "--json", cwd=folder).json()
    for metric in ("nll", "mean_std", "coverage95_total", "brier"):
        if shifted[metric] is not None:
            assert served["rows"][0][metric] == pytest.approx(shifted[metric], rel=1e-9), metric
    table = tool(
        "evaluate", *words[:-1], "--test", "clean.csv", "--test", "shifted.csv", "--format", "table", cwd=folder
    )
    assert "factors: fitted to clean in folds; the other sets have that of all its rows" in table.out


def test_with_a_validation_split_all_sets_share_one_factor(tool: Tool, project: Project) -> None:
    validation = {"validation": {"rows": "40:50"}}
    with_test(project, {"path": "clean.csv"}, **validation)
    words = ("--rescale", "calibrated", "--conformal", "0.8", "--k", 20, "--json")
    result = tool("evaluate", *words, "--test", "clean.csv", "--test", "shifted.csv", cwd=project.folder).json()
    assert result["calibration"]["split"] == "validation"
    assert "set" not in result["calibration"]
    for name in ("clean", "shifted"):
        with_test(project, {"path": f"{name}.csv"}, **validation)
        alone = tool("evaluate", *words, "--run-dir", name, cwd=project.folder).json()
        assert without_set(result["rows"], name) == alone["rows"]
        full = [] if name == "clean" else [alone["full"]]  # the first one is in a place of its own
        assert without_set(result["references"], name) == [*alone["references"], *full]


def test_a_prior_is_tuned_on_the_first_set(tool: Tool, each_task: Project) -> None:
    each_task.use(posterior={"prior_precision": {"tune": "nll"}})
    words = ("evaluate", "--method", "gradient,full", "--k", 20, "--json")
    alone = tool(*words, cwd=each_task.folder).json()
    result = tool(*words, "--test", "clean.csv", "--test", "shifted.csv", cwd=each_task.folder).json()
    assert without_set(result["rows"], "clean") == alone["rows"]
    assert result["prior_precision"] == alone["prior_precision"]
    assert "of clean" in result["tuned"]["by"]
    each_task.use(posterior={"prior_precision": alone["prior_precision"]})
    with_test(each_task, {"path": "shifted.csv"})
    fixed = tool(*words, cwd=each_task.folder).json()
    for found, expected in zip(without_set(result["rows"], "shifted"), fixed["rows"], strict=True):
        for metric in ("nll", "mean_std", "w2"):
            assert found[metric] == pytest.approx(expected[metric], rel=1e-7, abs=1e-12), metric


def test_an_oracle_that_is_a_file_is_about_the_rows_of_the_spec(tool: Tool, project: Project) -> None:
    np.save(project.folder / "f.npy", project.y[40:])
    project.use(oracle={"predictions": "f.npy"})
    with_test(project, {"clean": {"path": "clean.csv"}, "shifted": {"path": "shifted.csv"}})
    rows = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()["rows"]
    assert rows[0]["coverage95"] is not None
    assert rows[1]["coverage95"] is None
    assert rows[1]["why"]["coverage95"] == "oracle.predictions of the spec are about its rows of clean"
    (typed,) = tool("evaluate", "--k", 20, "--json", "--test", "shifted.csv", cwd=project.folder).json()["rows"]
    assert typed["why"]["coverage95"] == "oracle.predictions of the spec are about its test rows"
    project.use(oracle={"weights": {"path": "model.safetensors"}})
    rows = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()["rows"]
    assert all(row["coverage95"] == 1.0 for row in rows)


def test_a_gate_is_about_every_set_or_one(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--k", 20, "--test", "clean.csv", "--test", "shifted.csv")
    result = tool(*words, "--json", cwd=project.folder).json()
    clean, shifted = (row["nll"] for row in result["rows"])
    assert shifted > clean
    between = (clean + shifted) / 2

    def judged(place: str) -> tuple[int, list[dict[str, Any]]]:
        run = tool(*words, "--json", "--fail-if", f"{place}nll > {between}", cwd=project.folder)
        return run.code, json.loads(run.out)["gate"]["checks"]

    assert [(check["set"], check["passed"]) for check in judged("")[1]] == [("clean", True), ("shifted", False)]
    for place, code, sets in (
        *(("clean/*: ", 0, ["clean"]), ("shifted/*: ", 1, ["shifted"]), ("gradient: ", 1, ["clean", "shifted"])),
        *(("clean/gradient (k = 20): ", 0, ["clean"]), ("shifted/map: ", 1, ["shifted"])),
    ):
        found, checks = judged(place)
        assert (found, [check["set"] for check in checks]) == (code, sets), place
    run = tool(*words, "--fail-if", "shift/gradient: nll > 1", cwd=project.folder)
    refused(run, "'shift'", "the sets are clean, shifted")
    refused(tool("evaluate", "--k", 20, "--fail-if", "clean/*: nll > 1", cwd=project.folder), "there is one set only")
    project.use(gate={"shifted/gradient: nll": {"max": between}, "gone/*: nll": {"max": 9.0}})
    run = tool(*words, "--format", "table", cwd=project.folder)
    assert run.code == 1
    assert "failed: shifted/gradient (k = 20): nll" in run.out
    assert "not judged: gone/*" in run.out


def test_a_baseline_compares_set_by_set(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--k", 20, "--test", "clean.csv", "--test", "shifted.csv", "--json")
    before = tool(*words, "-o", "before.json", cwd=project.folder).json()
    same = ("--baseline", "before.json", "--max-regression", "nll=0.001", "--max-regression", "shifted/full: nll=0")
    checks = tool(*words, *same, cwd=project.folder).json()["gate"]["checks"]
    assert [(check["set"], check["method"], check["change"]) for check in checks] == [
        *(("clean", "gradient", 0.0), ("shifted", "gradient", 0.0), ("shifted", "full", 0.0))
    ]
    before["rows"][1]["nll"] -= 1.0
    (project.folder / "better.json").write_text(json.dumps(before))
    changed = ("--baseline", "better.json", "--max-regression", "nll=0.001")
    run = tool(*words, *changed, cwd=project.folder)
    assert run.code == 1
    gate = json.loads(run.out)["gate"]
    assert [check["passed"] for check in gate["checks"]] == [True, False]
    assert {each["set"] for each in gate["baseline"]["changes"]} == {"clean", "shifted"}
    alone = tool("evaluate", "--k", 20, "--baseline", "before.json", "--max-regression", "nll=1", cwd=project.folder)
    assert alone.code == 4


def test_every_format_names_the_set(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--k", 20, "--test", "clean.csv", "--test", "shifted.csv")
    for kind in ("table", "markdown", "csv", "tsv"):
        out = tool(*words, "--format", kind, cwd=project.folder).out
        heading = next(line for line in out.splitlines() if "method" in line)
        assert heading.strip("| ").startswith("set"), kind
        assert out.count("clean") >= 4, kind
    lines = [json.loads(line) for line in tool(*words, "--format", "jsonl", cwd=project.folder).out.splitlines()]
    blocks = [(line["set"], line["method"]) for line in lines]
    assert blocks == [(name, own) for name in ("clean", "shifted") for own in ("gradient", "map", "norm", "full")]
    for kind in ("junit", "github"):
        out = tool(*words, "--format", kind, "--fail-if", "nll > -9", cwd=project.folder).out
        assert "clean/gradient (k = 20)" in out
        assert "shifted/gradient (k = 20)" in out
    table = tool(*words, "--format", "table", cwd=project.folder).out
    assert "test rows clean 20, shifted 20" in table
    assert "shifted − clean, the same rows:" in table
    changes = table[table.index("shifted − clean") :].split("\n\n")[0].splitlines()
    assert [line.partition(":")[0] for line in changes[1:]] == ["  gradient (k = 20)", "  map"]
    assert all(len(line) <= 80 for line in changes)
    assert "On shifted, the NLL of gradient (k = 20) is " in table


def test_pictures_and_reports_are_about_the_first_set(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--k", 20, "--test", "clean.csv", "--test", "shifted.csv", "--review", 3)
    for kind in ("curves", "calibration", "scatter", "risk-coverage"):
        plot = ("--plot", f"{kind}.svg", "--plot-kind", kind)
        run = tool(*words, *plot, "--format", "json", cwd=project.folder)
        assert "it shows clean, the first of the sets" in run.err
        assert "of clean" in (project.folder / f"{kind}.svg").read_text(), kind
    assert run.json()["review"]["set"] == "clean"
    assert tool(*words, "--report", "r.html", cwd=project.folder).code == 0
    report = (project.folder / "r.html").read_text()
    assert "Of the first set of test rows, clean." in report
    assert report.count("<td>shifted</td>") == 4
    assert "shifted − clean" in report


def test_predictions_have_a_column(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--k", 20, "--test", "clean.csv", "--test", "other.csv")
    assert tool(*words, "--predictions", "p.jsonl", cwd=project.folder).code == 0
    lines = [json.loads(line) for line in (project.folder / "p.jsonl").read_text().splitlines()]
    assert [line["set"] for line in lines] == ["clean"] * 20 + ["other"] * 9
    assert next(iter(lines[0])) == "set"
    refused(tool(*words, "--predictions", "p.safetensors", cwd=project.folder), "one set of test rows, there are 2")
    one = ("evaluate", "--k", 20, "--test", "other.csv", "--predictions", "p.safetensors")
    assert tool(*one, cwd=project.folder).code == 0


def test_a_sweep_has_the_mean_of_every_set(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--method", "random", "--k", 5, "--seed", 0, "--seed", 1, "--json")
    result = tool(*words, "--test", "clean.csv", "--test", "shifted.csv", cwd=project.folder).json()
    assert [(row["seed"], row["set"]) for row in result["rows"]] == [
        *((0, "clean"), (0, "shifted"), (1, "clean"), (1, "shifted"))
    ]
    for mean in result["mean"]:
        values = [row["nll"] for row in result["rows"] if row["set"] == mean["set"]]
        assert mean["nll"] == pytest.approx(np.mean(values))
        assert mean["nll_se"] == pytest.approx(np.std(values, ddof=1) / math.sqrt(2))
    (change,) = [own for own in result["differences"] if (own["method"], own["metric"]) == ("random", "nll")]
    nll = {(row["seed"], row["set"]): row["nll"] for row in result["rows"]}
    each = [nll[seed, "shifted"] - nll[seed, "clean"] for seed in (0, 1)]
    assert change["difference"] == pytest.approx(np.mean(each))
    assert change["standard_error"] == pytest.approx(np.std(each, ddof=1) / math.sqrt(2))
    assert len(result["checkpoints"][0]["differences"]) > 0


def test_a_stored_posterior_predicts_any_file(tool: Tool, each_task: Project) -> None:
    folder = each_task.folder
    words = ("--test", "clean.csv", "--test", "shifted.csv", "--json")
    result = tool("evaluate", "--k", 20, *words, cwd=folder).json()
    stored = result["artifacts"]["posterior-gradient-k20"]
    served = tool("evaluate", "--posterior", stored, *words, cwd=folder).json()
    assert [row["set"] for row in served["rows"]] == ["clean", "shifted"]
    for found, expected in zip(served["rows"], result["rows"], strict=True):
        assert found["nll"] == pytest.approx(expected["nll"], rel=1e-9)
    by_place = {(own["method"], own["metric"]): own for own in result["differences"]}
    for own in served["differences"]:
        expected = by_place[own["method"], own["metric"]]
        assert own["standard_error"] == pytest.approx(expected["standard_error"], rel=1e-7)
    with open(folder / "clean.csv", newline="") as file:
        table = [row[:3] for row in csv.reader(file)]
    (folder / "new.csv").write_text("\n".join(map(",".join, table)) + "\n")
    (folder / "data.csv").unlink()
    new = ("evaluate", "--posterior", stored, "--test", "new.csv", "--predictions", "p.jsonl", "--json")
    run = tool(*new, cwd=folder)
    assert "the test.new rows have no targets" in run.err
    (row,) = run.json()["rows"]
    assert row["nll"] is None
    assert row["mean_std"] == pytest.approx(result["rows"][0]["mean_std"], rel=1e-9)


def test_a_dry_run_counts_all_sets(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--k", 20, "--test", "clean.csv", "--test", "other.csv", "--json")
    planned = tool(*words, "--dry-run", cwd=project.folder).json()
    assert (planned["n_test.clean"], planned["n_test.other"]) == (20, 9)
    made = tool(*words, cwd=project.folder).json()["artifacts"]
    assert set(planned["files"]) == set(made)


def test_files_of_the_command_line_may_be_anywhere(tool: Tool, project: Project, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (project.folder / "shifted.csv").rename(away / "x=1.csv")
    words = ("evaluate", "--spec", project.folder / "sublaplace.yaml", "--k", 20, "--json")
    result = tool(*words, "--test", "moved=x=1.csv", cwd=away).json()
    assert result["test_sets"] == [{"name": "moved", "rows": 20}]
    refused(tool(*words, "--test", "x=1.csv", cwd=away), "1.csv", "no such file")
    run = tool(*words, "--test", "b=x=1.csv", "-o", "x=1.csv", cwd=away)
    refused(run, "x=1.csv", "exists")


def test_an_array_file_keeps_the_names_of_its_arrays(tool: Tool, project: Project) -> None:
    x, y = project.x.astype(np.float32), project.y
    project.npz(x_test=x[40:], y_test=y[40:])
    test = {"arrays": {"input": "x_test", "target": "y_test"}}
    with_test(project, test)
    alone = tool("evaluate", "--k", 20, "--json", cwd=project.folder).json()
    np.savez(project.folder / "b.npz", x_test=x[40:], y_test=y[40:])
    moved = tool("evaluate", "--k", 20, "--json", "--test", "b.npz", cwd=project.folder).json()
    assert moved["rows"] == alone["rows"]
    refused(tool("evaluate", "--test", "clean.csv", cwd=project.folder), "it is a .csv file, but data.format", "npz")


def test_what_is_refused(tool: Tool, project: Project) -> None:
    folder = project.folder
    refused(
        tool("evaluate", "--test", "clean.npz", cwd=folder), "it is a .npz file, but data.format of the spec is csv"
    )
    refused(tool("evaluate", "--test", "gone.csv", cwd=folder), "gone.csv", "no such file", "working folder")
    twice = ("--test", "clean.csv", "--test", "clean=other.csv")
    refused(tool("evaluate", *twice, cwd=folder), "two sets of the name 'clean'")
    refused(tool("evaluate", "--test", "2-x.csv", cwd=folder), "cannot be called '2-x'", "--test NAME=2-x.csv")
    refused(tool("evaluate", "--test", "a=", cwd=folder), "names no file")
    for command in ("fit", "jacobians", "select"):
        refused(tool(command, "--test", "clean.csv", cwd=folder), "--test")
    with_test(project, {"clean": {"path": "clean.csv"}, "gone": {"path": "gone.csv"}})
    refused(tool("evaluate", cwd=folder), "data.splits.test.gone.path", "gone.csv is missing")


def test_other_commands_take_the_first_set(tool: Tool, project: Project) -> None:
    """And read no other where nothing is predicted; `jacobians` stores all of them."""
    with_test(project, {"clean": {"path": "clean.csv"}, "shifted": {"path": "shifted.csv"}})
    stored = tool("jacobians", "--json", cwd=project.folder).json()["artifacts"]
    assert {"jacobians-test.clean", "jacobians-test.shifted"} <= set(stored)
    (project.folder / "shifted.csv").unlink()
    calibrated = ("fit", "--k", 20, "--rescale", "calibrated", "--json")
    assert "jacobians-test.clean" in tool(*calibrated, cwd=project.folder).json()["artifacts"]


def test_the_spec_s_own_rows_are_said_to_be_replaced(tool: Tool, project: Project) -> None:
    one = tool("evaluate", "--k", 5, "--test", "shifted.csv", cwd=project.folder)
    assert "--test replaces the test rows of the spec; to compare with their file, name it too" in one.err
    assert "--test replaces" not in tool("evaluate", "--k", 5, cwd=project.folder).err
