"""A command from its settings to its result: check, open a session, run the step, keep what it gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files.atomic import write_text
from . import evaluate, fit, jacobians, select
from .plan import plan
from .predictions import check_predictions, write_predictions
from .request import Choice, actual_k, choices, single_choice
from .session import Session, open_session
from .settings import Reporter, Settings

SPLITS_NEEDED = {
    "jacobians": ("train",),
    "select": ("train", "reference"),
    "fit": ("train", "reference"),
    "evaluate": ("train", "test", "reference"),
}


def run_command(command: str, settings: Settings, report: Reporter, render: Any) -> dict[str, Any]:
    """Run one of the four commands; `render(result)` is the text for `evaluation.json`."""
    wanted = _choices(command, settings)
    check_outputs(settings)
    if settings.predictions is not None:
        check_predictions(settings.predictions, len(wanted))
    with open_session(settings, report, _needs(command, settings)) as session:
        for choice in wanted:
            actual_k(choice, session.layout.size)  # k > p is known before any computing
        if settings.dry_run:
            return plan(session, command, wanted)
        result = _run(command, session, render)
        result["artifacts"] = dict(sorted(session.artifacts.items()))
        result["seconds"] = {name: round(value, 4) for name, value in session.seconds.items()}
        return {"schema": 1, **result}


def _choices(command: str, settings: Settings) -> list[Choice]:
    if command == "jacobians" or (command == "fit" and settings.indices is not None):
        return []
    return choices(settings) if command == "evaluate" else [single_choice(settings, command)]


def _needs(command: str, settings: Settings) -> tuple[str, ...]:
    needs = set(SPLITS_NEEDED[command])
    if settings.reference == "test":
        needs.add("test")
    if command == "jacobians":
        needs |= {"test", "reference"} if settings.split == "all" and not settings.scores_only else {settings.split}
        needs = (needs - {"all"}) | ({"reference"} if settings.scores_only else set())
    return tuple(sorted(needs))


def _run(command: str, session: Session, render: Any) -> dict[str, Any]:
    if command != "evaluate":
        return {"jacobians": jacobians, "select": select, "fit": fit}[command].run(session)
    evaluation = evaluate.run(session)
    # Without `seconds`: the same inputs give the same bytes.
    write_text(session.open_folder().path / "evaluation.json", render(evaluation.result) + "\n")
    if session.settings.predictions is not None:
        write_predictions(session.settings.predictions, session, evaluation)
    return evaluation.result


def check_outputs(settings: Settings) -> None:
    """Files named on the command line are never overwritten unasked, and their folder must be there."""
    named: list[tuple[str, Path | None]] = [("-o", path) for path in settings.output]
    for option, path in [*named, ("--predictions", settings.predictions)]:
        if path is None:
            continue
        if path.exists() and not settings.force:
            raise UserError(f"{option} {path}: the file exists already", hint="choose another name, or add --force")
        if not path.absolute().parent.is_dir():
            raise UserError(f"{option} {path}: there is no folder {path.absolute().parent}")
