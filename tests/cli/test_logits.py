"""Classifiers that return probabilities: an error where that is certain, a warning where it is likely."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli.cli_tools import Project, Tool, refused, save
from torch import nn

CODE = """
import torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self, out, last):
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, out)
        self.last = {{"Softmax": nn.Softmax(1), "LogSoftmax": nn.LogSoftmax(1)}}.get(last) or getattr(nn, last)()

    def forward(self, x):
        z = self.second(torch.tanh(self.first(x)))
        return {end}
"""
FINAL = {name: ("self.last(z)", name) for name in ("Softmax", "Sigmoid", "LogSigmoid", "Hardsigmoid", "LogSoftmax")}
INSIDE = {
    "softmax": ("functional.softmax(z, 1)", "Identity"),
    "log_softmax": ("functional.log_softmax(z, 1)", "Identity"),
    "sigmoid": ("torch.sigmoid(z)", "Identity"),
    "a gate": ("z * 3 * torch.sigmoid(z)", "Identity"),
    "a gate by a module": ("z * 3 * self.last(z)", "Sigmoid"),
    "a module whose result is not used": ("(self.last(z), z)[1]", "Softmax"),
    "logits": ("z", "Identity"),
}


def project_with(folder: Path, task: str, how: str, outputs: int = 3, scale: float = 4.0) -> Project:
    project = Project(folder, task, 1 if task == "binary" else outputs)
    end, last = {**FINAL, **INSIDE}[how]
    (folder / "net.py").write_text(CODE.format(end=end))
    layers = nn.ModuleDict({"first": project.model[0], "second": project.model[2]})
    with torch.no_grad():
        layers["second"].weight *= scale
    save(layers, folder / "m.safetensors")
    build = {"import": "net:Net", "args": {"out": project.outputs, "last": last}}
    return project.use(model={"build": build, "weights": {"path": "m.safetensors"}})


def evaluate(tool: Tool, project: Project, *words: Any) -> Any:
    return tool("evaluate", "--k", 5, "--json", "--allow-code", "net", *words, cwd=project.folder)


@pytest.mark.parametrize("how", ["Softmax", "softmax", "Sigmoid", "Hardsigmoid"])
def test_probabilities_of_classes(tool: Tool, tmp_path: Path, how: str) -> None:
    run = evaluate(tool, project_with(tmp_path / "p", "multiclass", how))
    sums = " and sum to 1 in each row" if how.lower() == "softmax" else ""
    hint = f"remove its last layer, 'last' ({how})" if how in FINAL else "return what goes into its softmax"
    refused(run, f"outputs all lie in [0, 1]{sums}: the network must return logits", hint, "one logit per class")


@pytest.mark.parametrize("how", ["Sigmoid", "LogSigmoid", "Hardsigmoid"])
def test_one_probability(tool: Tool, tmp_path: Path, how: str) -> None:
    run = evaluate(tool, project_with(tmp_path / "p", "binary", how))
    seen = "ends with LogSigmoid" if how == "LogSigmoid" else "outputs all lie in [0, 1]"
    refused(run, f"{seen}: the network must return logits", f"'last' ({how})", "returns the logit, one number")


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_a_sigmoid_inside_forward_is_only_likely(tool: Tool, tmp_path: Path, task: str) -> None:
    run = evaluate(tool, project_with(tmp_path / "p", task, "sigmoid"))
    assert run.code == 0
    assert "warning: the network's outputs all lie in [0, 1]: the network must return logits; if they are" in run.err
    assert f"return what goes into its {'sigmoid' if task == 'binary' else 'softmax'}" in run.err


@pytest.mark.parametrize(
    ("task", "how"),
    [
        *(("multiclass", how) for how in ("LogSoftmax", "log_softmax", "logits", "a gate", "a gate by a module")),
        *(("binary", how) for how in ("logits", "a gate", "a gate by a module")),
        ("multiclass", "a module whose result is not used"),
        *(("regression", how) for how in ("Sigmoid", "sigmoid")),
    ],
)
def test_other_outputs_are_fine(tool: Tool, tmp_path: Path, task: str, how: str) -> None:
    run = evaluate(tool, project_with(tmp_path / "p", task, how))
    assert run.code == 0, run.err
    assert "logits" not in run.err


def test_log_softmax_gives_the_probabilities_of_its_logits(tool: Tool, tmp_path: Path) -> None:
    found = [
        evaluate(
            tool, project_with(tmp_path / how, "multiclass", how), "--dtype", "float64", "--method", "gradient,map"
        ).json()
        for how in ("logits", "LogSoftmax")
    ]
    for name in ("nll", "accuracy", "ece"):
        own, other = ({row["method"]: row[name] for row in result["rows"]}["map"] for result in found)
        assert own == pytest.approx(other, rel=1e-9), name


def test_an_untrained_network_raises_no_doubt(tool: Tool, tmp_path: Path) -> None:
    project = project_with(tmp_path / "p", "binary", "sigmoid", scale=0.1)
    run = evaluate(tool, project)
    assert run.code == 0
    assert "logits" not in run.err


def test_a_wrapped_network_is_looked_at_before_its_wrap(tool: Tool, tmp_path: Path) -> None:
    project = project_with(tmp_path / "p", "binary", "softmax")
    build = {"import": "net:Net", "args": {"out": 3, "last": "Identity"}}
    layers = nn.ModuleDict({"first": nn.Linear(3, 8), "second": nn.Linear(8, 3)})
    save(layers, project.folder / "m.safetensors")
    wrap = {"binary-logodds": {"classes": [1, 2]}}
    project.use(model={"build": build, "weights": {"path": "m.safetensors"}, "wrap": wrap})
    refused(evaluate(tool, project), "outputs all lie in [0, 1] and sum to 1 in each row", "one logit per class")


def test_an_exported_softmax(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p", "multiclass", 3)
    net = nn.Sequential(*project.model, nn.Softmax(dim=1))
    shapes = ({0: torch.export.Dim("rows", min=1)},)
    torch.export.save(torch.export.export(net, (torch.zeros(2, 3),), dynamic_shapes=shapes), project.folder / "n.pt2")
    project.use(model={"build": {"exported": "n.pt2"}})
    refused(tool("evaluate", "--k", 5, cwd=project.folder), "must return logits", "goes into its softmax")
