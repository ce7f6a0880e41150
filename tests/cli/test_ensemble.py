"""`--method ensemble`: mean and spread of several checkpoints, beside the posteriors."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from cli.cli_tools import Project, Tool, mlp, refused, save

NAMES = ["a.safetensors", "b.safetensors", "c.safetensors"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "p")
    for seed, name in enumerate(NAMES, start=1):
        save(mlp([3, 8, 1], seed), made.folder / name)
    return made.use(ensemble={"checkpoints": NAMES})


def test_mean_and_unbiased_spread_of_the_members(tool: Tool, project: Project) -> None:
    words = ["--method", "ensemble,gradient", "--k", "5", "--dtype", "float64", "--predictions", "p.csv", "--json"]
    run = tool("evaluate", *words, cwd=project.folder)
    row, other = run.json()["rows"]
    x, y = project.tensors()
    members = torch.stack([mlp([3, 8, 1], seed).double()(x[22:]).detach() for seed in (1, 2, 3)])
    std = members.std(0, correction=1)
    assert row["k"] is None
    assert row["mean_std"] == pytest.approx(float(std.mean()), rel=1e-6)
    assert row["rmse"] == pytest.approx(float((members.mean(0) - y[22:]).square().mean().sqrt()), rel=1e-6)
    assert row["rmse"] != other["rmse"]
    assert "spreads alone" in row["why"]["w2"]
    assert row["ipv"] is None
    assert "compares standard deviations only" in run.err
    with open(project.folder / "p.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["method"] == "ensemble"]
    assert [float(line["mean"]) for line in lines] == pytest.approx(members.mean(0).flatten().tolist(), rel=1e-6)
    assert [float(line["std"]) for line in lines] == pytest.approx(std.flatten().tolist(), rel=1e-6)


def test_other_members_are_another_run(tool: Tool, project: Project) -> None:
    first = tool("evaluate", "--method", "ensemble", "--full", "none", "--json", cwd=project.folder).json()
    save(mlp([3, 8, 1], 9), project.folder / "c.safetensors")
    second = tool("evaluate", "--method", "ensemble", "--full", "none", "--json", cwd=project.folder).json()
    assert first["rows"][0]["mean_std"] != second["rows"][0]["mean_std"]


def test_what_an_ensemble_needs(tool: Tool, project: Project) -> None:
    refused(tool("fit", "--method", "ensemble", cwd=project.folder), "reference for evaluate")
    project.use(ensemble={"checkpoints": ["a.safetensors", "missing.safetensors"]})
    refused(tool("evaluate", "--method", "ensemble", cwd=project.folder), "missing.safetensors", "does not exist")
    save(mlp([3, 9, 1]), project.folder / "b.safetensors")
    project.use(ensemble={"checkpoints": ["a.safetensors", "b.safetensors"]})
    refused(tool("evaluate", "--method", "ensemble", cwd=project.folder), "b.safetensors")
    project.use(ensemble={"checkpoints": ["a.safetensors"]})
    refused(tool("evaluate", "--method", "ensemble", cwd=project.folder), "at least two checkpoints")
    project.use(ensemble=None)
    refused(tool("evaluate", "--method", "ensemble", cwd=project.folder), "names no ensemble")
