"""`sublaplace init` for labels that are texts, and for Arrow data: the spec that it writes can be evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from cli.cli_tools import Tool
from pyarrow import feather, ipc
from torch import nn

from sublaplace_cli.files.spec.loading import load_spec

LABELS = ("no", "perhaps", "yes")
ROWS = 120


class Net(nn.Module):
    """Names of layers that are not those of an `mlp`."""

    def __init__(self, n_outputs: int) -> None:
        super().__init__()
        self.fc1, self.head = nn.Linear(3, 12), nn.Linear(12, n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.fc1(x)))


def trained(folder: Path, labels: tuple[str, ...]) -> dict[str, list[Any]]:
    """A network that tells these labels apart, in model.pt, and its rows as columns."""
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    y = np.digitize(X[:, 0] + X[:, 1], [0.0] if len(labels) == 2 else [-0.5, 0.5])
    net = Net(1 if len(labels) == 2 else len(labels))
    optimiser, rows, targets = torch.optim.Adam(net.parameters(), 0.05), torch.tensor(X), torch.tensor(y)
    for _ in range(100):
        optimiser.zero_grad()
        f = net(rows)
        two = torch.cat([torch.zeros_like(f), f], 1) if len(labels) == 2 else f
        nn.functional.cross_entropy(two, targets).backward()
        optimiser.step()
    torch.save(net.state_dict(), folder / "model.pt")
    columns: dict[str, list[Any]] = {name: X[:, i].tolist() for i, name in enumerate("abc")}
    return {**columns, "answer": [labels[n] for n in y]}


def write(folder: Path, name: str, columns: dict[str, list[Any]]) -> str:
    table = pyarrow.table(columns)
    if name.endswith(".csv"):
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (folder / name).write_text("\n".join(lines) + "\n")
    elif name.endswith(".npz"):
        X = np.stack([columns[key] for key in "abc"], 1)
        np.savez(folder / name, x=X, y=np.asarray(columns["answer"]))
    elif name.endswith(".feather"):
        feather.write_feather(table, str(folder / name))
    else:
        for split, rows in (("train", table.slice(0, 90)), ("test", table.slice(90))):
            (folder / name / split).mkdir(parents=True)
            with ipc.new_stream(str(folder / name / split / "data.arrow"), table.schema) as writer:
                writer.write_table(rows)
            (folder / name / split / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
            (folder / name / split / "dataset_info.json").write_text("{}")
        (folder / name / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return name


@pytest.mark.parametrize("name", ["rows.csv", "rows.npz", "rows.feather", "saved"])
@pytest.mark.parametrize("labels", [LABELS, ("False", "True")], ids=len)
def test_an_own_mlp_and_labels(tool: Tool, tmp_path: Path, name: str, labels: tuple[str, ...]) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    data = write(folder, name, trained(folder, labels))
    done = tool("init", "model.pt", data, "--json", cwd=folder)
    assert done.code == 0, done.err
    spec = load_spec(folder / "sublaplace.yaml").spec
    assert spec.task == ("multiclass" if len(labels) == 3 else "binary")
    assert spec.data.classes == list(labels)
    (found,) = (each for each in json.loads(done.out)["findings"] if each["topic"] == "classes")
    assert found["value"] == ", ".join(labels)
    assert found["certainty"] == "likely"
    assert "with it the network explains" in found["reason"]
    run = tool("evaluate", "--k", "20", "--json", cwd=folder)
    assert run.code == 0, run.err
    assert run.json()["classes"] == list(labels)
    assert run.json()["rows"][0]["accuracy"] > 0.8
    assert run.json()["n_train"] == (90 if name == "saved" else 96)


@pytest.mark.parametrize("labels", [("zebra", "ant", "mouse"), ("yes", "no")], ids=len)
def test_the_order_of_the_labels_is_that_of_the_outputs(tool: Tool, tmp_path: Path, labels: tuple[str, ...]) -> None:
    """Sorted, they would make a good network look like a bad one."""
    folder = tmp_path / "p"
    folder.mkdir()
    write(folder, "rows.csv", trained(folder, labels))
    found = json.loads(tool("init", "model.pt", "rows.csv", "--json", cwd=folder).out)["findings"]
    (classes,) = (each for each in found if each["topic"] == "classes")
    (activation,) = (each for each in found if each["topic"] == "activation")
    assert (classes["value"], classes["certainty"]) == (", ".join(labels), "likely")
    assert f"next best: {', '.join(sorted(labels))}, nothing" in classes["reason"]
    assert activation["value"] == "tanh"
    assert load_spec(folder / "sublaplace.yaml").spec.data.classes == list(labels)
    run = tool("evaluate", "--k", "20", "--json", cwd=folder)
    assert run.json()["rows"][0]["accuracy"] > 0.8
    lines = (folder / "sublaplace.yaml").read_text().splitlines()
    (folder / "sublaplace.yaml").write_text("\n".join(line for line in lines if "classes:" not in line))
    wrong = tool("evaluate", "--k", "20", cwd=folder)
    assert "the network's outputs are in another order than the labels (data.classes)" in wrong.err


@pytest.mark.parametrize("labels", [("1", "2", "3"), ("-1", "1"), ("2.0", "10.0")], ids=",".join)
def test_numbers_that_are_no_class_numbers(tool: Tool, tmp_path: Path, labels: tuple[str, ...]) -> None:
    """By size, not as texts: 10 comes after 2."""
    folder = tmp_path / "p"
    folder.mkdir()
    write(folder, "rows.csv", trained(folder, labels))
    done = tool("init", "model.pt", "rows.csv", cwd=folder)
    assert done.code == 0, done.err
    spec = load_spec(folder / "sublaplace.yaml").spec
    assert spec.task == ("multiclass" if len(labels) == 3 else "binary")
    assert spec.data.classes == list(labels)
    run = tool("evaluate", "--k", "20", "--json", cwd=folder)
    assert run.json()["rows"][0]["accuracy"] > 0.8


def test_classes_that_no_order_explains_stay_a_guess(tool: Tool, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    columns = trained(folder, LABELS)
    torch.manual_seed(1)
    torch.save(Net(3).state_dict(), folder / "model.pt")
    write(folder, "rows.csv", columns)
    done = tool("init", "model.pt", "rows.csv", cwd=folder)
    assert "TODO check: they are sorted" in (folder / "sublaplace.yaml").read_text()
    assert done.out.count("  classes ") == 1


def test_columns_of_lists(tool: Tool, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    columns = trained(folder, LABELS)
    vectors = [list(row) for row in zip(*(columns[name] for name in "abc"), strict=True)]
    feather.write_feather(pyarrow.table({"vector": vectors, "label": columns["answer"]}), str(folder / "rows.feather"))
    done = tool("init", "model.pt", "rows.feather", "--activation", "tanh", cwd=folder)
    assert done.code == 0, done.err
    chosen = load_spec(folder / "sublaplace.yaml").spec.data.columns
    assert chosen is not None
    assert (chosen.target, chosen.input) == ("label", "vector")
    run = tool("evaluate", "--k", "20", "--json", cwd=folder)
    assert run.json()["rows"][0]["accuracy"] > 0.8
    ids = {name: [[1, 2], [3, 4]] * 60 for name in ("input_ids", "attention_mask")}
    feather.write_feather(pyarrow.table({**ids, "label": columns["answer"]}), str(folder / "ids.feather"))
    done = tool("init", "model.pt", "ids.feather", "--spec", "ids.yaml", "--activation", "tanh", cwd=folder)
    assert done.code == 0, done.err
    chosen = load_spec(folder / "ids.yaml").spec.data.columns
    assert chosen is not None
    assert chosen.input == {"input_ids": "input_ids", "attention_mask": "attention_mask"}
