"""Whole commands from Python: the same options, the same artifacts, the same result."""

from pathlib import Path
from typing import Any, get_type_hints

from ..cli.deliver import write_files
from ..cli.settings import COMMANDS, Settings
from ..cli.usage import parse_job
from ..errors import UserError, suggestion
from ..files.spec.loading import find_spec, load_spec
from ..reporter import Reporter, Silent


def run_command(command: str, *, reporter: Reporter | None = None, **options: Any) -> dict[str, Any]:
    """Run `jacobians`, `select`, `fit` or `evaluate` in this process; returns the result as `--json` prints it.

    Options are those of the command line, with `_` for `-`; options that may be repeated take lists.

    >>> result = run_command("evaluate", spec=spec, method="gradient,map", k="20")
    >>> [row["method"] for row in result["rows"]]
    ['gradient', 'map']
    """
    from ..commands.runner import run_job

    if command not in COMMANDS:
        raise UserError(f"unknown command '{command}'", hint=suggestion(command, COMMANDS))
    job = parse_job(command, Settings(**{name: _typed(name, value) for name, value in options.items()}))
    spec = load_spec(job.project.spec or find_spec(Path.cwd()))
    outcome = run_job(job, spec, Silent() if reporter is None else reporter)
    if not job.compute.dry_run:
        write_files(job, outcome, spec)
    return outcome.answer.as_dict()


def _typed(name: str, value: Any) -> Any:
    """The value as the command line would pass it: `k=20` and paths as text are accepted."""
    kinds = str(get_type_hints(Settings).get(name))
    if isinstance(value, (list, tuple)):
        return tuple(map(Path, value)) if "Path" in kinds else tuple(value)
    if value is None or isinstance(value, bool):
        return value
    return Path(value) if "Path" in kinds else str(value) if "str" in kinds else value
