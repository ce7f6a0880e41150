"""Files that the command line names for writing: never overwritten unasked, and never an input of the run."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UserError
from ..files.artifacts.atomic import PART
from .session import Session
from .settings import Settings


def _named_outputs(settings: Settings) -> list[tuple[str, Path]]:
    single = {"--predictions": settings.predictions, "--plot": settings.plot, "--report": settings.report}
    named = [("-o", path) for path in settings.output]
    return [*named, *((option, path) for option, path in single.items() if path is not None)]


def check_outputs(settings: Settings) -> None:
    """They are not there yet, unless --force is given; their folder is; no two are the same."""
    seen: set[Path] = set()
    for option, path in _named_outputs(settings):
        try:
            exists, place = path.exists(), path.resolve()
        except OSError as error:
            raise UserError(f"{option} {path}: {error.strerror}") from error
        if place in seen:
            raise UserError(f"{option} {path}: two results cannot go to the same file")
        if path.is_dir():
            raise UserError(f"{option} {path} is a folder, expected a file name")
        if exists and not path.is_file():
            raise UserError(f"{option} {path} is not a regular file", hint="for stdout, leave the option out")
        if exists and not settings.force:
            raise UserError(f"{option} {path}: the file exists already", hint="choose another name, or add --force")
        if not path.absolute().parent.is_dir():
            raise UserError(f"{option} {path}: there is no folder {path.absolute().parent}")
        if not settings.dry_run:
            _try_to_write(option, path)
        seen.add(place)


def _try_to_write(option: str, path: Path) -> None:
    """Better now than after the work."""
    trial = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise UserError(f"{option} {path}: it cannot be written here: {error.strerror}") from error


def protect_inputs(session: Session) -> None:
    """Not even --force may overwrite what the run reads."""
    settings = session.settings
    named = (settings.baseline, settings.posterior, settings.indices)
    inputs = {path.resolve() for path in (*session.input_files, *named) if path is not None}
    for option, path in _named_outputs(session.settings):
        if path.resolve() in inputs:
            raise UserError(f"{option} {path}: this file is an input of the run", hint="choose another name")
