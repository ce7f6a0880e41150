"""The package as others import it: lazily, typed, and whole commands from Python."""

from __future__ import annotations

import importlib.resources
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli.cli_tools import Project, call, core

import sublaplace_cli
from sublaplace_cli import SublaplaceError, run_command

ROOT = Path(__file__).parents[2]


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_import_loads_no_torch_and_a_name_only_what_it_needs():
    code = """
import sys, sublaplace_cli
print("torch" in sys.modules, "numpy" in sys.modules, set(sublaplace_cli.__all__) <= set(dir(sublaplace_cli)))
sublaplace_cli.SublaplaceError
print("torch" in sys.modules)
sublaplace_cli.Regression
print("torch" in sys.modules, "pydantic" in sys.modules, "typer" in sys.modules)
"""
    assert python(code).split() == ["False", "False", "True", "False", "True", "False", "False"]


def test_the_types_are_part_of_the_package():
    assert importlib.resources.files(sublaplace_cli).joinpath("py.typed").is_file()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["sublaplace_cli"]}  # the whole folder, whatever git does not ignore
    ignored = subprocess.run(["git", "check-ignore", "sublaplace_cli/py.typed"], cwd=ROOT, capture_output=True)
    assert ignored.stdout == b""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


def test_a_command_from_python_gives_the_result_of_the_command_line(project):
    spec = project.folder / "sublaplace.yaml"
    options = ["--method", "gradient,map", "--k", "5,9", "--dtype", "float64", "--fail-if", "w2 > 1e9"]
    printed = json.loads(call("evaluate", *options, "--json", "--force", cwd=project.folder).out)
    found = run_command(
        "evaluate", spec=spec, method="gradient,map", k="5,9", dtype="float64", fail_if=["w2 > 1e9"], force=True
    )
    assert core(found) == core(printed)
    assert json.loads(json.dumps(found)) == found


def test_a_path_may_be_a_text(project, tmp_path):
    found = run_command(
        "evaluate", spec=str(project.folder / "sublaplace.yaml"), method="map", run_dir=str(tmp_path / "run")
    )
    assert [row["method"] for row in found["rows"]] == ["map"]
    assert (tmp_path / "run").is_dir()


def test_numbers_may_be_numbers(project):
    found = run_command("evaluate", spec=project.folder / "sublaplace.yaml", method="gradient", k=3, memory="1GiB")
    assert [row["k"] for row in found["rows"]] == [3]


def test_every_command_runs_from_python(project):
    spec = project.folder / "sublaplace.yaml"
    assert run_command("jacobians", spec=spec)["n_params"] == project.size
    assert run_command("select", spec=spec, method="greedy", k="4")["k"] == 4
    assert run_command("fit", spec=spec, method="greedy", k="4")["k"] == 4


def test_a_command_prints_nothing(project, capfd):
    run_command("evaluate", spec=project.folder / "sublaplace.yaml", method="gradient", k="3")
    assert capfd.readouterr() == ("", "")


def test_wrong_options_are_refused(project):
    spec = project.folder / "sublaplace.yaml"
    with pytest.raises(SublaplaceError, match="unknown method 'gradeint'"):
        run_command("evaluate", spec=spec, method="gradeint", k="3")
    with pytest.raises(SublaplaceError, match="999 is more than the 41 trainable parameters"):
        run_command("evaluate", spec=spec, k="999")
    with pytest.raises(SublaplaceError, match="evaluat"):
        run_command("evaluat", spec=spec, k="3")
    with pytest.raises((SublaplaceError, TypeError), match="metod"):
        run_command("evaluate", spec=spec, metod="gradient")
