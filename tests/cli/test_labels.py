"""Class labels that are texts, from the first note to a stored posterior; test rows without targets."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from cli.cli_tools import Project, Tool, core, refused
from pyarrow import parquet
from safetensors import safe_open

from sublaplace_cli import load_predictor

NAMES = ("cat", "dog", "owl")
CHOICE = ["evaluate", "--k", "10", "--json", "--dtype", "float64"]


def write_labels(project: Project, name: str, rows: slice, labels: tuple[str, ...] | None) -> None:
    """Rows of the project with the label of each class; None: without targets."""
    header = ["a", "b", "c", *([] if labels is None else ["kind"])]
    cells = [list(map(repr, row)) for row in project.x[rows].tolist()]
    if labels is not None:
        cells = [[*row, labels[int(y)]] for row, y in zip(cells, project.y[rows, 0], strict=True)]
    text = "\n".join(",".join(row) for row in [header, *cells]) + "\n"
    (project.folder / name).write_text(text)


def labelled(folder: Path, task: str = "multiclass", labels: tuple[str, ...] = NAMES, **data: Any) -> Project:
    project = Project(folder, task=task, outputs=3 if task == "multiclass" else 1)
    write_labels(project, "labels.csv", slice(None), labels)
    splits = project.spec["data"]["splits"]
    columns = {"target": "kind", "input": ["a", "b", "c"]}
    return project.use(data={"format": "csv", "path": "labels.csv", "columns": columns, "splits": splits, **data})


@pytest.mark.parametrize(("task", "labels"), [("multiclass", NAMES), ("binary", ("False", "True"))])
def test_labels_give_the_numbers_of_their_classes(
    tool: Tool, tmp_path: Path, task: str, labels: tuple[str, ...]
) -> None:
    project = labelled(tmp_path / "p", task, labels)
    words = ["--predictions", "p.csv", "--review", "3", "--overwrite"]
    run = tool(*CHOICE, *words, cwd=project.folder)
    result = run.json()
    assert result["classes"] == list(labels)
    assert f"class labels: '{labels[0]}' is 0, '{labels[1]}' is 1" in run.err
    assert "set data.classes" in run.err
    with open(project.folder / "p.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    by_line = labels if task == "multiclass" else labels[1:]
    assert [line["class"] for line in lines] == [*by_line] * 8
    assert all(line["target_class"] == labels[int(line["target"])] for line in lines)
    assert {row["target"] for row in result["review"]["rows"]} <= set(labels)
    plain = Project(tmp_path / "n", task=task, outputs=project.outputs)
    expected = tool(*CHOICE, cwd=plain.folder).json()
    for key in ("rows", "full", "verdict", "sanity"):
        assert core(result)[key] == core(expected)[key], key
    assert "classes" not in expected


def test_the_order_of_the_spec_survives_in_a_posterior(tool: Tool, tmp_path: Path) -> None:
    """Test rows with two of the three classes, and without the training rows."""
    order = ("owl", "cat", "dog")
    project = labelled(tmp_path / "p", labels=order, classes=list(order))
    run = tool(*CHOICE, cwd=project.folder)
    assert "set data.classes" not in run.err
    result = run.json()
    assert result["classes"] == list(order)
    posterior = result["artifacts"]["posterior-gradient-k10"]
    with safe_open(posterior, framework="pt") as file:
        assert json.loads(file.metadata()["sublaplace"])["classes"] == list(order)
    assert load_predictor(posterior, project.model).classes == order
    (project.folder / "labels.csv").unlink()
    write_labels(project, "new.csv", slice(22, 30), order)
    splits = {"train": {"path": "labels.csv"}, "test": {"path": "new.csv"}}
    for classes in ({}, {"classes": list(order)}):
        data = {"format": "csv", "columns": project.spec["data"]["columns"], "splits": splits, **classes}
        project.use(data=data)
        words = ["--predictions", "p.safetensors", "--overwrite"]
        again = tool(*CHOICE[:1], "--json", "--dtype", "float64", "--posterior", posterior, *words, cwd=project.folder)
        assert again.json()["classes"] == list(order)
        for key in ("nll", "accuracy", "brier"):
            assert again.json()["rows"][0][key] == pytest.approx(result["rows"][0][key], rel=1e-9)
        with safe_open(project.folder / "p.safetensors", framework="pt") as file:
            assert json.loads(file.metadata()["sublaplace"])["classes"] == list(order)
    project.use(data={**project.spec["data"], "classes": list(NAMES)})
    run = tool("evaluate", "--posterior", posterior, cwd=project.folder)
    refused(run, "another data.classes than that of the spec: ['owl', 'cat', 'dog']")
    write_labels(project, "new.csv", slice(22, 30), ("owl", "emu", "dog"))
    project.use(data={**data, "classes": list(order)})
    run = tool("evaluate", "--posterior", posterior, cwd=project.folder)
    refused(run, "new.csv", "the label 'emu' is not one of the 3 classes")


def test_a_posterior_of_numbers_takes_no_labels(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p", task="multiclass", outputs=3)
    posterior = tool(*CHOICE, cwd=project.folder).json()["artifacts"]["posterior-gradient-k10"]
    write_labels(project, "labels.csv", slice(None), NAMES)
    columns = {"target": "kind", "input": ["a", "b", "c"]}
    project.use(data={**project.spec["data"], "path": "labels.csv", "columns": columns})
    refused(tool("evaluate", "--posterior", posterior, cwd=project.folder), "expected class numbers")


def test_labels_in_a_sweep(tool: Tool, tmp_path: Path) -> None:
    project = labelled(tmp_path / "p")
    run = tool(*CHOICE, "--method", "random", "--seed", "0", "--seed", "1", cwd=project.folder).json()
    assert [each["classes"] for each in run["checkpoints"]] == [list(NAMES)] * 2


def test_labels_that_do_not_fit_are_refused(tool: Tool, tmp_path: Path) -> None:
    project = labelled(tmp_path / "p", labels=("cat", "dog", "dog"))
    run = tool(*CHOICE, cwd=project.folder)
    refused(run, "the labels are 2 classes ('cat' is 0, 'dog' is 1), but the network has 3 outputs", "data.classes")
    project.use(data={**project.spec["data"], "classes": ["cat", "owl", "dog"]})
    assert tool(*CHOICE, cwd=project.folder).json()["classes"] == ["cat", "owl", "dog"]
    project.use(task="regression")
    refused(tool(*CHOICE, cwd=project.folder), "data.classes: only for classes, but task is regression")
    project.use(task="binary")
    refused(tool(*CHOICE, cwd=project.folder), "data.classes: a binary task has two classes, got 3")
    wrapped = {**project.spec["model"], "wrap": {"binary-logodds": {"classes": [0]}}}
    project.use(model=wrapped)
    refused(tool(*CHOICE, cwd=project.folder), "data.classes: a wrap counts classes by number")
    del project.spec["data"]["classes"]
    project.save()
    refused(tool(*CHOICE, cwd=project.folder), "labels.csv", "column 'kind' is 'cat', expected a number")


# --- test rows without targets --------------------------------------------------------------------------------


def unlabelled(project: Project, form: str, empty: bool) -> dict[str, Any]:
    """The rows of the project, and in another file of the same format its test rows without their targets."""
    names, x, y = ["a", "b", "c"], project.x, project.y[:, 0]
    kinds = [NAMES[int(value)] for value in y] if project.task == "multiclass" else y.tolist()
    nothing: list[Any] = [None] * 8
    if form == "npz":
        absent = np.full(8, np.nan) if project.task == "regression" else np.array([""] * 8)
        np.savez(project.folder / "all.npz", x=x, y=np.asarray(kinds))
        np.savez(project.folder / "new.npz", x=x[22:], **({"y": absent} if empty else {}))
        chosen: dict[str, Any] = {"arrays": {"input": "x", "target": "y"}}
    else:
        chosen = {"columns": {"target": "y0", "input": "rest"}}
        old, new = ({n: rows[:, i].tolist() for i, n in enumerate(names)} for rows in (x, x[22:]))
        old, new = {**old, "y0": kinds}, {**new, **({"y0": nothing} if empty else {})}
        for name, table in (("all", old), ("new", new)):
            path = project.folder / f"{name}.{form}"
            if form == "parquet":
                parquet.write_table(pyarrow.table(table), path)
            else:
                cells = [
                    ["" if value is None else str(value) for value in row] for row in zip(*table.values(), strict=True)
                ]
                path.write_text("\n".join(",".join(row) for row in [list(table), *cells]) + "\n")
    splits = {"train": {"rows": "0:22"}, "test": {"path": f"new.{form}"}}
    return {"format": form, "path": f"all.{form}", **chosen, "splits": splits}


@pytest.mark.parametrize("task", ["regression", "multiclass"])
@pytest.mark.parametrize("empty", [False, True], ids=["absent", "empty"])
@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_predictions_of_rows_without_targets(tool: Tool, tmp_path: Path, task: str, form: str, empty: bool) -> None:
    """By a whole run and by a posterior alone: the same numbers as with targets, and a reason for what is missing."""
    project = Project(tmp_path / "p", task=task, outputs=3 if task == "multiclass" else 1)
    project.spec["data"]["standardise"] = {} if task == "multiclass" else {"target": "from-train"}
    project.save()
    tool(*CHOICE, "--predictions", "expected.csv", cwd=project.folder)
    standardise = project.spec["data"]["standardise"]
    project.use(data={**unlabelled(project, form, empty), "standardise": standardise})
    run = tool(*CHOICE, "--predictions", "whole.csv", cwd=project.folder)
    posterior = run.json()["artifacts"]["posterior-gradient-k10"]
    (project.folder / f"all.{form}").unlink()
    del project.spec["data"]["path"]
    project.spec["data"]["splits"]["train"] = {"path": f"all.{form}"}
    project.save()
    alone = ["evaluate", "--posterior", posterior, "--json", "--dtype", "float64"]
    for own, name in (
        (run, "whole.csv"),
        (tool(*alone, "--predictions", "alone.csv", cwd=project.folder), "alone.csv"),
    ):
        (row,) = own.json()["rows"]
        assert row["nll"] is None
        assert row["why"]["nll"] == "the test rows have no targets"
        assert row["mean_std"] > 0
        assert "no targets" in own.err
        expected, found = ({}, {})
        for numbers, path in ((expected, "expected.csv"), (found, name)):
            with open(project.folder / path, newline="") as file:
                for line in csv.DictReader(file):
                    key = (int(line["row"]) % 22 if path == "expected.csv" else int(line["row"]), line["output"])
                    numbers[key] = [float(line[column]) for column in ("mean", "std")]
                    assert ("target" in line) == (path == "expected.csv")
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert found[key] == pytest.approx(values, rel=1e-8)
        verdict = own.json().get("verdict", {"nll_against_map": []})
        assert verdict["nll_against_map"] == []


def test_the_rest_are_the_columns_of_the_training_file(tool: Tool, tmp_path: Path) -> None:
    """By name: a file for a stored posterior may have them in another order, and more of them."""
    project = Project(tmp_path / "p")
    project.use(data={**project.spec["data"], "columns": {"target": "y0", "input": "rest"}})
    run = tool(*CHOICE, cwd=project.folder).json()
    posterior = run["artifacts"]["posterior-gradient-k10"]
    x, y = project.x[22:], project.y[22:]
    project.write_csv("new.csv", ["c", "id", "y0", "a", "b"], np.column_stack([x[:, 2], y, y, x[:, :2]]))
    splits = {"train": {"path": "data.csv"}, "test": {"path": "new.csv"}}
    project.use(data={"format": "csv", "columns": project.spec["data"]["columns"], "splits": splits})
    again = tool("evaluate", "--json", "--dtype", "float64", "--posterior", posterior, cwd=project.folder).json()
    for key in ("nll", "rmse", "mean_std"):
        assert again["rows"][0][key] == pytest.approx(run["rows"][0][key], rel=1e-9)
    project.write_csv("new.csv", ["c", "a", "d"], x)
    run = tool("evaluate", "--posterior", posterior, cwd=project.folder)
    refused(run, "new.csv", "no column 'b'")


@pytest.mark.parametrize("chosen", [["c", "a", "b"], [2, 1, 0], "rest"])
def test_a_posterior_refuses_columns_in_another_order(tool: Tool, tmp_path: Path, chosen: Any) -> None:
    """They would give other numbers without a word; the network takes them as well."""
    project = Project(tmp_path / "p")
    posterior = tool(*CHOICE, cwd=project.folder).json()["artifacts"]["posterior-gradient-k10"]
    alone = ["evaluate", "--posterior", posterior, "--json", "--dtype", "float64"]
    project.use(data={**project.spec["data"], "columns": {"target": "y0", "input": chosen}})
    run = tool(*alone, cwd=project.folder)
    if chosen == "rest":  # the same columns
        assert run.code == 0, run.err
    else:
        refused(run, "it was fitted to the input columns a, b, c, the test rows have c, ", "data.columns.input")


def test_what_needs_targets_is_refused_without_them(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    data = project.use(data=unlabelled(project, "csv", empty=True)).spec["data"]
    refused(
        tool(*CHOICE, "--rescale", "calibrated", cwd=project.folder), "the test rows have no targets to calibrate on"
    )
    refused(tool("evaluate", "--method", "temperature", cwd=project.folder), "no targets")
    run = tool(*CHOICE, "--plot", "p.png", "--plot-kind", "calibration", cwd=project.folder)
    refused(run, "the test rows have no targets")
    project.use(posterior={"noise_variance": {"from": "test"}})
    refused(tool(*CHOICE, cwd=project.folder), "no targets")
    project.use(posterior={"prior_precision": {"tune": "nll"}})
    refused(tool(*CHOICE, cwd=project.folder), "no targets")
    project.use(posterior={})
    data["splits"]["validation"] = data["splits"]["test"]
    project.use(data=data)
    refused(tool(*CHOICE, "--conformal", "0.5", cwd=project.folder), "the validation rows have no targets")
    data["splits"] = {"train": {"rows": "0:22"}, "test": {"rows": "22:"}, "validation": {"rows": "0:3"}}
    run = tool(*CHOICE, "--fail-if", "nll > 1", cwd=project.use(data=data).folder)
    assert run.code in (0, 1)
    data["splits"] = {"train": {"rows": "0:22"}, "test": {"path": "new.csv"}}
    run = tool(*CHOICE, "--fail-if", "nll > 1", cwd=project.use(data=data).folder)
    assert run.code == 4
    lines = (project.folder / "new.csv").read_text().splitlines()
    (project.folder / "new.csv").write_text("\n".join([*lines[:4], lines[4] + "0.5", *lines[5:], ""]))
    refused(tool(*CHOICE, cwd=project.folder), "split 'test': 7 of 8 rows have no target: line 2, line 3, line 4 …")
