"""The help of each command, and the options that messages name."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from cli.cli_tools import Project, Tool, core

import sublaplace_cli
from sublaplace_cli.catalog import METHODS
from sublaplace_cli.cli.app import app
from sublaplace_cli.cli.settings import COMMANDS, GROUPS

PACKAGE = Path(sublaplace_cli.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]|(?<![\w-])--k\b")
REFERENCES = {name for name, method in METHODS.items() if method.kind == "reference"}
FEATURES = {name for name, method in METHODS.items() if method.kind == "features"}


def options_of(command: str) -> dict[str, list[str]]:
    """All spellings of each option, by its name."""
    parsed = typer.main.get_command(app).commands[command]
    return {parameter.name: list(parameter.opts) for parameter in parsed.params}


ALL_COMMANDS = tuple(typer.main.get_command(app).commands)
OPTIONS = {flag for command in ALL_COMMANDS for flags in options_of(command).values() for flag in flags} | {"--help"}


def texts() -> Iterator[tuple[str, str]]:
    """(place, text) of every string in the package, parts of f-strings too."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node.value


def test_every_option_that_a_text_names_exists() -> None:
    named = [(place, word) for place, text in texts() for word in OPTION.findall(text)]
    assert len({word for _, word in named}) > 20
    assert [f"{place}: {word}" for place, word in named if word not in OPTIONS] == []


OF_OTHER_TOOLS = {
    *("--nnodes", "--nproc-per-node", "--no-python", "--rdzv-backend", "--rdzv-endpoint"),  # torchrun
    *("--quick", "--data-dir", "--only"),  # examples/paper/run
    *("--count", "--index-url"),  # tests/fuzz/run, pip
}


def test_every_option_that_a_page_or_a_workflow_names_exists() -> None:
    root = PACKAGE.parent
    pages = [root / "README.md", root / "CHANGELOG.md", *(PACKAGE / "guide").glob("*.md"), *root.glob("examples/ci/*")]
    named = {(page.name, word) for page in pages for word in OPTION.findall(page.read_text())}
    assert len({word for _, word in named}) > 40
    assert sorted((page, word) for page, word in named if word not in OPTIONS | OF_OTHER_TOOLS) == []
    assert not OPTIONS & OF_OTHER_TOOLS


def test_no_text_sends_anyone_to_a_deprecated_option() -> None:
    """It is named where it is declared and where its use is noted."""
    places = {place.partition(":")[0] for place, text in texts() if "--force" in text}
    assert places == {"cli/app.py"}


INSTALLS = re.compile(r"\b(?:pip3?|pipx|uv|poetry|conda|mamba)\b[^\n`]*?\b(?:install|add)\b[^\n`]*")
FROM_AN_INDEX = re.compile(r"(?<![\w/.$}-])sublaplace(?![\w/-])")
EXTRA = re.compile(r"\[([a-z,]+)\]")


def install_commands() -> Iterator[tuple[str, str, str]]:
    """(file, command, the paragraph or table row around it) of every file that ships, but not of the tests."""
    root = PACKAGE.parent
    shipped = [
        *root.glob("*.*"),
        *(path for name in ("sublaplace_cli", "examples", ".ci") for path in root.rglob(f"{name}/**/*")),
    ]
    for path in shipped:
        if path.suffix in (".md", ".py", ".yml", ".yaml", ".toml", ".txt", "") and path.is_file():
            text = path.read_text()
            for found in INSTALLS.finditer(text):
                start, end = text.rfind("\n\n", 0, found.start()) + 1, text.find("\n\n", found.end())
                yield str(path.relative_to(root)), found[0], text[start : end if end > 0 else None]


def test_installing_works_from_a_clone() -> None:
    """There is no release that `pip install sublaplace` could find."""
    found = list(install_commands())
    assert {"README.md", "sublaplace_cli/errors.py", "examples/ci/github-actions.yml"} <= {file for file, *_ in found}
    assert [(file, command) for file, command, _ in found if FROM_AN_INDEX.search(command)] == []
    extras = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for file, command, around in found:
        for names in EXTRA.findall(command):
            assert set(names.split(",")) <= set(extras), (file, command)
            assert "clone" in around.lower() or file.startswith("examples/"), (file, command)


def test_a_command_that_needs_a_release_is_seen() -> None:
    for command in (
        "pip install sublaplace",
        "pip install -U 'sublaplace[plot]'",
        "uv add sublaplace",
        "pipx install sublaplace",
    ):
        assert any(FROM_AN_INDEX.search(found) for found in INSTALLS.findall(command)), command
    for command in (
        "pip install '.[plot]'",
        'pip install "${SUBLAPLACE}[plot]"',
        "pip install ./sublaplace",
        "pip install torch",
    ):
        assert not any(FROM_AN_INDEX.search(found) for found in INSTALLS.findall(command)), command


def test_only_one_message_says_how_to_install() -> None:
    places = {place.partition(":")[0] for place, text in texts() if "pip install" in text}
    assert places == {"errors.py"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_one_group(command: str) -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(COMMANDS[command].fields) <= set(grouped)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_two_options_share_a_flag(command: str) -> None:
    flags = [flag for own in options_of(command).values() for flag in own]
    assert len(flags) == len(set(flags))
    assert {"-f", "-o", "-q", "-v"} <= set(flags)
    assert ({"-m", "-k"} <= set(flags)) == (command != "jacobians")


def test_the_help_has_its_groups_and_examples(tool: Tool, tmp_path: Path) -> None:
    shown = tool("evaluate", "--help", cwd=tmp_path).out
    sections = re.findall(r"^(\w[\w ]*):$", shown, re.M)
    assert sections == ["What", "Model and data", "Output", "Gates", "Resources", "Other"]
    gates = shown.partition("\nGates:\n")[2].partition("\nResources:\n")[0]
    assert set(re.findall(r"^  (--[a-z-]+)", gates, re.M)) == {
        *("--fail-if", "--baseline", "--max-regression", "--significant")
    }
    for line in COMMANDS["evaluate"].examples:
        assert line in shown
    assert "Gates:" not in tool("select", "--help", cwd=tmp_path).out


@pytest.mark.parametrize(
    ("command", "refuses"),
    [("select", REFERENCES | FEATURES), ("fit", REFERENCES - {"full"}), ("evaluate", set())],
)
def test_a_command_offers_the_methods_that_it_takes(
    tool: Tool, tmp_path: Path, command: str, refuses: set[str]
) -> None:
    words = " ".join(tool(command, "--help", cwd=tmp_path).out.replace("-\n", "-").split())
    offered = re.search(r"one of (.*?),? names: ?PATTERN", words).group(1).replace("- ", "-").split(", ")
    assert offered == [name for name in METHODS if name not in refuses]
    (option,) = (own for own in typer.main.get_command(app).commands[command].params if own.name == "method")
    completed = [found if isinstance(found, str) else found.value for found in option.shell_complete(None, "")]
    assert completed == [*offered, "names:"]


def test_a_method_that_is_not_offered_is_refused(tool: Tool, project: Project) -> None:
    for command, name in (("select", "full"), ("select", "map"), ("fit", "map"), ("fit", "kfac")):
        run = tool(command, "--method", name, cwd=project.folder)
        assert (run.code, f"'{name}' is a reference" in run.err) == (2, True)


def test_short_forms(tool: Tool, project: Project) -> None:
    short = tool("evaluate", "-m", "greedy", "-k", 5, "-f", "json", cwd=project.folder)
    long = tool("evaluate", "--method", "greedy", "--k", 5, "--format", "json", cwd=project.folder)
    assert core(short.json()) == core(long.json())
