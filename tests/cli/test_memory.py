"""What a dry run says of the memory, beside what the same command then takes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli.cli_tools import Project, call, mlp, save, start

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read as Linux tells it")
FACTOR = 1.5


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Project:
    """An mlp 20-100-100-1 on 3,000 rows, whose matrices are large beside the interpreter."""
    project = Project(tmp_path_factory.mktemp("wide"))
    rng = np.random.default_rng(0)
    project.x, project.y = rng.normal(size=(3300, 20)), rng.normal(size=(3300, 1))
    save(mlp([20, 100, 100, 1]), project.folder / "model.safetensors")
    args = {"in": 20, "hidden": [100, 100], "out": 1, "act": "tanh"}
    project.use(model={"build": {"arch": "mlp", "args": args}, "weights": {"path": "model.safetensors"}})
    project.spec["data"]["splits"] = {"train": {"rows": "0:3000"}, "test": {"rows": "3000:"}}
    project.npz()
    return project


def peak(project: Project, *args: str) -> int:
    """Bytes of memory that one call took at most, as its own record says while it runs.

    What the system tells at the end would begin with the memory of the process that started it: this one.
    """
    child = start(*args, "--quiet", cwd=project.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    while child.poll() is None:
        status = Path(f"/proc/{child.pid}/status").read_text()
        most = max([most, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))])
        time.sleep(0.005)
    assert child.returncode == 0
    return most * 1024


@pytest.mark.parametrize(
    "command",
    ["evaluate --method gradient --k 500", "fit --method gradient --k 10000"],
    ids=["full", "dual"],
)
def test_a_dry_run_tells_the_peak_memory_within_a_factor(wide, command):
    words = command.split()
    estimate = call(*words, "--dry-run", "--json", cwd=wide.folder).json()["memory_estimate"]
    seen = peak(wide, *words, "--recompute")
    assert estimate / FACTOR < seen < estimate * FACTOR, (estimate, seen)
