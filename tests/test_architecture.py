"""The shape of the code: layers, file sizes, and who may use what."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from sublaplace_cli import catalog

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sublaplace_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
# What each layer may import of the package, besides itself.
BELOW = {
    "errors": set(),
    "catalog": {"errors"},
    "limits": {"errors", "catalog"},
    "core": {"errors"},
    "models": {"errors"},
    "files": {"errors", "catalog", "limits", "core", "models"},
    "device": {"errors"},
    "ranks": {"errors"},
    "vigil": {"errors", "ranks"},
    "parallel": {"errors", "signals", "ranks", "core", "device", "vigil"},
    "steps": {"errors", "catalog", "limits", "core", "files", "device", "__init__"},
    "console": {"errors", "signals"},
    "signals": set(),
    "formats": {"console", "steps"},
    "formats_ci": {"formats", "steps"},
    "plots": {"steps"},
    "report": {"catalog", "formats", "plots", "steps"},
    "options": {"catalog"},
    "app": {
        "errors",
        "signals",
        "catalog",
        "console",
        "formats",
        "formats_ci",
        "options",
        "parallel",
        "plots",
        "ranks",
        "report",
        "steps",
        "files",
        "__init__",
    },
    "__main__": {"app", "parallel", "signals"},
    "__init__": set(),
}


def layer(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Absolute dotted names of everything that a file imports, wherever in it."""
    package = ("sublaplace_cli", *path.relative_to(PACKAGE).parts[:-1])
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_only(path):
    own = layer(path)
    for name in imports(path):
        if name.startswith("sublaplace_cli."):
            target = name.split(".")[1]
            target = "__init__" if target == "__version__" else target
            assert target == own or target in BELOW[own], f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_under_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def attribute_uses(path: Path) -> set[str]:
    return {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}


def test_cuda_only_in_device_and_distributed_only_in_parallel():
    for path in FILES:
        used = attribute_uses(path) | imports(path)
        if layer(path) != "device":
            assert not any(name.startswith("torch.cuda") for name in used), path
        if layer(path) != "parallel":
            assert not any(name.startswith("torch.distributed") for name in used), path


def calls(path: Path, name: str) -> list[ast.Call]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == name]


def test_print_only_in_console():
    assert [path for path in FILES if calls(path, "print") and layer(path) != "console"] == []


def test_torch_load_is_never_called_without_weights_only():
    found = [call for path in FILES for call in calls(path, "torch.load")]
    assert found, "checkpoints are read somewhere"
    for call in found:
        assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords), ast.unparse(call)
    assert not [path for path in FILES if calls(path, "pickle.load") or calls(path, "pickle.loads")]


def test_the_command_line_loads_nothing_heavy():
    heavy = ("torch", "numpy", "pydantic", "rich")
    code = f"import sys, sublaplace_cli.cli.app; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "entry",
    [
        *[m.entry for m in catalog.METHODS.values() if m.entry],
        *catalog.LIKELIHOODS.values(),
        *catalog.FORMATS.values(),
        *catalog.PICTURES.values(),
        *catalog.DATA_FORMATS.values(),
        *catalog.ARCHITECTURES.values(),
    ],
)
def test_catalog_entries_exist(entry):
    assert callable(catalog.load(entry))


def test_only_agreed_names_at_the_top():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    top = {line.split("/")[0] for line in tracked.stdout.splitlines()}
    agreed = {"sublaplace_cli", "tests", "examples", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} <= agreed
