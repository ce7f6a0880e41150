"""Several checkpoints or seeds at once: a row for each, the mean and its standard error."""

from __future__ import annotations

import csv
import json
import math
import statistics

import pytest
from cli.cli_tools import Project, Tool, core, mlp, refused, save, strict
from junitparser import JUnitXml


@pytest.fixture
def runs(project: Project) -> Project:
    """Three trainings of one network."""
    (project.folder / "runs").mkdir()
    for seed in range(3):
        save(mlp([3, 8, 1], seed=seed), project.folder / "runs" / f"{seed}.safetensors")
    return project


PATTERN = ("--checkpoint", "runs/*.safetensors")


def test_rows_for_each_and_their_mean(tool: Tool, runs: Project) -> None:
    words = ("evaluate", "--method", "gradient,norm", "--k", "5,10", "--json")
    result = tool(*words, *PATTERN, cwd=runs.folder).json()
    names = [f"runs/{seed}.safetensors" for seed in range(3)]
    assert [row["checkpoint"] for row in result["rows"]] == [name for name in names for _ in range(3)]
    assert [(row["method"], row["k"]) for row in result["mean"]] == [("gradient", 5), ("gradient", 10), ("norm", None)]
    for i, name in enumerate(names):
        alone = tool(*words, "--checkpoint", name, cwd=runs.folder).json()
        assert [{"checkpoint": name, "seed": 0, **row} for row in alone["rows"]] == result["rows"][3 * i : 3 * i + 3]
        assert result["checkpoints"][i]["full"] == alone["full"]
        assert result["checkpoints"][i]["weights_sha256"] == alone["provenance"]["weights_sha256"]
    for metric in ("w2", "nll", "rmse", "retained"):
        values = [row[metric] for row in result["rows"][::3]]
        assert result["mean"][0][metric] == pytest.approx(statistics.mean(values), rel=1e-12)
        assert result["mean"][0][f"{metric}_se"] == pytest.approx(statistics.stdev(values) / math.sqrt(3), rel=1e-9)
    assert result["mean"][0]["accuracy"] is None
    assert result["mean"][0]["why"]["accuracy"] == "a metric of classification"
    assert result["mean"][0]["n"] == 3
    assert result["noise_variance"] is None
    assert result["n_params"] == runs.size


def test_named_one_by_one_is_the_same_as_a_pattern(tool: Tool, runs: Project) -> None:
    named = [word for seed in range(3) for word in ("--checkpoint", f"runs/{seed}.safetensors")]
    words = ("evaluate", "--k", 5, "--json")
    first, second = tool(*words, *named, cwd=runs.folder).json(), tool(*words, *PATTERN, cwd=runs.folder).json()
    assert core(first)["rows"] == core(second)["rows"]


