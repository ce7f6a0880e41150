"""Files that the command line names for writing: never overwritten without --force, and never an input of the run."""

import os
from pathlib import Path

from ...errors import UserError
from ...files.artifacts.atomic import PART_SUFFIX
from ..job import Job
from ..run import Run


def check_outputs(job: Job) -> None:
    """No file exists yet, unless --force is given; its folder exists; no two are the same."""
    seen: set[Path] = set()
    for option, path in job.outputs.named():
        try:
            exists, resolved = path.exists(), path.resolve()
        except OSError as error:
            raise UserError(f"{option} {path}: {error.strerror}") from error
        if resolved in seen:
            raise UserError(f"{option} {path}: two results cannot go to the same file")
        if path.is_dir():
            raise UserError(f"{option} {path} is a folder, expected a file name")
        if exists and not path.is_file():
            raise UserError(f"{option} {path} is not a regular file", hint="for stdout, leave the option out")
        if exists and not job.compute.force:
            raise UserError(f"{option} {path}: the file exists already", hint="choose another name, or add --force")
        if not path.absolute().parent.is_dir():
            raise UserError(f"{option} {path}: there is no folder {path.absolute().parent}")
        if not job.compute.dry_run:
            _try_to_write(option, path)
        seen.add(resolved)


def _try_to_write(option: str, path: Path) -> None:
    """Fail now, not after the work."""
    trial = path.with_name(f".{path.name}.{os.getpid()}{PART_SUFFIX}")
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise UserError(f"{option} {path}: it cannot be written here: {error.strerror}") from error


def protect_inputs(run: Run) -> None:
    """Refuse to overwrite an input of the run, even with --force."""
    job = run.job
    named = (job.outputs.baseline, job.posterior.posterior, job.posterior.indices)
    inputs = {path.resolve() for path in (*run.network.files, *named) if path is not None}
    for option, path in job.outputs.named():
        if path.resolve() in inputs:
            raise UserError(f"{option} {path}: this file is an input of the run", hint="choose another name")
