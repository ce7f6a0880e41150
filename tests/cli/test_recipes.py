"""The recipes of the guide `models` are run as they stand there."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from cli.cli_tools import ENVIRONMENT, Project, Tool
from torch import nn

from sublaplace_cli import guide

SECTIONS = dict(re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", guide.text_of("models"), flags=re.MULTILINE | re.DOTALL))
OWN = "Your own class"


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], flags=re.DOTALL)


def model_of(section: str, number: int = 0) -> dict[str, Any]:
    return yaml.safe_load(blocks(section, "yaml")[number])["model"]


class Recipe:
    """A folder with the class of the guide, its checkpoint and data."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        self.folder = folder
        (folder / "net.py").write_text(blocks(OWN, "python")[0])
        scope: dict[str, Any] = {}
        exec(blocks(OWN, "python")[0], scope)
        torch.manual_seed(0)
        self.net: nn.Module = scope["Net"](width=50)
        torch.save(self.net.state_dict(), folder / "net.pt")

    def evaluated(self, tool: Tool, model: dict[str, Any]) -> Any:
        self.project.use(model=model)
        run = tool("evaluate", "--k", 5, "--json", "--allow-code", "net", cwd=self.folder)
        assert run.code == 0, run.err
        return run.json()


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path / "recipe")


@pytest.fixture
def own_class(tool: Tool, recipe: Recipe) -> dict[str, Any]:
    return recipe.evaluated(tool, model_of(OWN))


def test_every_recipe_is_run_here() -> None:
    tested = {OWN, "timm", "torchvision", "Lightning", "torch.compile and DataParallel", "A file of torch.export"}
    with_blocks = {name for name in SECTIONS if blocks(name, "yaml")}
    assert with_blocks == tested | {"Some of the parameters", "Names that do not fit"}


def test_own_class(own_class: dict[str, Any]) -> None:
    assert own_class["n_params"] == 251


@pytest.mark.parametrize("attribute", ["model", "net", "network", "backbone"])
def test_lightning(tool: Tool, recipe: Recipe, own_class: dict[str, Any], attribute: str) -> None:
    state = {f"{attribute}.{name}": tensor for name, tensor in recipe.net.state_dict().items()}
    content = {"epoch": 3, "global_step": 30, "pytorch-lightning_version": "2.4.0", "state_dict": state}
    content |= {"loops": {"fit_loop": {"state_dict": {}}}, "callbacks": {}, "optimizer_states": [{"state": {}}]}
    torch.save(content, recipe.folder / "last.ckpt")
    assert recipe.evaluated(tool, model_of("Lightning"))["rows"] == own_class["rows"]


def test_lightning_with_more_than_the_network(tool: Tool, recipe: Recipe, own_class: dict[str, Any]) -> None:
    state = {f"classifier.{name}": tensor for name, tensor in recipe.net.state_dict().items()}
    torch.save({"state_dict": {**state, "loss.weight": torch.ones(2)}}, recipe.folder / "last.ckpt")
    assert recipe.evaluated(tool, model_of("Lightning", 1))["rows"] == own_class["rows"]


@pytest.mark.parametrize("wraps", [(torch.compile,), (nn.DataParallel,), (nn.DataParallel, torch.compile)])
def test_compiled(tool: Tool, recipe: Recipe, own_class: dict[str, Any], wraps: Any) -> None:
    model = recipe.net
    for wrap in wraps:
        model = wrap(model)
    assert "first.weight" not in model.state_dict()
    torch.save(model.state_dict(), recipe.folder / "compiled.pt")
    assert recipe.evaluated(tool, model_of("torch.compile and DataParallel"))["rows"] == own_class["rows"]


def test_exported(tool: Tool, recipe: Recipe, own_class: dict[str, Any]) -> None:
    (recipe.folder / "export.py").write_text(blocks("A file of torch.export", "python")[0])
    subprocess.run([sys.executable, "export.py"], cwd=recipe.folder, env=ENVIRONMENT, check=True)
    result = recipe.evaluated(tool, model_of("A file of torch.export"))
    for own, other in zip(result["rows"], own_class["rows"], strict=True):
        assert own["mean_std"] == pytest.approx(other["mean_std"], rel=1e-5)


def test_some_of_the_parameters(tool: Tool, recipe: Recipe) -> None:
    assert recipe.evaluated(tool, model_of("Some of the parameters"))["n_params"] == 51


def test_names_that_do_not_fit(tool: Tool, recipe: Recipe, own_class: dict[str, Any]) -> None:
    names = {"first": "body.fc", "last": "head"}
    state = {f"{names[name.split('.')[0]]}.{name.split('.')[1]}": t for name, t in recipe.net.state_dict().items()}
    torch.save(state, recipe.folder / "other.pt")
    assert recipe.evaluated(tool, model_of("Names that do not fit"))["rows"] == own_class["rows"]


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library(tool: Tool, tmp_path: Path, library: str) -> None:
    """With the library itself where it is installed, and else with a stand-in of the same signature."""
    recipe = Recipe(tmp_path / "recipe")
    if importlib.util.find_spec(library) is None:
        stand_in(recipe.folder, library)
    model, folder = model_of(library), recipe.folder
    x = np.random.default_rng(0).normal(size=(30, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=np.arange(30) % 3)
    module, _, function = model["build"]["import"].partition(":")
    make = (
        f"import sys, torch; sys.path.insert(0, '.'); from {module} import {function}\n"
        f"torch.manual_seed(0); net = {function}(**{model['build']['args']!r})\n"
        f"torch.save(net.state_dict(), {model['weights']['path']!r})\n"
    )
    subprocess.run([sys.executable, "-c", make], cwd=folder, env=ENVIRONMENT, check=True)
    data = {"format": "npz", "path": "data.npz", "arrays": {"input": "x", "target": "y"}}
    data["splits"] = recipe.project.spec["data"]["splits"]
    recipe.project.use(task="multiclass", model={**model, "trainable": "fc.*"}, data=data)
    run = tool("evaluate", "--k", 5, "--json", "--allow-code", library, cwd=folder)
    assert run.code == 0, run.err
    assert run.json()["n_outputs"] == 3


def stand_in(folder: Path, library: str) -> None:
    """A package with the function of the recipe, which takes its arguments by name and no others."""
    code = (
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, out):\n"
        "        super().__init__()\n"
        "        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, out)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.conv(x).relu().mean((2, 3)))\n"
        "def create_model(model_name, pretrained=False, pretrained_cfg=None, *, num_classes=1000):\n"
        "    assert (model_name, pretrained) == ('resnet18', False)\n"
        "    return Net(num_classes)\n"
        "def resnet18(*, weights=None, progress=True, num_classes=1000):\n"
        "    assert weights is None\n"
        "    return Net(num_classes)\n"
    )
    package = folder / library
    package.mkdir()
    (package / "__init__.py").write_text(code)
    (package / "models.py").write_text(code)


def test_the_message_of_a_file_with_other_objects_says_how_to_save_the_weights(tool: Tool, recipe: Recipe) -> None:
    content = {"state_dict": recipe.net.state_dict(), "args": argparse.Namespace(lr=0.1)}
    torch.save(content, recipe.folder / "net.pt")
    recipe.project.use(model=model_of(OWN))
    run = tool("evaluate", "--k", 5, "--allow-code", "net", cwd=recipe.folder)
    assert (run.code, "argparse.Namespace" in run.err, "torch.save(model.state_dict()" in run.err) == (2, True, True)
