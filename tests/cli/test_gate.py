"""Gates, baselines and their exit codes through the command line."""

from __future__ import annotations

import json

import pytest
from cli.cli_tools import Project, Tool, mlp, refused, save, strict

from sublaplace_cli.results.metric_table import METRIC_VERSION


def gate(tool: Tool, project: Project, *words, code: int, k: object = "5,10", **more):
    run = tool("evaluate", "--k", k, "--json", *words, cwd=project.folder, **more)
    assert run.code == code, run.err
    return strict(run.out)["gate"], run


def test_a_limit_that_holds_and_one_that_does_not(tool: Tool, project: Project) -> None:
    found, run = gate(tool, project, "--fail-if", "w2 > 100", code=0)
    assert found["passed"] is True
    assert [check["k"] for check in found["checks"]] == [5, 10]
    assert {"metric", "method", "k", "value", "limit", "passed"} <= found["checks"][0].keys()
    assert found["checks"][0]["limit"] == "max 100"
    assert "2 of 2 limits hold" in run.err
    found, run = gate(tool, project, "--fail-if", "w2 > 0", "--fail-if", "rmse < 0", code=1)
    assert [check["passed"] for check in found["checks"]] == [False, False, True, True]
    assert "failed: gradient (k = 5): w2" in run.err


def test_a_limit_on_what_is_not_known_is_4_and_1_wins(tool: Tool, project: Project) -> None:
    found, run = gate(tool, project, "--fail-if", "accuracy < 0.5", code=4)
    assert found["passed"] is None
    assert "not judged" in run.err
    gate(tool, project, "--fail-if", "accuracy < 0.5", "--fail-if", "w2 > 0", code=1)
    gate(tool, project, "--fail-if", "w2 > 1", "--full", "none", code=4)


def test_a_limit_may_name_the_row_it_is_about(tool: Tool, project: Project) -> None:
    found, run = gate(tool, project, "--fail-if", "full: w2 > 0", "--fail-if", "map: nll > 1e9", code=0)
    assert [(check["method"], check["metric"]) for check in found["checks"]] == [("full", "w2"), ("map", "nll")]
    assert "gate: 2 of 2 limits hold (rows: full (k = 41), map)" in run.err
    found, run = gate(tool, project, "--fail-if", "full: nll > -1e9", code=1)
    assert [check["method"] for check in found["checks"]] == ["full"]
    assert "failed: full (k = 41): nll = " in run.err
    found, _ = gate(tool, project, "--fail-if", "gradient (k = 10): w2 > 100", code=0)
    assert [check["k"] for check in found["checks"]] == [10]
    found, _ = gate(tool, project, "--fail-if", "w2 > 100", code=0)
    assert {check["method"] for check in found["checks"]} == {"gradient"}, "a reference has to be named"


def test_a_row_that_is_named_but_not_there(tool: Tool, project: Project) -> None:
    evaluate = ("evaluate", "--k", 5, "--fail-if")
    refused(tool(*evaluate, "ful: w2 > 1", cwd=project.folder), "unknown row 'ful'", "did you mean 'full'?")
    refused(tool(*evaluate, "greedy: w2 > 1", cwd=project.folder), "'greedy'", "--method is gradient")
    refused(tool(*evaluate, "full: nll > 1", "--full", "none", cwd=project.folder), "'full'", "--full exact")
    assert not (project.folder / ".sublaplace").exists(), "known before any computing"
    found, run = gate(tool, project, "--fail-if", "temperature: nll > 1", code=4)
    assert found["checks"][0]["passed"] is None
    assert "there is no such row, only gradient (k = 5), gradient (k = 10), map, norm, full (k = 41)" in run.err
    project.use(gate={"greedy: w2": {"max": 100}, "full: nll": {"max": 1e9}})
    found, _ = gate(tool, project, code=4)
    assert [check["passed"] for check in found["checks"]] == [None, True], "the spec serves many commands"


def test_a_reference_is_compared_with_that_of_the_baseline(tool: Tool, project: Project) -> None:
    tool("evaluate", "--k", 5, "-o", "base.json", cwd=project.folder)
    options = ("--baseline", "base.json", "--max-regression", "full: nll=0", "--max-regression", "map: rmse=0")
    found, _ = gate(tool, project, *options, code=0, k=5)
    assert [(check["method"], check["change"]) for check in found["checks"]] == [("full", 0), ("map", 0)]
    better = json.loads((project.folder / "base.json").read_text())
    better["full"]["nll"] -= 1
    (project.folder / "base.json").write_text(json.dumps(better))
    found, _ = gate(tool, project, *options, code=1, k=5)
    assert [check["passed"] for check in found["checks"]] == [False, True]
    (project.folder / "base.json").write_text(json.dumps({**better, "full": 3}))
    refused(tool("evaluate", "--k", 5, *options, cwd=project.folder), "base.json", "'full'")


