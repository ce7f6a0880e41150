"""`--k auto`, several k at once, `--rescale`, `norm`, `constant` and `variance`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.cli_tools import Project, Tool, contents, core, refused
from safetensors.torch import load_file

ROWS = ("w2", "mean_std", "ipv", "retained", "nll")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "p")


def rows(tool: Tool, project: Project, *words: str, command: str = "evaluate") -> list[dict]:
    return tool(command, *words, "--json", cwd=project.folder).json()["rows"]


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_many_k_at_once_are_each_k_alone(tool: Tool, tmp_path: Path, task: str) -> None:
    outputs = 3 if task == "multiclass" else 1
    together = Project(tmp_path / "together", task=task, outputs=outputs)
    found = rows(
        tool, together, "--method", "gradient,greedy,variance,last-k", "--k", "3,10,25,30", "--dtype", "float64"
    )
    for row in found[::3]:
        alone = Project(tmp_path / f"{row['method']}-{row['k']}", task=task, outputs=outputs)
        words = ["--method", row["method"], "--k", str(row["k"]), "--dtype", "float64"]
        (expected,) = rows(tool, alone, *words)
        for key in ROWS:
            assert row[key] == pytest.approx(expected[key], rel=1e-8, abs=1e-12), (key, row["method"], row["k"])


def test_auto_takes_the_smallest_k_that_retains_enough(tool: Tool, project: Project) -> None:
    run = tool(
        "evaluate", "--method", "gradient,greedy,full", "--k", "auto", "--retain", "0.8", "--json", cwd=project.folder
    )
    first, second, full = run.json()["rows"]
    assert full["k"] == project.size
    for row in (first, second):
        assert row["retained"] >= 0.8
        (before,) = rows(tool, project, "--method", row["method"], "--k", str(row["k"] - 1))
        assert before["retained"] < 0.8
        assert f"{row['method']}: k = {row['k']} retains" in run.err
    again = tool("select", "--method", "greedy", "--k", "auto", "--retain", "0.8", "--json", cwd=project.folder)
    assert again.json()["k"] == second["k"]
    assert "reusing path-greedy" in again.err
    assert rows(tool, project, "--method", "gradient", "--k", "auto", "--retain", "1")[0]["retained"] == pytest.approx(
        1
    )


AUTO = [
    (["--k", "auto", "--retain", "0"], "out of range"),
    (["--k", "auto", "--retain", "1.1"], "out of range"),
    (["--k", "10", "--retain", "0.5"], "--retain needs --k auto"),
    (["--retain", "0.5"], "--retain needs --k auto"),
    (["--k", "auto", "--method", "greedy", "--pool", "2k"], "--pool"),
    (["--k", "auto", "--method", "variance", "--pool", "paper"], "--pool"),
    (["--k", "auto", "--method", "neural-linear"], "takes no k"),
    (["--k", "auto,5"], "not a positive integer"),
    (["--rescale", "sacle"], "scale"),
]


@pytest.mark.parametrize(
    ("words", "message"), AUTO, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_cannot_be_asked_for(tool: Tool, project: Project, words: list[str], message: str) -> None:
    before = contents(project.folder)
    refused(tool("evaluate", *words, cwd=project.folder), message)
    assert contents(project.folder) == before


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_rescaled_rows_say_what_was_done_and_keep_what_is_not_theirs(tool: Tool, tmp_path: Path, task: str) -> None:
    project = Project(tmp_path / "p", task=task, outputs=3 if task == "multiclass" else 1)
    words = ["--method", "gradient,last-k,norm,constant", "--k", "5,30"]
    plain = rows(tool, project, *words)
    for kind in ("scale", "hybrid"):
        scaled = rows(tool, project, *words, "--rescale", kind)
        for old, new in zip(plain, scaled, strict=True):
            assert new["method"] == old["method"]
            if new["method"] in ("norm", "constant"):
                assert new == old
                assert new["ipv"] is None
                assert "no posterior" in new["why"]["ipv"]
                continue
            assert (old["rescale"], old["remainder"]) == (1.0, 0.0)
            assert (new["ipv"], new["retained"]) == (old["ipv"], old["retained"])
            assert new["rescale"] > 0
            if kind == "scale":
                assert new["remainder"] == 0.0
                assert new["mean_std"] == pytest.approx(old["mean_std"] * new["rescale"] ** 0.5, rel=1e-9)
    again = tool("evaluate", *words, "--rescale", "hybrid", "--json", cwd=project.folder)
    assert again.json()["rows"] == scaled
    assert "reusing predictions-gradient-k5-hybrid" in again.err


def test_fit_stores_the_numbers_that_evaluate_uses(tool: Tool, project: Project) -> None:
    made = tool("fit", "--method", "gradient", "--k", "10", "--rescale", "hybrid", "--json", cwd=project.folder).json()
    (row,) = rows(tool, project, "--method", "gradient", "--k", "10", "--rescale", "hybrid")
    assert (made["rescale"], made["remainder"]) == (row["rescale"], row["remainder"])
    assert "posterior-gradient-k10-hybrid" in made["artifacts"]
    from_spec = project.save(project.changed(posterior={"prior_precision": 1.0, "rescale": "hybrid"}), "spec.yaml")
    run = tool("evaluate", "--spec", from_spec, "--method", "gradient", "--k", "10", "--json", cwd=project.folder)
    assert core(run.json())["rows"] == [row]
    assert json.loads(run.out)["rows"][0]["rescale"] != 1.0


def test_the_variance_method_prefers_the_rows_it_is_told_of(tool: Tool, project: Project) -> None:
    words = ["--method", "variance", "--k", "4", "--full", "exact"]
    (train,) = rows(tool, project, *words)
    (test,) = rows(tool, project, *words, "--reference", "test")
    assert test["w2"] <= train["w2"]


def test_a_bracket_holds_the_exact_distance(tool: Tool, project: Project) -> None:
    words = ["--method", "gradient,greedy,norm", "--k", "5,20"]
    exact = rows(tool, project, *words)
    run = tool("evaluate", *words, "--full", "bracket", "--full-rows", "8", "--json", cwd=project.folder)
    result = run.json()
    assert result["bracket"] == {"rows": 8, "sets": 2}
    assert result["full"] is None
    for row, known in zip(result["rows"], exact, strict=True):
        assert row["w2"] is None
        assert "between w2_low and w2_high" in row["why"]["w2"]
        assert row["w2_low"] <= known["w2"] * (1 + 1e-6)
        assert known["w2"] <= row["w2_high"] * (1 + 1e-6)
    refused(tool("evaluate", "--full-rows", "8", cwd=project.folder), "--full bracket")
    refused(tool("evaluate", "--method", "norm", "--full", "bracket", cwd=project.folder), "sub-network")


@pytest.mark.parametrize("method", ["greedy", "variance"])
def test_a_pool_that_grows_with_k_gives_each_k_its_own_choice(tool: Tool, project: Project, method: str) -> None:
    words = ["--method", method, "--pool", "2k", "--dtype", "float64"]
    alone = tool("select", *words, "--k", "4", "--json", "--run-dir", "a", cwd=project.folder).json()
    found = tool("evaluate", *words, "--k", "4,15", "--json", "--run-dir", "b", cwd=project.folder).json()
    one, other = (load_file(Path(result["artifacts"][f"indices-{method}-k4"]))["indices"] for result in (alone, found))
    assert one.tolist() == other.tolist()


def test_a_pool_too_small_for_what_is_to_be_retained(tool: Tool, project: Project) -> None:
    run = tool("select", "--method", "greedy", "--k", "auto", "--retain", "0.99999", "--pool", "9", cwd=project.folder)
    refused(run, "all 9 candidates of --pool", "enlarge --pool")


def test_nothing_outside_is_nothing_to_add(tool: Tool, project: Project) -> None:
    (row,) = rows(tool, project, "--method", "gradient", "--k", str(project.size), "--rescale", "hybrid")
    assert row["remainder"] == 0.0
    assert row["rescale"] == pytest.approx(1.0, rel=1e-6)
