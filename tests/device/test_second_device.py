"""Every step on a second device, simulated, with the numbers of the CPU: see second_device.py."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cli.cli_tools import quick_python

# What the package may do on the CPU while a device is at hand: draw and count indices, read and write files.
# None of these belongs to that.
ARITHMETIC = {
    *("mm", "mv", "dot", "addmm", "addmm_", "bmm", "baddbmm", "convolution", "convolution_backward", "einsum"),
    *("linalg_cholesky_ex", "linalg_qr", "linalg_solve_triangular", "linalg_vector_norm", "_linalg_eigh"),
    *("square", "pow", "sqrt", "rsqrt", "exp", "log", "sum", "mean", "std", "var", "sort", "topk", "argmax", "nonzero"),
    *("index", "index_select", "index_add_", "scatter_add_", "gather", "embedding", "where", "native_batch_norm"),
    *("tanh", "relu", "div", "sub", "log_softmax", "_softmax"),
}


def outcome(script: str, *args: str) -> dict[str, Any]:
    """What a check prints, from a process of its own."""
    done = subprocess.run(
        [*quick_python(), str(Path(__file__).with_name(script)), *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout)


@cache
def core() -> dict[str, Any]:
    return outcome("check_core.py")


CASES = (
    "mlp",
    "mlp-3-outputs",
    "mlp-own-noise",
    "conv-binary",
    "conv-multiclass",
    "attention",
    "tied",
    "two-inputs",
    "tokens",
)


@pytest.mark.parametrize("case", CASES)
def test_the_core_gives_the_numbers_of_the_cpu(case: str) -> None:
    found = {name: numbers for name, numbers in core()["differences"].items() if name.startswith(f"{case}, ")}
    assert found
    # Attention takes another kernel on another device; everything else must be equal to the last bit.
    allowed = 1e-12 if case == "attention" else 0.0
    for name, numbers in found.items():
        assert len(numbers) > 130
        assert {key: error for key, error in numbers.items() if not error <= allowed} == {}, name


def test_nothing_is_computed_on_the_cpu_instead() -> None:
    assert not ARITHMETIC & set(core()["on_cpu"])


def test_mixes_of_devices_are_noticed() -> None:
    """Otherwise the tests above could not fail."""
    noticed = core()["noticed"]
    assert len(noticed) >= 11
    assert [mistake for mistake, seen in noticed.items() if not seen] == []


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcome("check_commands.py", str(tmp_path_factory.mktemp("projects")))


PROJECTS = ["table", "tuned", "tuned-by-nll", "conv-multiclass", "conv-binary", "attention"]


@pytest.mark.parametrize("project", PROJECTS)
def test_the_commands_give_the_results_of_the_cpu(commands: dict[str, Any], project: str) -> None:
    assert commands["differences"][project] == {}


@pytest.mark.parametrize("project", [name for name in PROJECTS if name != "tuned"])
def test_the_commands_compute_nothing_on_the_cpu_instead(commands: dict[str, Any], project: str) -> None:
    """But for `marglik`, whose optimiser steps through two or three numbers."""
    assert not ARITHMETIC & set(commands["on_cpu"][project])


def test_marglik_solves_and_multiplies_on_the_device(commands: dict[str, Any]) -> None:
    assert not {"mm", "addmm", "bmm", "linalg_cholesky_ex", "_linalg_eigh"} & set(commands["on_cpu"]["tuned"])


def test_a_device_that_runs_out_of_memory_goes_on_with_half_and_says_so(commands: dict[str, Any]) -> None:
    assert commands["differences"]["short of memory"] == {}
    complaints = commands["memory"]["complaints"]
    assert commands["memory"]["refused"] == len(complaints) >= 3
    for complaint in complaints:
        assert "continuing within" in complaint


def test_the_commands_stored_read_back_and_computed_again(commands: dict[str, Any]) -> None:
    notes = " ".join(commands["notes"])
    for said in ("reusing jacobians-train", "reusing posterior-gradient", "reusing predictions-", "not stored"):
        assert said in notes
