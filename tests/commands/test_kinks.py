"""Rows at the kink of a ReLU: a float32 run gives the numbers of float64, however its rows are made, and says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.cli_tools import Project, kink_project, save
from commands.in_process import Notes, result_of
from torch import nn

from sublaplace_cli.cli.settings import Settings
from sublaplace_cli.core.jacobian.capture import Capture
from sublaplace_cli.core.network import kinks
from sublaplace_cli.files.artifacts.artifact import open_artifact


class Heard(Notes):
    """Remembers notes and warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        if not text.startswith("training rows:"):  # these networks are not trained, which is said too
            self.warned.append(text)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return kink_project(tmp_path / "p")


HESSIANS = {"regression": None, "all of 40 classes": "exact", "8 combinations of them": {"sampled": 8}}
each_hessian = pytest.mark.parametrize("hessian", HESSIANS.values(), ids=HESSIANS)


def project_with(folder: Path, hessian: Any) -> Project:
    """The same with many classes, if it is said how their output Hessian is computed."""
    if hessian is None:
        return kink_project(folder)
    many = kink_project(folder, 40)
    return many.use(posterior={**many.spec["posterior"], "hessian": hessian})


def run(project: Project, folder: str, command: str = "evaluate", heard: Heard | None = None, **options: Any) -> Any:
    options = {"method": "gradient", "k": "7", **options}
    settings = Settings(spec=project.folder / "sublaplace.yaml", run_dir=project.folder / folder, **options)
    return result_of(command, settings, heard or Heard())


NUMBERS = ("nll", "mean_variance", "w2", "ipv")


def numbers(result: Any) -> list[float]:
    return [value for row in result["rows"] for name in NUMBERS if (value := row.get(name)) is not None]


def jacobian_file(project: Project, folder: str, split: str = "train") -> dict[str, torch.Tensor]:
    artifact = open_artifact(project.folder / folder / f"jacobians-{split}.safetensors", "jacobians")
    return {name: artifact.rows(name, 0, 22 if split == "train" else 8) for name in artifact.meta["tensors"]}


@each_hessian
def test_a_float32_run_gives_the_numbers_of_float64(tmp_path: Path, hessian: Any) -> None:
    project, heard, exact = project_with(tmp_path / "p", hessian), Heard(), Heard()
    found, expected = run(project, "32", heard=heard), run(project, "64", heard=exact, dtype="float64")
    assert len(numbers(expected)) >= 2
    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-4)
    mine, theirs = jacobian_file(project, "32"), jacobian_file(project, "64")
    for name, values in theirs.items():
        torch.testing.assert_close(mine[name].double(), values.double(), rtol=1e-5, atol=1e-6)
    assert exact.said == exact.warned == []


# In float32 all rows at the kink are on one side of it. Which one depends on the processor's kernels, and with some on
# the number of rows in a pass.
ON_ONE_SIDE = {
    *("the gradients of 3 of 22 train rows (9, 12, 17)", "the gradients of 1 of 22 train rows (5)"),
    "the gradients of 1 of 8 test rows (22)",
}


@each_hessian
def test_it_says_which_rows_and_how_many(tmp_path: Path, hessian: Any) -> None:
    """With other combinations in float64, the sampled rows would differ too, and be warned of."""
    project, heard = project_with(tmp_path / "p", hessian), Heard()
    run(project, "run", heard=heard)
    notes = [text for text in heard.said if "float64" in text]
    assert notes
    assert {text.split(" differ")[0] for text in notes} <= ON_ONE_SIDE
    assert all(text.endswith("these rows are used in float64") for text in notes)
    assert heard.warned == []
    again = Heard()
    run(project, "run", heard=again)  # from the stored rows
    assert [text for text in again.said if "float64" in text] == again.warned == []


MADE = {
    "recomputed": {"max_artifact": "1kB", "memory": "100kB"},
    "little memory": {"memory": "60kB"},
    "stored": {"memory": "100kB"},
}


