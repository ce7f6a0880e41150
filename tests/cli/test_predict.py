"""`evaluate --posterior`: predictions on new data from the file alone, and draws from it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from cli.cli_tools import Project, Tool, mlp, refused, save
from safetensors.torch import load_file

KEYS = (
    "mean_std",
    "coverage95_total",
    "nll",
    "rmse",
    "crps",
    "accuracy",
    "ece",
    "brier",
    "ipv",
    "rescale",
    "remainder",
)
TASKS = pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])


def fitted(tool: Tool, folder: Path, task: str, *words: str) -> tuple[Project, Path, list[dict]]:
    """A project whose data are standardised, its posterior, and the rows of a usual evaluation."""
    project = Project(folder, task=task, outputs=3 if task == "multiclass" else 1)
    scaled = {"input": "from-train", **({"target": "from-train"} if task == "regression" else {})}
    project.spec["data"]["standardise"] = scaled
    project.save()
    run = tool("evaluate", *words, "--json", "--dtype", "float64", cwd=project.folder).json()
    paths = [Path(path) for name, path in run["artifacts"].items() if name.startswith("posterior-g")]
    return project, paths[0], run["rows"]


@TASKS
@pytest.mark.parametrize("words", [["--k", "10"], ["--k", "30"], ["--k", "10", "--rescale", "hybrid"]], ids=" ".join)
def test_new_data_without_the_training_rows(tool: Tool, tmp_path: Path, task: str, words: list[str]) -> None:
    project, posterior, (expected,) = fitted(tool, tmp_path / "p", task, *words)
    names = ["a", "b", "c", *[f"y{c}" for c in range(project.y.shape[1])]]
    project.write_csv("new.csv", names, np.hstack([project.x, project.y])[22:])
    (project.folder / "data.csv").unlink()  # the training rows are gone
    splits = {"train": {"path": "data.csv", "rows": "0:22"}, "test": {"path": "new.csv"}}
    data = {key: value for key, value in project.spec["data"].items() if key != "path"}
    project.use(data={**data, "splits": splits})
    run = tool("evaluate", "--posterior", posterior, "--json", "--dtype", "float64", cwd=project.folder)
    (row,) = run.json()["rows"]
    assert (row["method"], row["k"]) == ("gradient", expected["k"])
    for key in KEYS:
        if expected[key] is None:
            assert row[key] is None, key
        else:
            assert row[key] == pytest.approx(expected[key], rel=1e-8, abs=1e-10), key
    assert row["w2"] is None
    assert "--posterior" in row["why"]["w2"]
    assert run.json()["n_train"] == 22


def test_draws_by_either_way_and_in_every_format(tool: Tool, tmp_path: Path) -> None:
    project, posterior, _ = fitted(tool, tmp_path / "p", "regression", "--k", "10")
    common = ["--samples", "400", "--seed", "5", "--dtype", "float64", "--overwrite"]
    tool("evaluate", "--k", "10", *common, "--predictions", "a.safetensors", cwd=project.folder)
    alone = ["evaluate", "--posterior", posterior, *common]
    for name in ("b.safetensors", "b.csv", "b.jsonl"):
        assert tool(*alone, "--predictions", name, cwd=project.folder).code == 0
    one, two = (load_file(project.folder / name) for name in ("a.safetensors", "b.safetensors"))
    assert one["samples"].shape == (400, 8, 1)
    np.testing.assert_allclose(one["samples"], two["samples"], rtol=1e-7, atol=1e-9)
    deviation = (one["samples"] - one["mean"]).std(0) / one["std"]
    assert float((deviation - 1).abs().max()) < 5 / 800**0.5
    with open(project.folder / "b.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["sample_400"]) for line in lines] == pytest.approx(two["samples"][399].flatten().tolist())
    first = json.loads((project.folder / "b.jsonl").read_text().splitlines()[0])
    assert first["sample_1"] == pytest.approx(float(two["samples"][0, 0, 0]))


def test_what_a_posterior_alone_cannot_do(tool: Tool, tmp_path: Path) -> None:
    project, posterior, _ = fitted(tool, tmp_path / "p", "regression", "--k", "10")
    folder = project.folder
    refused(tool("evaluate", "--posterior", posterior, "--k", "5", cwd=folder), "leave --k out")
    refused(tool("evaluate", "--posterior", posterior, "--method", "greedy", cwd=folder), "leave --method out")
    refused(tool("evaluate", "--posterior", folder / "none.safetensors", cwd=folder), "no such file")
    refused(
        tool("evaluate", "--posterior", posterior.with_name("scores.safetensors"), cwd=folder), "expected posterior"
    )
    full = next(posterior.parent.glob("posterior-full-*"))
    refused(tool("evaluate", "--posterior", full, cwd=folder), "cannot predict without its training rows")
    refused(tool("evaluate", "--posterior", posterior, "--samples", "3", cwd=folder), "--predictions")
    refused(tool("evaluate", "--samples", "0", "--predictions", "p.csv", cwd=folder), "positive integer")
    words = ["--method", "gradient,full", "--samples", "3", "--predictions", "p.csv"]
    refused(tool("evaluate", *words, cwd=folder), "full has none")
    save(mlp([3, 8, 1], seed=4), folder / "other.safetensors")
    refused(
        tool("evaluate", "--posterior", posterior, "--checkpoint", "other.safetensors", cwd=folder), "other weights"
    )
    refused(tool("evaluate", "--posterior", posterior, "--full", "bracket", cwd=folder), "leave --full out")
    refused(tool("fit", "--method", "full", "--rescale", "scale", cwd=folder), "--rescale is for sub-networks")
    other = project.save(project.changed(data={**project.spec["data"], "standardise": {}}), "other.yaml")
    refused(tool("evaluate", "--posterior", posterior, "--spec", other, cwd=folder), "another data.standardise")
    build = {"arch": "mlp", "args": {"in": 3, "hidden": [8], "out": 1, "act": "relu"}}
    other = project.save(project.changed(model={**project.spec["model"], "build": build}), "relu.yaml")
    refused(tool("evaluate", "--posterior", posterior, "--spec", other, cwd=folder), "another model.build")
    damaged = bytearray(posterior.read_bytes())
    damaged[-5] ^= 1
    (folder / "damaged.safetensors").write_bytes(damaged)
    refused(tool("evaluate", "--posterior", folder / "damaged.safetensors", cwd=folder), "checksum")


def test_priors_by_glob_keep_their_order(tool: Tool, tmp_path: Path) -> None:
    """The first match counts: another order is another prior, in the run folder and in the file."""
    results = {}
    for name, prior in (("a", {"0.*": 50.0, "*": 1.0}), ("b", {"*": 1.0, "0.*": 50.0})):
        project = Project(tmp_path / "p")
        project.use(posterior={"prior_precision": prior})
        words = ["--k", "1", "--rescale", "hybrid", "--dtype", "float64", "--json"]
        run = tool("evaluate", *words, cwd=project.folder).json()
        results[name] = run["rows"][0]["mean_std"]
        posterior = run["artifacts"]["posterior-gradient-k1-hybrid"]
        alone = tool("evaluate", "--posterior", posterior, "--dtype", "float64", "--json", cwd=project.folder).json()
        assert alone["rows"][0]["mean_std"] == pytest.approx(results[name], rel=1e-9)
    assert results["a"] != pytest.approx(results["b"], rel=1e-3)
