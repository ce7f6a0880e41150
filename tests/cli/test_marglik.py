"""`marglik` and `tune` in the spec: the optimum is found, said and kept, and everything then rests on it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from cli.cli_tools import Project, Tool, refused
from safetensors.torch import load_file

TASKS = pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])


def evidence(project: Project, prior: dict[str, float], sigma2: float, S: list[int] | None = None) -> float:
    """The Laplace evidence of all parameters, or of those in S, dense."""
    model = project.model.double()
    x, y = (t[:22] for t in project.tensors())
    f, J = reference.jacobian(model, x, 22)
    H = reference.output_hessian(project.task, f, sigma2)
    theta = torch.cat([tensor.detach().flatten() for tensor in model.parameters()])
    v = torch.cat(
        [
            torch.full((tensor.numel(),), prior.get(name, prior["*"])).double()
            for name, tensor in model.named_parameters()
        ]
    )
    chosen = torch.arange(len(theta)) if S is None else torch.tensor(S)
    omega = reference.precision(J, H, v)[chosen][:, chosen]
    theta, v = theta[chosen], v[chosen]
    if project.task == "regression":
        fit = -0.5 * ((y - f).square() / sigma2 + math.log(2 * math.pi * sigma2)).sum()
    elif project.task == "binary":
        fit = -torch.nn.functional.softplus(torch.where(y == 1, -f, f)).sum()
    else:
        fit = torch.log_softmax(f, 1).gather(1, y.long()).sum()
    dets = torch.linalg.slogdet(omega).logabsdet - v.log().sum()
    return float(fit - 0.5 * (v * theta.square()).sum() - 0.5 * dets)


def run(tool: Tool, project: Project, *words: str) -> dict:
    return tool("evaluate", "--k", "10", "--dtype", "float64", "--json", *words, cwd=project.folder).json()


@TASKS
@pytest.mark.parametrize("groups", [["*"], ["0.weight", "*"]], ids=["one", "two"])
def test_the_optimum_is_found_and_beats_what_is_near(tool: Tool, tmp_path: Path, task: str, groups: list[str]) -> None:
    project = Project(tmp_path / "p", task=task, outputs=3 if task == "multiclass" else 1)
    asked = dict.fromkeys(groups, "marglik") if len(groups) > 1 else "marglik"
    noise = {"noise_variance": "marglik"} if task == "regression" else {}
    project.use(posterior={"prior_precision": asked, **noise})
    result = run(tool, project)
    tuned = result["tuned"]
    found = tuned["prior_precision"] if len(groups) > 1 else {"*": tuned["prior_precision"]}
    sigma2 = tuned["noise_variance"] or 1.0
    assert result["noise_variance"] == (sigma2 if task == "regression" else None)
    assert result["prior_precision"] == tuned["prior_precision"]
    best = evidence(project, found, sigma2)
    assert tuned["log_evidence"] == pytest.approx(best, rel=1e-7)
    assert tuned["log_evidence"] >= tuned["start"]["log_evidence"]
    for factor in (0.9, 1.1, 0.3, 3.0):
        for name in found:
            assert evidence(project, {**found, name: found[name] * factor}, sigma2) <= best + 1e-9
        if task == "regression":
            assert evidence(project, found, sigma2 * factor) <= best + 1e-9


def test_what_was_found_is_as_if_it_had_been_written(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    project.use(posterior={"prior_precision": "marglik", "noise_variance": "marglik"})
    first = run(tool, project, "--method", "gradient,greedy,norm")
    again = tool("fit", "--method", "greedy", "--k", "10", "--dtype", "float64", "--json", cwd=project.folder)
    assert "reusing hyperparameters" in again.err
    assert again.json()["tuned"] == first["tuned"]
    written = Project(tmp_path / "q")
    numbers = {"prior_precision": first["prior_precision"], "noise_variance": first["noise_variance"]}
    written.use(posterior=numbers)
    second = run(tool, written, "--method", "gradient,greedy,norm")
    assert "tuned" not in second
    for one, other in zip(first["rows"], second["rows"], strict=True):
        for key in ("w2", "ipv", "mean_std", "nll"):
            assert one[key] is None or one[key] == pytest.approx(other[key], rel=1e-9)


def test_one_number_given_and_one_left(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    project.use(posterior={"prior_precision": {"0.*": 2.0, "*": "marglik"}, "noise_variance": 0.5})
    found = run(tool, project)["tuned"]
    assert found["prior_precision"]["0.*"] == pytest.approx(2.0)
    assert found["prior_precision"]["*"] != 1.0
    assert found["noise_variance"] == pytest.approx(0.5)
    project = Project(tmp_path / "q", task="binary")
    path = project.save(project.changed(posterior={"noise_variance": "marglik"}), "no.yaml")
    refused(tool("evaluate", "--spec", path, cwd=project.folder), "only for task regression")


def test_a_sub_network_alone_has_its_own(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    project.use(posterior={"prior_precision": "marglik", "noise_variance": "marglik"})
    full = run(tool, project)["tuned"]
    result = run(tool, project, "--full", "none")
    tuned = result["tuned"]
    assert "of the sub-network" in tuned["by"]
    assert "of the full posterior" in full["by"]
    assert tuned["prior_precision"] != full["prior_precision"]
    path = next(Path(path) for name, path in result["artifacts"].items() if name.startswith("indices-"))
    S = load_file(path)["indices"].tolist()
    alpha, sigma2 = tuned["prior_precision"], tuned["noise_variance"]
    best = evidence(project, {"*": alpha}, sigma2, S)
    assert tuned["log_evidence"] == pytest.approx(best, rel=1e-7)
    for factor in (0.9, 1.1, 3.0):
        assert evidence(project, {"*": alpha * factor}, sigma2, S) <= best + 1e-9
        assert evidence(project, {"*": alpha}, sigma2 * factor, S) <= best + 1e-9
    other = run(tool, project, "--full", "none", "--method", "last-k")["tuned"]
    assert other["prior_precision"] != alpha


@TASKS
@pytest.mark.parametrize("words", [[], ["--full", "none"]], ids=["full", "sub-network"])
def test_tuning_on_validation_rows_beats_a_grid(tool: Tool, tmp_path: Path, task: str, words: list[str]) -> None:
    """The rows that are tuned on, given as the test rows of other runs: no prior near or far predicts them better."""
    project = Project(tmp_path / "p", task=task, outputs=3 if task == "multiclass" else 1)
    noise = {"noise_variance": 0.7} if task == "regression" else {}
    splits = {"train": {"rows": "0:14"}, "validation": {"rows": "14:22"}, "test": {"rows": "22:"}}
    data = {**project.spec["data"], "splits": splits}
    project.use(data=data, posterior={"prior_precision": {"tune": "nll", "split": "validation"}, **noise})
    tuned = run(tool, project, *words)["tuned"]
    assert "nll on the validation rows" in tuned["by"]
    assert tuned["nll"] <= tuned["start"]["nll"]
    there = {**splits, "test": {"rows": "14:22"}}

    def nll(alpha: float) -> float:
        project.use(data={**data, "splits": there}, posterior={"prior_precision": alpha, **noise})
        method = ["--method", "gradient" if words else "full"]
        tested = tool(
            "evaluate", *method, *(["--k", "10"] if words else []), "--dtype", "float64", "--json", cwd=project.folder
        )
        return tested.json()["rows"][0]["nll"]

    best = nll(tuned["prior_precision"])
    assert tuned["nll"] == pytest.approx(best, rel=1e-7)
    for factor in (1e-3, 0.5, 0.97, 1.03, 2.0, 1e3):
        alpha = tuned["prior_precision"] * factor
        if tuned["bounds"][0] <= alpha <= tuned["bounds"][1]:
            assert nll(alpha) >= best - 1e-9


@TASKS
def test_without_a_validation_split_each_part_is_tuned_on_the_others(tool: Tool, tmp_path: Path, task: str) -> None:
    """The rows of a fold are those of a run with the prior of that fold."""
    project = Project(tmp_path / "p", task=task, outputs=3 if task == "multiclass" else 1, rows=52)
    noise = {"noise_variance": 0.7} if task == "regression" else {}
    methods = ("--method", "gradient,greedy,full,diagonal", "--k", "5,10", "--folds", "3", "--dtype", "float64")

    def predictions(name: str, prior: object) -> tuple[dict, dict]:
        project.use(posterior={"prior_precision": prior, **noise})
        path = project.folder / f"{name}.jsonl"
        result = tool("evaluate", *methods, "--predictions", path, "--json", cwd=project.folder).json()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return result, {(line["method"], line["k"], line["row"], line["output"]): line["std"] for line in lines}

    result, found = predictions("tuned", {"tune": "nll"})
    tuned = result["tuned"]
    assert "nll on the test rows" in tuned["by"]
    assert len(tuned["by_fold"]) == 3
    fold = torch.randperm(30, generator=torch.Generator().manual_seed(0)) % 3
    seen = set()
    for number, alpha in enumerate(tuned["by_fold"]):
        _, alone = predictions(f"fold-{number}", alpha)
        for key, std in alone.items():
            method, _, row, _ = key
            # The choice itself is made once, with the prior of all folds together.
            if fold[row - 22] == number and method != "greedy":
                assert found[key] == pytest.approx(std, rel=1e-9)
                seen.add(row)
    assert len(seen) == 30
    _, common = predictions("common", tuned["prior_precision"])
    assert common != found


def test_tuning_needs_its_split(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    data = {**project.spec["data"], "splits": {"train": {"rows": "0:22"}}}
    path = project.save(project.changed(data=data, posterior={"prior_precision": {"tune": "nll"}}), "no.yaml")
    refused(tool("fit", "--k", 5, "--spec", path, cwd=project.folder), "validation")
    project.use(posterior={"prior_precision": {"tune": "nll"}})
    refused(tool("evaluate", "--folds", 9, cwd=project.folder), "8 test rows are too few for --folds 9")


def test_a_prior_at_its_bound_says_what_that_means(tool: Tool, project: Project) -> None:
    """Targets that the network predicts exactly leave nothing for a posterior to do; wild ones want all of it."""
    with torch.no_grad():
        f = project.model(torch.from_numpy(project.x).float()).double().numpy()
    tuned = {"prior_precision": {"tune": "nll"}, "noise_variance": 1.0}
    names = ["a", "b", "c", "y0"]
    for shift, bound, words in (
        (0.0, "upper", "on these rows the network predicts best without a posterior"),
        (1e9, "lower", "on these rows the widest posterior predicts best"),
    ):
        project.write_csv("data.csv", names, np.hstack([project.x, f + shift]))
        project.use(posterior=tuned)
        run = tool("evaluate", "--method", "full", "--json", cwd=project.folder)
        assert f"the best nll is at the {bound} bound of the prior precision" in run.err
        assert words in run.err
        assert words in run.json()["tuned"]["at_bound"]
