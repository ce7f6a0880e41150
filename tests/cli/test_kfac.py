"""`--method kfac`: exact where Kronecker factors are, and honest about what has none."""

from __future__ import annotations

import builtins
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.cli_tools import Project, Tool, refused, save
from torch import nn

TASKS = pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
installed = find_spec("curvlinops") is not None
needs_curvlinops = pytest.mark.skipif(not installed, reason="curvlinops is not installed")


def linear_project(folder: Path, task: str) -> Project:
    """One linear layer and one training row twice: its curvature is a Kronecker product, without its bias' share."""
    outputs = 3 if task == "multiclass" else 1
    project = Project(folder, task=task, outputs=outputs)
    project.x[:22] = project.x[0] * np.array([[1.0], [1.0]] * 11)
    project.model = nn.Sequential(nn.Linear(3, outputs))
    nn.init.zeros_(project.model[0].bias)
    save(project.model, folder / "model.safetensors")
    names = ["a", "b", "c", *[f"y{c}" for c in range(project.y.shape[1])]]
    project.write_csv("data.csv", names, np.hstack([project.x, project.y]))
    build = {"arch": "mlp", "args": {"in": 3, "hidden": [], "out": outputs}}
    return project.use(model={"build": build, "weights": {"path": "model.safetensors"}})


@needs_curvlinops
@TASKS
def test_one_layer_and_one_kind_of_row_is_exact(tool: Tool, tmp_path: Path, task: str) -> None:
    """With a huge prior on the bias, which kfac parts from the weight, it is the full posterior."""
    project = linear_project(tmp_path / "p", task)
    project.use(posterior={"prior_precision": {"*weight": 1.0, "*": 1e12}})
    run = tool("evaluate", "--method", "kfac,full", "--dtype", "float64", "--json", cwd=project.folder)
    row, full = run.json()["rows"]
    assert row["k"] is None
    assert row["mean_std"] == pytest.approx(full["mean_std"], rel=1e-6)
    assert row["w2"] < 1e-6 * full["mean_std"]
    assert row["ipv"] == pytest.approx(full["ipv"], rel=1e-3)


@needs_curvlinops
@TASKS
def test_a_row_beside_the_others(tool: Tool, tmp_path: Path, task: str) -> None:
    project = Project(tmp_path / "p", task=task, outputs=3 if task == "multiclass" else 1)
    rows = tool("evaluate", "--method", "kfac,diagonal,gradient", "--k", "9", "--json", cwd=project.folder).json()[
        "rows"
    ]
    assert rows[0]["mean_std"] > 0
    assert rows[0]["w2_relative"] < 1


@needs_curvlinops
def test_ipv_is_the_mean_variance_of_the_training_rows(tool: Tool, tmp_path: Path) -> None:
    """Without correlations between parameters it can be above that of the full posterior, which is said."""
    project = Project(tmp_path / "p")
    splits = {**project.spec["data"]["splits"], "test": {"same_as": "train"}}
    project.use(data={**project.spec["data"], "splits": splits}, posterior={"prior_precision": 1e-3})
    words = ("evaluate", "--method", "kfac,diagonal,full", "--dtype", "float64", "--json")
    run = tool(*words, "--predictions", "p.jsonl", cwd=project.folder)
    lines = [json.loads(line) for line in (project.folder / "p.jsonl").read_text().splitlines()]
    for row in run.json()["rows"]:
        squares = [line["std"] ** 2 for line in lines if line["method"] == row["method"]]
        assert row["ipv"] == pytest.approx(sum(squares) / len(squares), rel=1e-8)
        if row["method"] == "full":
            assert (row["retained"], "retained" in row["why"]) == (1, False)
        else:
            assert row["retained"] > 1
            assert "correlations between parameters are left out" in row["why"]["retained"]
            assert f"{row['method']}: retained is {row['retained']:.3g}" in run.err


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sublaplace_cli.errors import UserError
    from sublaplace_cli.run.references import kfac

    monkeypatch.setattr(kfac, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match="curvlinops") as refusal:
        kfac.check(builtins.object())  # type: ignore[arg-type]
    assert "pip install '.[kfac]'" in str(refusal.value.hint)


@needs_curvlinops
def test_what_has_no_factors_is_named(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    layers = "nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))"
    (project.folder / "normed.py").write_text(f"from torch import nn\n\n\ndef make():\n    return {layers}\n")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    save(model, project.folder / "model.safetensors")
    project.use(model={"build": {"import": "normed:make"}, "weights": {"path": "model.safetensors"}})
    run = tool("evaluate", "--method", "kfac", "--allow-code", "normed", "--json", cwd=project.folder)
    assert run.json()["rows"][0]["mean_std"] > 0
    assert "1.bias, 1.weight have no Kronecker factors" in run.err
    refused(tool("fit", "--method", "kfac", "--allow-code", "normed", cwd=project.folder), "reference for evaluate")
