"""The sanity line: a network that is no better than a guess, and the usual reasons for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from cli.cli_tools import Project, Tool

EVALUATE = ("evaluate", "--k", 5, "--json", "--dtype", "float64")


def outputs(project: Project) -> np.ndarray:
    with torch.no_grad():
        return project.model.double()(torch.from_numpy(project.x)).numpy()


def with_targets(project: Project, y: np.ndarray) -> Project:
    project.y = y
    names = ["a", "b", "c", *(f"y{c}" for c in range(y.shape[1]))]
    project.write_csv("data.csv", names, np.hstack([project.x, y]))
    return project


def train_rows(project: Project) -> slice:
    first, last = project.spec["data"]["splits"]["train"]["rows"].split(":")
    return slice(int(first or 0), int(last) if last else None)


def test_a_network_that_has_learnt_its_rows(tool: Tool, project: Project) -> None:
    f = outputs(project)
    with_targets(project, f + 0.1 * f.std() * np.random.default_rng(0).normal(size=f.shape))
    run = tool(*EVALUATE, cwd=project.folder)
    found, y, own = run.json()["sanity"], project.y[train_rows(project)], f[train_rows(project)]
    assert found["better"] is True
    assert (found["split"], found["metric"]) == ("train", "rmse")
    assert found["network"] == pytest.approx(np.sqrt(np.mean((y - own) ** 2)), rel=1e-6)
    assert found["trivial"] == pytest.approx(y.std(), rel=1e-6)
    assert f"training rows: RMSE {found['network']:.4g} of the network" in run.err
    assert "warning: training rows" not in run.err


def test_forgotten_standardisation(tool: Tool, project: Project) -> None:
    """Targets in other units than the network's: warned of, also with --quiet, with what to look at."""
    with_targets(project, 1000 + 50 * outputs(project))
    run = tool(*EVALUATE, "--quiet", cwd=project.folder)
    found = run.json()["sanity"]
    assert found["better"] is False
    assert found["network"] > 10 * found["trivial"]
    for words in ("no better than that", "data.standardise has no input and no target", "data.columns.target", "task"):
        assert words in run.err
    standardise = {"input": "none", "target": {"mean": 1000.0, "std": 50.0}}
    project.use(data={**project.spec["data"], "standardise": standardise})
    right = tool(*EVALUATE, cwd=project.folder)
    assert right.json()["sanity"]["better"] is True
    assert "warning: training rows" not in right.err


@pytest.mark.parametrize(("task", "n_outputs"), [("binary", 1), ("multiclass", 3)])
def test_classes_against_the_most_frequent_one(
    tool: Tool, make: Callable[..., Project], task: str, n_outputs: int
) -> None:
    project = make(task, n_outputs)
    f = outputs(project)
    right = f.argmax(1) if n_outputs > 1 else (f[:, 0] > 0).astype(int)
    right[: 2 if n_outputs == 1 else 3] = range(max(2, n_outputs))  # every class occurs
    with_targets(project, right[:, None])
    found, train = tool(*EVALUATE, cwd=project.folder).json()["sanity"], train_rows(project)
    own = f.argmax(1) if n_outputs > 1 else (f[:, 0] > 0).astype(int)
    assert found["metric"] == "accuracy"
    assert found["network"] == pytest.approx(np.mean(own[train] == right[train]))
    assert found["trivial"] == pytest.approx(np.bincount(right[train]).max() / len(right[train]))
    assert found["better"] is bool(found["network"] > found["trivial"])


def test_regression_on_classes(tool: Tool, project: Project) -> None:
    with_targets(project, np.arange(len(project.x))[:, None] % 2)
    assert "all training targets are 0 or 1: for classes use task: binary" in tool(*EVALUATE, cwd=project.folder).err
