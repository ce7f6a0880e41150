"""A command from its settings to its result: check, open a session, run the step, keep what it gave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files.atomic import write_text
from . import evaluate, fit, jacobians, product, select
from .plan import plan
from .predictions import check_predictions, write_predictions
from .request import Choice, choices, single_choice
from .select import check_choice
from .session import Session, open_session
from .settings import Reporter, Settings
from .tuning import tune

Render = Callable[[dict[str, Any]], str]


def run_command(command: str, settings: Settings, report: Reporter, render: Render) -> dict[str, Any]:
    """Run one of the four commands; `render(result)` is the text for `evaluation.json`."""
    check_outputs(settings)
    if settings.posterior is not None:
        return _predict(settings, report)
    wanted = _choices(command, settings)
    if settings.predictions is not None:
        check_predictions(settings.predictions, len(wanted))
    needs, welcome = _splits(command, settings)
    with open_session(settings, report, needs, welcome) as session:
        _protect_inputs(session)
        for choice in wanted:
            check_choice(session, choice)
        evaluate.check_bracket(session, wanted)
        if settings.dry_run:
            return plan(session, command, wanted)
        if command != "jacobians" or settings.scores_only or settings.split == "all":
            tune(session, wanted)
        result = {"schema": 1, **_run(command, session, render)}
        if command != "evaluate":
            result["artifacts"] = dict(sorted(session.artifacts.items()))
        if session.tuned is not None:
            result["tuned"] = session.tuned
        result["seconds"] = {name: round(value, 4) for name, value in session.seconds.items()}
        return result


def _predict(settings: Settings, report: Reporter) -> dict[str, Any]:
    """`evaluate --posterior FILE`."""
    found = product.open_posterior(settings)
    with open_session(settings, report, ("test",), scales=product.scales_of(found)) as session:
        _protect_inputs(session)
        if settings.dry_run:
            raise UserError("--dry-run has nothing to tell of --posterior: no artifact is written")
        evaluation = product.run(session, found)
        if settings.predictions is not None:
            write_predictions(settings.predictions, session, evaluation)
        return {**evaluation.result, "seconds": {name: round(value, 4) for name, value in session.seconds.items()}}


def _choices(command: str, settings: Settings) -> list[Choice]:
    if command == "jacobians" or (command == "fit" and settings.indices is not None):
        return []
    return choices(settings) if command == "evaluate" else [single_choice(settings, command)]


def _splits(command: str, settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Splits that the command needs, and those that it takes where the spec has them."""
    needs = ["train", "reference"] if command != "jacobians" or settings.scores_only else ["train"]
    if command == "evaluate" or settings.reference == "test":
        needs.append("test")
    if command != "jacobians" or settings.scores_only:
        return tuple(needs), ()
    if settings.split == "all":
        return (*needs, "reference"), ("test",)
    return (*needs, settings.split), ()


def _run(command: str, session: Session, render: Render) -> dict[str, Any]:
    if command != "evaluate":
        return {"jacobians": jacobians, "select": select, "fit": fit}[command].run(session)
    evaluation = evaluate.run(session)
    # Without `seconds` and folders: the same inputs give the same bytes.
    names = {stem: Path(path).name for stem, path in evaluation.result["artifacts"].items()}
    write_text(session.open_folder().path / "evaluation.json", render({**evaluation.result, "artifacts": names}) + "\n")
    if session.settings.predictions is not None:
        write_predictions(session.settings.predictions, session, evaluation)
    return evaluation.result


def _named_outputs(settings: Settings) -> list[tuple[str, Path]]:
    named = [("-o", path) for path in settings.output]
    return named if settings.predictions is None else [*named, ("--predictions", settings.predictions)]


def check_outputs(settings: Settings) -> None:
    """Files named on the command line are never overwritten unasked, and their folder must be there."""
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
        if exists and not settings.force:
            raise UserError(f"{option} {path}: the file exists already", hint="choose another name, or add --force")
        if not path.absolute().parent.is_dir():
            raise UserError(f"{option} {path}: there is no folder {path.absolute().parent}")
        seen.add(place)


def _protect_inputs(session: Session) -> None:
    """Not even --force may overwrite what the run reads."""
    inputs = {path.resolve() for path in session.input_files}
    for option, path in _named_outputs(session.settings):
        if path.resolve() in inputs:
            raise UserError(f"{option} {path}: this file is an input of the run", hint="choose another name")