@pytest.mark.parametrize("hessian", [None, {"sampled": 8}], ids=["regression", "combinations"])
@pytest.mark.parametrize("way", MADE)
def test_the_same_however_the_rows_are_made(tmp_path: Path, way: str, hessian: Any) -> None:
    project, first, heard = project_with(tmp_path / "p", hessian), Heard(), Heard()
    expected = run(project, "whole", heard=first, full="none")
    found = run(project, way, heard=heard, full="none", **MADE[way])
    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-5)

    at_the_kink = {5, 9, 12, 17, 22}
    for reporter in (first, heard):
        notes = [text for text in reporter.said if "used in float64" in text]
        named = {int(row) for text in notes for row in re.findall(r"\(([\d, ]+)\)", text)[0].split(", ")}
        assert named
        assert named <= at_the_kink


def test_recomputed_rows_have_the_bits_of_stored_ones(project: Project) -> None:
    stored, computed = run(project, "a", memory="100kB"), run(project, "b", memory="100kB", max_artifact="1kB")
    assert numbers(stored) == numbers(computed)
    assert {*project.folder.glob("b/jacobians-*")} != set()


@pytest.fixture
def exact_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each pass in float64."""
    rows, whole = [], Capture.__call__

    def counted(self: Capture, inputs: Any, *args: Any, **named: Any) -> Any:
        if next(self.model.parameters()).dtype == torch.float64:
            rows.append(len(inputs))
        return whole(self, inputs, *args, **named)

    monkeypatch.setattr(Capture, "__call__", counted)
    return rows


def test_without_a_kink_only_the_sample_is_passed_twice(tmp_path: Path, exact_passes: list[int]) -> None:
    heard = Heard()
    run(Project(tmp_path / "plain"), "run", heard=heard)
    assert exact_passes == [1, 1]  # of 22 training and 8 test rows
    assert heard.said == heard.warned == []


def test_a_stored_posterior_predicts_as_the_run_does(project: Project) -> None:
    """`evaluate --posterior` passes over the test rows again."""
    whole = run(project, "run", predictions=project.folder / "whole.safetensors")
    heard = Heard()
    posterior = next(project.folder.glob("run/posterior-gradient-*.safetensors"))
    settings = Settings(spec=project.folder / "sublaplace.yaml", run_dir=project.folder / "other", posterior=posterior)
    alone = result_of("evaluate", settings, heard)
    assert alone["rows"][0]["nll"] == pytest.approx(whole["rows"][0]["nll"], rel=1e-6)


OWN_NETWORK = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 4, bias=False)

    def forward(self, x):
        {forward}

def build():
    return Net()
"""
CODE = {
    "loses digits": "return self.linear((x + 3e6) - 3e6).tanh().sum(1)",
    "float32 only": "return self.linear(x.float()).tanh().sum(1) + self.linear(x.to(torch.float32)).sum(1)",
}


@pytest.mark.parametrize("what", CODE)
def test_networks_that_float32_or_float64_does_not_suit(project: Project, what: str) -> None:
    module = "kink_net_" + what.replace(" ", "_")  # imported into this process: a name of its own
    (project.folder / f"{module}.py").write_text(OWN_NETWORK.format(forward=CODE[what]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save(nn.ModuleDict({"linear": nn.Linear(1, 4, bias=False)}), project.folder / "model.safetensors")
    project.use(model={"build": {"import": f"{module}:build"}, "weights": {"path": "model.safetensors"}})
    heard = Heard()
    run(project, "run", heard=heard, allow_code=(module,), k="2")
    if what == "loses digits":
        assert any("sampled train rows" in text and text.endswith("Use --dtype float64") for text in heard.warned)
    else:
        assert len([text for text in heard.said if "does not run in float64" in text]) == 1


@pytest.mark.parametrize(("most", "is_said"), [(4, False), (3, True)])
def test_layers_too_wide_to_be_watched_are_named(project: Project, monkeypatch, most: int, is_said: bool) -> None:
    """The network has one ReLU of three units."""
    monkeypatch.setattr(kinks, "MOST_UNITS", most)
    heard = Heard()
    run(project, "run", heard=heard)
    assert any("1 activations have" in note and "--dtype float64" in note for note in heard.said) is is_said
