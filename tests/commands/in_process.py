"""Commands without a process of their own: from settings to the result as a dictionary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sublaplace_cli.cli.settings import Settings
from sublaplace_cli.cli.usage import parse_job
from sublaplace_cli.commands.runner import run_job
from sublaplace_cli.core.workers import SINGLE_WORKER
from sublaplace_cli.files.spec.loading import find_spec, load_spec
from sublaplace_cli.reporter import Reporter, Silent


class Notes(Silent):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def result_of(command: str, settings: Settings, reporter: Reporter) -> dict[str, Any]:
    """What the command line prints with --json."""
    job = parse_job(command, settings)
    spec = load_spec(job.project.spec or find_spec(Path.cwd()))
    return run_job(job, spec, reporter, SINGLE_WORKER).answer.as_dict()
