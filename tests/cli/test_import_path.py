"""Modules in the working folder are not imported, however the tool is started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from cli.cli_tools import ENVIRONMENT, ROOT, Project, strict

SCRIPTS = Path(sysconfig.get_path("scripts"))
TORCHRUN = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", "2"]
SCRIPTS_WITH_SETUP = sorted(
    str(path.relative_to(ROOT))
    for folder in ("examples", "tests")
    for path in (ROOT / folder).rglob("run")
    if path.is_file() and "setup_environment" in path.read_text()
)
FORMS = {
    "console script": ["sublaplace"],
    "python -m": [sys.executable, "-m", "sublaplace_cli"],
    "torchrun --no-python": [*TORCHRUN, "--no-python", "sublaplace"],
    "torchrun -m": [*TORCHRUN, "-m", "sublaplace_cli"],
}
SHADOWS = (
    *("yaml", "typer", "rich", "click", "torch", "numpy", "pydantic", "safetensors", "matplotlib", "typing_extensions"),
    *("json", "dataclasses", "pathlib", "typing", "signal", "enum", "re", "inspect", "tempfile", "socket"),
)


class Trap:
    """A folder with modules that record that they were executed."""

    def __init__(self, folder: Path, record: Path) -> None:
        self.folder, self.record = folder, record
        for number, name in enumerate(SHADOWS):
            file = folder / (f"{name}.py" if number % 2 else f"{name}/__init__.py")
            file.parent.mkdir(exist_ok=True, parents=True)
            file.write_text(self.code(name) + "raise ImportError('from the working folder')\n")
        (folder / "trap.pth").write_text("import sys; " + self.code("pth") + str(folder) + "\n")

    def code(self, name: str) -> str:
        return f"open({str(self.record)!r}, 'a').write('{name} ')\n"

    @property
    def executed(self) -> list[str]:
        return self.record.read_text().split() if self.record.exists() else []


def run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**ENVIRONMENT, "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    return subprocess.run(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def trap(project: Project, tmp_path: Path) -> Trap:
    return Trap(project.folder, tmp_path / "executed")


def test_the_trap_works(trap: Trap) -> None:
    for name in SHADOWS:
        assert run([sys.executable, "-c", f"import {name}"], trap.folder).returncode == 1
    assert trap.executed == list(SHADOWS)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_in_the_working_folder_is_executed(trap: Trap, form: str, tmp_path: Path) -> None:
    words = ["evaluate", "--k", "5", "--json", "--plot", str(tmp_path / "p.png")]
    done = run([*FORMS[form], *words], trap.folder)
    assert trap.executed == []
    assert done.returncode == 0, done.stderr
    assert strict(done.stdout)["workers"] == (2 if "torchrun" in form else 1)


@pytest.mark.parametrize("words", ["-m sublaplace_cli.__main__", "-Bmsublaplace_cli", "-P -m sublaplace_cli"])
def test_other_ways_to_name_the_module(trap: Trap, words: str) -> None:
    done = run([sys.executable, *words.split(), "select", "--k", "many"], trap.folder)
    assert trap.executed == []
    assert (done.returncode, "many" in done.stderr) == (2, True), done.stderr


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the guide names the modules of 3.11")
def test_the_guide_names_all_modules_that_python_imports_first(trap: Trap) -> None:
    guide = (ROOT / "sublaplace_cli/guide/security.md").read_text()
    listed = re.search(r"what `-m` needs \(in 3.11: (.*?)\)", guide, flags=re.DOTALL)
    assert listed is not None
    early = re.findall(r"\w+", listed[1])
    for name in sys.stdlib_module_names.difference(early, SHADOWS):
        (trap.folder / f"{name}.py").write_text(trap.code(name))
    command = ["-m", "sublaplace_cli", "select", "--k", "many"]
    assert run([sys.executable, *command], trap.folder).returncode == 2
    assert trap.executed == []
    for name in early:
        (trap.folder / f"{name}.py").write_text(trap.code(name))
    assert run([sys.executable, "-P", *command], trap.folder).returncode == 2
    assert trap.executed == []
    run([sys.executable, *command], trap.folder)
    assert trap.executed != []


def with_setup(checkout: Path, name: str, last: str) -> list[str]:
    """Call of a copied script; its setup does not install, but starts Python as an installation does."""
    setup = checkout / ".ci" / "setup"
    setup.parent.mkdir()
    setup.write_text(f"setup_environment() {{ PYTHON={sys.executable}; $PYTHON -c 'import json'; {last}; }}\n")
    return ["bash", str(checkout / name)]


def test_the_quickstart_script_executes_nothing_in_its_folder(trap: Trap, tmp_path: Path) -> None:
    folder = tmp_path / "checkout" / "examples" / "quickstart"
    shutil.copytree(ROOT / "examples" / "quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"))
    Trap(folder, trap.record)
    done = run(with_setup(tmp_path / "checkout", "examples/quickstart/run", "true"), trap.folder)
    assert trap.executed == []
    assert done.returncode == 0, done.stderr
    assert "The posterior makes" in done.stdout


@pytest.mark.parametrize("name", SCRIPTS_WITH_SETUP)
def test_the_setup_of_a_script_executes_nothing_in_the_working_folder(trap: Trap, tmp_path: Path, name: str) -> None:
    script = tmp_path / "checkout" / name
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / name, script)
    done = run(with_setup(tmp_path / "checkout", name, "exit 7"), trap.folder)
    assert trap.executed == []
    assert done.returncode == 7, done.stderr


def test_allowed_code_is_imported_from_the_folder_of_the_spec(trap: Trap, tmp_path: Path) -> None:
    network = (
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))\n"
    )
    project = Project(tmp_path / "other")
    project.use(model={**project.spec["model"], "build": {"import": "net:make"}})
    (project.folder / "net.py").write_text(network)
    (trap.folder / "net.py").write_text(trap.code("net"))
    words = ["evaluate", "--spec", "../other/sublaplace.yaml", "--allow-code", "net", "--k", "5", "--json"]
    done = run([*FORMS["python -m"], *words], trap.folder)
    assert trap.executed == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["program.py"], ["-m", "program"], ["-m", "package"], ["-c", "import program"]])
def test_an_import_leaves_the_path_of_other_programs_alone(tmp_path: Path, words: list[str]) -> None:
    code = "import sys\nbefore = list(sys.path)\nimport sublaplace_cli\nassert sys.path == before\nprint('same')\n"
    (tmp_path / "package").mkdir()
    for name in ("program.py", "package/__init__.py", "package/__main__.py"):
        (tmp_path / name).write_text(code)
    done = run([sys.executable, *words], tmp_path)
    assert (done.returncode, set(done.stdout.split())) == (0, {"same"}), done.stderr
