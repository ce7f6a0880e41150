"""What a dry run says of the time, beside what the same command then takes."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.cli_tools import Project, call, mlp, save

from sublaplace_cli.architectures.cifar_resnet import cifar_resnet

FACTOR, TRIES = 2.0, 4


def rows_of(project: Project, x: np.ndarray, y: np.ndarray, train: int) -> None:
    np.savez(project.folder / "many.npz", x=x.astype(np.float32), y=y)
    splits = {"train": {"rows": f"0:{train}"}, "test": {"rows": f"{train}:"}}
    project.use(data={"format": "npz", "path": "many.npz", "splits": splits})


def wide(folder: Path, train: int) -> Project:
    """An mlp 90-200-200-200-1 as in the paper's Setup A."""
    project, rng = Project(folder), np.random.default_rng(0)
    rows_of(project, rng.normal(size=(train + 200, 90)), rng.normal(size=(train + 200, 1)), train)
    save(mlp([90, 200, 200, 200, 1]), project.folder / "model.safetensors")
    args = {"in": 90, "hidden": [200, 200, 200], "out": 1, "act": "tanh"}
    project.use(model={"build": {"arch": "mlp", "args": args}, "weights": {"path": "model.safetensors"}})
    return project


def images(folder: Path, train: int) -> Project:
    project, rng = Project(folder, "binary"), np.random.default_rng(0)
    rows_of(project, rng.normal(size=(train + 50, 3, 32, 32)), rng.integers(0, 2, train + 50), train)
    torch.manual_seed(0)
    save(cifar_resnet(depth=20, out=1, shortcut="B"), project.folder / "model.safetensors")
    build = {"arch": "cifar_resnet", "args": {"depth": 20, "out": 1, "shortcut": "B"}}
    project.use(model={"build": build, "weights": {"path": "model.safetensors"}})
    return project


CASES = {
    "many rows": (lambda folder: wide(folder, 40_000), ("--k", "1500", "--full", "none")),
    "resnet-20": (lambda folder: images(folder, 250), ("--k", "500", "--full", "none")),
    "full posterior": (lambda folder: wide(folder, 4500), ("--k", "300")),
}


def timed(project: Project, *words: str) -> tuple[dict[str, Any], float]:
    """The result, and the CPU time on one thread: what an estimate is about, on a busy machine too."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = call("evaluate", "--method", "gradient", *words, "--recompute", "--json", cwd=project.folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.code == 0, run.err
    return json.loads(run.out), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def agree(estimate: float, seen: float) -> bool:
    return estimate / FACTOR < seen < estimate * FACTOR


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_tells_the_time_within_a_factor(case: str, tmp_path: Path) -> None:
    make, words = CASES[case]
    project = make(tmp_path / "project")
    whole, work = [], []  # (estimate, seen) with the start of the process, and without, so that it hides nothing
    for _ in range(TRIES):  # the least of both: other work on the machine adds to them
        plan, start_up = timed(project, *words, "--dry-run")
        _, seconds = timed(project, *words)
        whole.append((plan["seconds_estimate"], seconds))
        work.append((sum(plan["seconds_by_step"].values()), seconds - start_up))
        found = [[min(each) for each in zip(*pairs, strict=True)] for pairs in (whole, work)]
        if all(agree(*pair) for pair in found):
            break
    assert all(agree(*pair) for pair in found), (whole, work)
