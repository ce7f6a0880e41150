"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.cli_tools import Project, Tool


@pytest.fixture(scope="session")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    """Calls the tool: `tool("evaluate", "--k", 5, cwd=folder)`."""
    return Tool(tmp_path_factory.mktemp("streams"))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Project]:
    """A fresh project: `make("binary")`."""

    def build(task: str = "regression", outputs: int = 1, name: str = "project", **more: Any) -> Project:
        return Project(tmp_path / name, task, outputs, **more)

    return build


@pytest.fixture
def project(make: Callable[..., Project]) -> Project:
    """The small regression project."""
    return make()