def test_seeds(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--method", "random", "--k", 5, "--json")
    result = tool(*words, "--seed", 1, "--seed", 2, cwd=project.folder).json()
    assert [row["seed"] for row in result["rows"]] == [1, 2]
    alone = tool(*words, "--seed", 2, cwd=project.folder).json()
    assert result["rows"][1]["w2"] == alone["rows"][0]["w2"] != result["rows"][0]["w2"]


def test_the_same_run_counts_once(tool: Tool, project: Project) -> None:
    twice = ("--checkpoint", "model.safetensors", "--checkpoint", "./model.safetensors", "--seed", 3, "--seed", 3)
    result = tool("evaluate", "--k", 5, *twice, "--json", cwd=project.folder).json()
    assert [row["seed"] for row in result["rows"]] == [3]


def test_seeds_of_one_checkpoint_are_no_further_trainings(tool: Tool, runs: Project) -> None:
    words = ("evaluate", "--k", 5, *PATTERN, "--json")
    one = tool(*words, cwd=runs.folder).json()["mean"][0]
    three = tool(*words, "--seed", 0, "--seed", 1, "--seed", 2, cwd=runs.folder).json()["mean"][0]
    assert three["n"] == 9
    assert three["w2"] == pytest.approx(one["w2"], rel=1e-12)
    assert three["w2_se"] == pytest.approx(one["w2_se"], rel=1e-9), "gradient does not depend on the seed"


def test_k_auto_in_a_sweep(tool: Tool, runs: Project) -> None:
    words = ("evaluate", "--k", "auto", *PATTERN)
    for retain in (0.3, 0.6):
        assert (
            tool(*words, "--retain", retain, "-o", f"{retain}.json", "--plot", f"{retain}.svg", cwd=runs.folder).code
            == 0
        )
    low, high = (json.loads((runs.folder / f"{retain}.json").read_text())["mean"][0] for retain in (0.3, 0.6))
    assert low["n"] == 3
    assert (low["k"], low.get("ks")) != (high["k"], high.get("ks"))
    run = tool(*words, "--retain", 0.6, "--baseline", "0.3.json", "--max-regression", "w2=9", cwd=runs.folder)
    assert run.code == 4


def test_checks_of_seeds_have_names_of_their_own(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--method", "random", "--k", 5, "--seed", 0, "--seed", 1, "--fail-if", "w2 > 0")
    run = tool(*words, "--format", "junit", cwd=project.folder)
    cases = [case for suite in JUnitXml.fromstring(run.out.encode()) for case in suite]
    assert len({(case.classname, case.name) for case in cases}) == 2


def test_a_pattern_of_one_has_a_mean_and_no_error(tool: Tool, runs: Project) -> None:
    result = tool("evaluate", "--k", 5, "--checkpoint", "runs/0*", "--json", cwd=runs.folder).json()
    assert result["mean"][0]["n"] == 1
    assert result["mean"][0]["w2_se"] is None
    assert "w2_se" in result["mean"][0]["why"]


def test_a_table_names_them_and_csv_has_them_all(tool: Tool, runs: Project) -> None:
    words = ("evaluate", "--k", 5, *PATTERN)
    shown = tool(*words, "--format", "table", cwd=runs.folder).out
    assert "runs/2.safetensors" in shown
    assert " ± " in shown
    rows = list(csv.DictReader(tool(*words, "--format", "csv", cwd=runs.folder).out.splitlines()))
    assert [row["checkpoint"] for row in rows[:4]] == [*(f"runs/{s}.safetensors" for s in range(3)), "mean"]


def test_progress_says_which_and_how_long(tool: Tool, runs: Project) -> None:
    err = tool("evaluate", "--k", 5, *PATTERN, cwd=runs.folder).err
    assert "run 1 of 3: runs/0.safetensors" in err
    assert "left" in err
    assert tool("evaluate", "--k", 5, *PATTERN, "-q", cwd=runs.folder).err_but_sanity() == ""


def test_limits_apply_to_every_row_and_a_baseline_to_the_means(tool: Tool, runs: Project) -> None:
    words = ("evaluate", "--k", 5, *PATTERN)
    assert tool(*words, "-o", "main.json", cwd=runs.folder).code == 0
    run = tool(*words, "--fail-if", "w2 > 0", "--json", cwd=runs.folder)
    assert run.code == 1
    assert [check["checkpoint"] for check in strict(run.out)["gate"]["checks"]] == [
        f"runs/{s}.safetensors" for s in range(3)
    ]
    again = tool(*words, "--baseline", "main.json", "--max-regression", "w2=1%", "--json", cwd=runs.folder)
    assert again.code == 0
    assert len(strict(again.out)["gate"]["checks"]) == 1
    one = ("evaluate", "--k", 5, "--baseline", "main.json", "--max-regression", "w2=1%")
    assert tool(*one, cwd=runs.folder).code == 4


def test_predictions_name_the_checkpoint(tool: Tool, runs: Project) -> None:
    words = ("evaluate", "--k", 5, *PATTERN)
    assert tool(*words, "--predictions", "p.csv", cwd=runs.folder).code == 0
    lines = list(csv.DictReader((runs.folder / "p.csv").read_text().splitlines()))
    assert len(lines) == 3 * 8
    assert lines[-1]["checkpoint"] == "runs/2.safetensors"
    assert len({line["mean"] for line in lines}) == len(lines)
    refused(tool(*words, "--predictions", "p.safetensors", cwd=runs.folder), ".safetensors")


def test_a_run_folder_of_its_own_for_each(tool: Tool, runs: Project) -> None:
    words = ("evaluate", "--k", 5, "--run-dir", "r", "--json")
    first = tool(*words, *PATTERN, cwd=runs.folder).json()
    assert len(list((runs.folder / "r").iterdir())) == 3
    run = tool(*words, "--checkpoint", "runs/2.safetensors", "--checkpoint", "runs/0.safetensors", cwd=runs.folder)
    assert run.err.count("reusing predictions-gradient-k5") == 2, "whatever else is in the sweep"
    assert strict(run.out)["rows"][1] == first["rows"][0]


def test_a_dry_run_adds_up(tool: Tool, runs: Project) -> None:
    result = tool("evaluate", "--k", 5, *PATTERN, "--dry-run", "--json", cwd=runs.folder).json()
    one = tool("evaluate", "--k", 5, "--dry-run", "--json", cwd=runs.folder).json()
    assert result["runs"] == 3
    assert result["bytes_to_write"] == 3 * one["bytes_to_write"]
    assert not (runs.folder / ".sublaplace").exists()


def test_what_a_sweep_cannot_do(tool: Tool, runs: Project) -> None:
    refused(tool("evaluate", "--checkpoint", "no/*.pt", cwd=runs.folder), "no/*.pt", "no file matches")
    for command in ("jacobians", "select", "fit"):
        refused(tool(command, *PATTERN, cwd=runs.folder), "one checkpoint", "for c in")
    refused(tool("evaluate", "--seed", 1, "--seed", -1, cwd=runs.folder), "out of range")
    refused(tool("evaluate", "--checkpoint", "a" * 300 + "*", cwd=runs.folder), "no file matches")
    absent = ("--checkpoint", "runs/0.safetensors", "--checkpoint", "runs/absent.safetensors")
    refused(tool("evaluate", *absent, cwd=runs.folder), "runs/absent.safetensors", "no such file")
    assert not (runs.folder / ".sublaplace").exists(), "known before the first run"
    (runs.folder / "runs" / "5.safetensors").mkdir()  # a folder is no checkpoint
    (runs.folder / "runs" / "9.safetensors").write_text("broken")
    refused(tool("evaluate", "--k", 5, *PATTERN, "-o", "x.json", cwd=runs.folder), "9.safetensors")
    assert not (runs.folder / "x.json").exists()


def test_each_run_is_kept_where_a_single_one_would_be(tool: Tool, runs: Project) -> None:
    assert tool("evaluate", "--k", 5, *PATTERN, cwd=runs.folder).code == 0
    run = tool("evaluate", "--k", 5, "--checkpoint", "runs/1.safetensors", cwd=runs.folder)
    assert "reusing predictions-gradient-k5" in run.err
    folders = list((runs.folder / ".sublaplace").iterdir())
    assert all(
        json.loads((folder / "evaluation.json").read_text())["schema"] == 1 for folder in folders if folder.is_dir()
    )