def test_a_named_reference_is_judged_in_every_run_of_a_sweep(tool: Tool, project: Project) -> None:
    found, _ = gate(tool, project, "--seed", 0, "--seed", 1, "--fail-if", "full: nll > 1e9", code=0, k=5)
    assert [(check["method"], check["seed"]) for check in found["checks"]] == [("full", 0), ("full", 1)]


def test_without_a_limit_nothing_fails(tool: Tool, project: Project) -> None:
    found, _ = gate(tool, project, code=0)
    assert found is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fail-if", "nlll > 0"], ["unknown metric 'nlll'", "did you mean 'nll'"]),
        (["--fail-if", "w2 > nan"], ["finite"]),
        (["--fail-if", "w2 > inf"], ["finite"]),
        (["--fail-if", "w2"], ["is not a limit", "w2 > 0.1"]),
        (["--max-regression", "w2"], ["METRIC=AMOUNT"]),
        (["--max-regression", "rescale=1"], ["no better direction"]),
        (["--baseline", "nowhere.json"], ["--baseline nowhere.json", "No such file"]),
        (["--baseline", "sublaplace.yaml"], ["not JSON"]),
    ],
)
def test_wrong_gates_are_known_before_any_computing(tool: Tool, project: Project, options, words) -> None:
    refused(tool("evaluate", "--k", 5, *options, cwd=project.folder), *words)
    assert not (project.folder / ".sublaplace").exists()


@pytest.fixture
def baseline(tool: Tool, project: Project) -> str:
    run = tool("evaluate", "--method", "gradient,norm", "--k", "5,10", "-o", "main.json", cwd=project.folder)
    assert run.code == 0, run.err
    return "main.json"


def test_the_same_run_is_no_regression(tool: Tool, project: Project, baseline: str) -> None:
    words = ("--method", "gradient,norm", "--baseline", baseline, "--max-regression", "w2=0.0001%")
    found, _ = gate(tool, project, *words, "--max-regression", "coverage95_total=1e-9", code=0)
    assert len(found["checks"]) == 6
    assert {change["change"] for change in found["baseline"]["changes"] if change["metric"] == "nll"} == {0.0}


def test_other_weights_are_compared_and_may_be_worse(tool: Tool, project: Project, baseline: str) -> None:
    save(mlp([3, 8, 1], seed=1), project.folder / "other.safetensors")
    words = ("--checkpoint", "other.safetensors", "--baseline", baseline)
    codes = []
    for limit in ("rmse=0", "rmse=1000"):
        run = tool("evaluate", "--k", "5,10", *words, "--max-regression", limit, "--json", cwd=project.folder)
        codes.append(run.code)
        checks = strict(run.out)["gate"]["checks"]
        assert all(check["baseline"] is not None and check["change"] != 0 for check in checks)
    worse = strict(run.out)["gate"]["checks"][0]["change"] > 0
    assert codes == [1 if worse else 0, 0]


def test_another_k_method_or_other_data_is_4(tool: Tool, project: Project, baseline: str) -> None:
    words = ("--baseline", baseline, "--max-regression", "w2=50%")
    found, _ = gate(tool, project, *words, code=4, k=7)
    assert "no row of gradient at k = 7" in found["checks"][0]["why"]
    gate(tool, project, "--method", "greedy", *words, code=4)
    gate(tool, project, *words, "--rescale", "scale", code=4)
    project.spec["data"]["splits"]["test"] = {"rows": "23:"}
    project.save()
    found, _ = gate(tool, project, *words, code=4)
    assert found["checks"][0]["why"] == "the baseline is of other data"
    gate(tool, project, "--max-regression", "w2=50%", code=4)


def test_a_moved_data_file_is_the_same_data(tool: Tool, project: Project, baseline: str) -> None:
    (project.folder / "data.csv").rename(project.folder / "moved.csv")
    project.spec["data"]["path"] = "moved.csv"
    project.save()
    gate(tool, project, "--baseline", baseline, "--max-regression", "w2=1%", code=0)


def test_the_gate_of_the_spec(tool: Tool, project: Project) -> None:
    gate(tool, project, code=0)
    before = sorted(path.name for path in (project.folder / ".sublaplace").iterdir())
    project.use(gate={"w2": {"max": 0.0}, "nll": {"min": -100, "max": 100}})
    found, _ = gate(tool, project, code=1)
    assert [check["limit"] for check in found["checks"]] == ["max 0"] * 2 + ["min -100"] * 2 + ["max 100"] * 2
    project.use(gate={"w2": {"max": 100, "max_regression": "5%"}})
    found, _ = gate(tool, project, code=4)
    assert sorted(path.name for path in (project.folder / ".sublaplace").iterdir()) == before, (
        "a limit changes no number"
    )


