"""Whole commands from Python: the same options, the same artifacts, the same result."""

from pathlib import Path
from typing import Any

from ..cli.settings import Settings
from ..cli.usage import parse_job
from ..files.spec.loading import find_spec, load_spec
from ..reporter import Reporter, Silent


def run_command(command: str, *, reporter: Reporter | None = None, **options: Any) -> dict[str, Any]:
    """Run `jacobians`, `select`, `fit` or `evaluate` in this process; returns the result as `--json` prints it.

    Options are those of the command line, with `_` for `-`: text as typed, tuples for options that may be repeated.

    >>> result = run_command("evaluate", spec=spec, method="gradient,map", k="20")
    >>> [row["method"] for row in result["rows"]]
    ['gradient', 'map']
    """
    from ..commands.runner import run_job

    job = parse_job(command, Settings(**{name: _typed(value) for name, value in options.items()}))
    spec = load_spec(job.project.spec or find_spec(Path.cwd()))
    return run_job(job, spec, Silent() if reporter is None else reporter).answer.as_dict()


def _typed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
