"""Which rows a command passes over: none before a refusal, none for what is stored, each split once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.cli_tools import Project, mlp, save
from commands.in_process import Notes, result_of

from sublaplace_cli.cli.settings import Settings
from sublaplace_cli.errors import UserError
from sublaplace_cli.run.rows.passes import Passes


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each pass over a split."""
    rows, whole = [], Passes.__call__

    def counted(self: Passes, split: Any, start: int, stop: int) -> Any:
        rows.append(stop - start)
        return whole(self, split, start, stop)

    monkeypatch.setattr(Passes, "__call__", counted)
    return rows


def run(project: Project, command: str = "evaluate", **options: Any) -> dict[str, Any]:
    settings = Settings(spec=project.folder / "sublaplace.yaml", run_dir=project.folder / "run", **options)
    return result_of(command, settings, Notes())


REFUSED = {
    "indices that are not there": ("fit", {"indices": Path("absent.npy")}, "no such file"),
    "indices out of range": ("fit", {"indices": Path("large.npy")}, "large.npy"),
    "the full posterior, rescaled": ("fit", {"method": "full", "rescale": "scale"}, "leaves nothing out"),
    "a reference": ("select", {"method": "diagonal"}, "is a reference for evaluate"),
    "a bracket without a sub-network": ("evaluate", {"method": "map", "full": "bracket"}, "needs a sub-network"),
    "a bracket that is rescaled": ("evaluate", {"k": "5", "full": "bracket", "rescale": "scale"}, "lower bound"),
    "an ensemble that the spec does not name": ("evaluate", {"method": "ensemble"}, "the spec names no ensemble"),
    "a name that matches nothing": ("evaluate", {"method": "names:nothing"}, "nothing"),
    "a pool below k": ("evaluate", {"method": "greedy", "k": "5", "pool": "3"}, "pool"),
    "more than all parameters": ("evaluate", {"k": "42"}, "--k 42 is more than the 41 trainable parameters"),
    "a map of no sub-network": ("evaluate", {"method": "map", "plot": Path("a.svg"), "plot_kind": "map"}, "chooses"),
    "own code that is not allowed": ("evaluate", {"method": "own:choose", "k": "5"}, "own"),
    "draws into one file for two": ("evaluate", {"k": "5,7", "predictions": Path("p.safetensors")}, "one method"),
    "seeds of a fit": ("fit", {"k": "5", "seeds": (1, 2)}, "fit takes one checkpoint and one seed"),
    "a baseline that is not there": ("evaluate", {"k": "5", "baseline": Path("absent.json")}, "absent.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_be_known_is_refused_before_any_pass(
    tmp_path: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    project = Project(tmp_path / "p")
    np.save(project.folder / "large.npy", np.array([41]))
    monkeypatch.chdir(project.folder)
    command, options, words = REFUSED[case]
    with pytest.raises(UserError) as refusal:
        run(project, command, **options)
    assert words in str(refusal.value)
    assert passes == []
    assert list(project.folder.glob("run/*.safetensors")) == []


TASKS = pytest.mark.parametrize(("task", "outputs"), [("regression", 1), ("binary", 1), ("multiclass", 3)])


@TASKS
@pytest.mark.parametrize("method", ["gradient,greedy,norm,full", "map", "diagonal"])
def test_every_row_is_passed_once_and_never_again(
    tmp_path: Path, passes: list[int], task: str, outputs: int, method: str
) -> None:
    project = Project(tmp_path / "p", task, outputs)
    first = run(project, method=method)
    assert sum(passes) == 30  # 22 training rows, 8 test rows
    passes.clear()
    again = run(project, method=method)
    assert passes == []
    assert again["rows"] == first["rows"]


@TASKS
def test_stored_predictions_need_no_rows_for_training(
    tmp_path: Path, passes: list[int], task: str, outputs: int
) -> None:
    """Of a removed Jacobian only what is needed is computed again."""
    project = Project(tmp_path / "p", task, outputs)
    project.use(posterior={"prior_precision": 1.0, **({"noise_variance": 0.5} if task == "regression" else {})})
    first = run(project, k="5,7")
    (project.folder / "run" / "jacobians-train.safetensors").unlink()
    passes.clear()
    again = run(project, k="5,7")
    assert passes == []
    assert not (project.folder / "run" / "jacobians-train.safetensors").exists()
    assert again["rows"] == first["rows"]
    run(project, k="6")
    assert sum(passes) == 22


@pytest.mark.parametrize("method", ["map", "ensemble"])
def test_without_gradients_there_is_no_pass(tmp_path: Path, passes: list[int], method: str) -> None:
    project = Project(tmp_path / "p").use(ensemble={"checkpoints": ["model.safetensors", "other.safetensors"]})
    save(mlp([3, 8, 1], seed=1), project.folder / "other.safetensors")
    assert run(project, method=method, full="none")["rows"][0]["nll"] is not None
    assert passes == []


def test_one_split_alone(tmp_path: Path, passes: list[int]) -> None:
    project = Project(tmp_path / "p")
    assert run(project, "jacobians", split="test")["noise_variance"] is None
    assert sum(passes) == 8
    assert sorted(path.name for path in project.folder.glob("run/*.safetensors")) == ["jacobians-test.safetensors"]
    run(project, "jacobians")
    assert sum(passes) == 30
    run(project, "evaluate", k="5")
    assert sum(passes) == 30


def test_the_steps_one_by_one_pass_as_often_as_all_at_once(tmp_path: Path, passes: list[int]) -> None:
    project = Project(tmp_path / "p")
    run(project, "select", method="greedy", k="5")
    assert sum(passes) == 22
    run(project, "fit", method="greedy", k="5")
    assert sum(passes) == 22
    run(project, "evaluate", method="greedy", k="5")
    assert sum(passes) == 30