def test_a_gate_also_judges_a_posterior_alone(tool: Tool, project: Project) -> None:
    assert tool("fit", "--k", 5, "--run-dir", "r", cwd=project.folder).code == 0
    words = ("evaluate", "--posterior", "r/posterior-gradient-k5.safetensors", "--json")
    assert tool(*words, "--fail-if", "nll > 1000", cwd=project.folder).code == 0
    assert tool(*words, "--fail-if", "nll > -1000", cwd=project.folder).code == 1
    assert tool(*words, "--fail-if", "w2 > 0", cwd=project.folder).code == 4


def test_significance(tool: Tool, project: Project) -> None:
    result = tool("evaluate", "--k", 5, "--json", cwd=project.folder).json()
    row = result["rows"][0]
    near, far = row["w2"] - 0.5 * row["w2_se"], row["w2"] - 2 * row["w2_se"]
    gate(tool, project, "--fail-if", f"w2 > {near!r}", k=5, code=1)
    found, run = gate(tool, project, "--fail-if", f"w2 > {near!r}", "--significant", k=5, code=0)
    assert found["checks"][0]["within_error"] is True
    assert "within error" in run.err
    gate(tool, project, "--fail-if", f"w2 > {far!r}", "--significant", k=5, code=1)


def test_a_broken_limit_still_prints_and_writes_everything(tool: Tool, project: Project) -> None:
    words = ("--fail-if", "w2 > 0", "-o", "out.json", "-o", "out.xml", "-o", "out.md", "--predictions", "p.csv")
    run = tool("evaluate", "--k", 5, *words, cwd=project.folder)
    assert run.code == 1
    assert run.out.startswith("method\tk\t")
    assert strict((project.folder / "out.json").read_text())["gate"]["passed"] is False
    assert "failed: gradient (k = 5)" in (project.folder / "out.md").read_text()
    assert (project.folder / "p.csv").exists()


def test_another_task_on_the_same_data_is_not_compared(tool: Tool, make) -> None:
    project = make("multiclass", 3)
    words = ("evaluate", "--k", 5, "--json")
    assert tool(*words, "-o", "main.json", cwd=project.folder).code == 0
    for classes in ([0], [1, 2]):
        wrap = {"binary-logodds": {"classes": classes}}
        path = project.save(
            project.changed(task="binary", model={**project.spec["model"], "wrap": wrap}), "binary.yaml"
        )
        run = tool(*words, "--spec", path, "--baseline", "main.json", "--max-regression", "nll=100", cwd=project.folder)
        assert run.code == 4
        assert strict(run.out)["gate"]["checks"][0]["why"] == "the baseline is of other data"


def test_a_rescaled_posterior_alone_says_so(tool: Tool, project: Project) -> None:
    fit = ("fit", "--k", 5, "--run-dir", "r")
    assert tool(*fit, cwd=project.folder).code == tool(*fit, "--rescale", "scale", cwd=project.folder).code == 0
    plain, scaled = (f"r/posterior-gradient-k5{kind}.safetensors" for kind in ("", "-scale"))
    assert tool("evaluate", "--posterior", plain, "-o", "main.json", cwd=project.folder).code == 0
    words = ("evaluate", "--posterior", scaled, "--baseline", "main.json", "--max-regression", "nll=100")
    assert tool(*words, cwd=project.folder).code == 4
    for path in (plain, scaled):
        run = tool("evaluate", "--posterior", path, "--predictions", path, "--overwrite", cwd=project.folder)
        refused(run, "is an input of the run")


def test_the_summary_of_a_job(tool: Tool, project: Project) -> None:
    words = ("evaluate", "--method", "map,gradient", "--k", 5, "--format", "github", "--fail-if", "w2 > 0")
    summary = {"GITHUB_STEP_SUMMARY": str(project.folder / "summary.md")}
    tool(*words, "--dry-run", cwd=project.folder, env=summary)
    assert not (project.folder / "summary.md").exists()
    for _ in range(2):
        assert tool(*words, cwd=project.folder, env={**summary, "LC_ALL": "C", "PYTHONUTF8": "0"}).code == 1
    assert (project.folder / "summary.md").read_text().count("### sublaplace") == 2
    run = tool(*words, cwd=project.folder, env={"GITHUB_STEP_SUMMARY": str(project.folder)})
    assert run.code == 1
    assert "the summary was not written" in run.err


def test_a_baseline_is_never_overwritten(tool: Tool, project: Project, baseline: str) -> None:
    before = (project.folder / baseline).read_text()
    run = tool("evaluate", "--k", 5, "--baseline", baseline, "-o", baseline, "--overwrite", cwd=project.folder)
    refused(run, "is an input of the run")
    assert (project.folder / baseline).read_text() == before
    assert json.loads(before)["provenance"]["metrics"] == METRIC_VERSION
