"""A command from its settings to its outcome: check, open a session, run the step, keep what it gave, judge it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.workers import SINGLE_WORKER, WorkerGroup
from ..device import OUT_OF_MEMORY
from ..errors import UserError
from ..files.artifacts.atomic import write_text
from ..files.spec.gate import limits_of
from ..files.spec.spec import LoadedSpec
from ..results.baseline import load_baseline
from ..results.gate import judge, limits_of_command
from . import evaluate, fit, jacobians, product, select
from .evaluate import Evaluation
from .figures import Figures, figures_of
from .following import follow
from .opening import open_session
from .outputs import check_outputs, protect_inputs
from .plan import plan, plan_of_sweep
from .predictions import Line, check_predictions, prediction_lines, write_lines, write_predictions
from .request import Choice, choices, single_choice
from .select import check_choice
from .session import Session
from .settings import Reporter, Settings
from .sweep import Member, combined, each_with_time_left, is_sweep, members_of
from .tuning import tune

Render = Callable[[dict[str, Any]], str]
LEAST_MEMORY = 2**14  # no use in trying with less


@dataclass(frozen=True)
class Outcome:
    """The result as printed, and what pictures and reports are made of."""

    result: dict[str, Any]
    spec: LoadedSpec
    figures: Figures | None = None  # where --plot or --report asks for them
    lines: tuple[Line, ...] = ()  # of --predictions, in a sweep


def run_command(
    command: str, settings: Settings, report: Reporter, render: Render, workers: WorkerGroup = SINGLE_WORKER
) -> Outcome:
    """Run one of the four commands; `render(result)` is the text for `evaluation.json`."""
    check_outputs(settings)
    baseline = None if settings.baseline is None else load_baseline(settings.baseline)
    if is_sweep(settings):
        outcome = _sweep(command, settings, report, render, workers)
    elif settings.posterior is not None:
        outcome = _predict(settings, report, workers)
    else:
        outcome = _run_once(command, settings, report, render, workers)
    if command == "evaluate" and not settings.dry_run:
        limits = [*limits_of(outcome.spec.spec.gate), *limits_of_command(settings)]
        outcome.result["gate"] = judge(outcome.result, limits, baseline, settings.significant)
    return outcome


def follow_command(command: str, settings: Settings, report: Reporter, workers: WorkerGroup) -> None:
    """On all members of a team but its leader: the same sessions as it has, to answer its questions in each."""
    if settings.posterior is not None:
        found = product.open_posterior(settings)
        with open_session(settings, report, ("test",), scales=product.scales_of(found), workers=workers) as session:
            follow(session)
        return
    for member in members_of(settings) if is_sweep(settings) else [Member("", settings.seed, settings)]:
        with open_session(member.settings, report, *_splits(command, settings), workers=workers) as session:
            follow(session)


def _run_once(
    command: str,
    settings: Settings,
    report: Reporter,
    render: Render,
    workers: WorkerGroup,
    place: dict[str, Any] | None = None,
) -> Outcome:
    """One run; as part of a sweep it has a `place` there, which its lines of predictions name."""
    wanted = _choices(command, settings)
    if settings.predictions is not None:
        check_predictions(settings.predictions, len(wanted) if place is None else 2)
    needs, welcome = _splits(command, settings)
    with open_session(settings, report, needs, welcome, workers=workers) as session:
        protect_inputs(session)
        for choice in wanted:
            check_choice(session, choice)
        evaluate.check_bracket(session, wanted)
        _check_plot(session, wanted)
        if settings.dry_run:
            return Outcome(plan(session, command, wanted), session.spec)
        return _within_memory(session, lambda: _work(session, command, wanted, render, place))


def _work(
    session: Session, command: str, wanted: list[Choice], render: Render, place: dict[str, Any] | None
) -> Outcome:
    settings = session.settings
    if session.tuned is None and (command != "jacobians" or settings.scores_only or settings.split == "all"):
        tune(session, wanted)
    if command == "evaluate":
        return _evaluate(session, render, place)
    step = {"jacobians": jacobians, "select": select, "fit": fit}[command]
    result = {"schema": 1, **step.run(session), "artifacts": dict(sorted(session.artifacts.items()))}
    return Outcome(_finished(session, result), session.spec)


def _within_memory(session: Session, work: Callable[[], Outcome]) -> Outcome:
    """Again with half the memory where there was too little: what is finished is in the run folder by then.

    Not in a workers: the others are in the midst of the question that failed here.
    """
    while True:
        try:
            return work()
        except OUT_OF_MEMORY:
            if session.workers.size > 1 or session.memory < 2 * LEAST_MEMORY:
                raise
        session.shrink()


def _evaluate(session: Session, render: Render, place: dict[str, Any] | None) -> Outcome:
    evaluation = evaluate.run(session)
    # Without `seconds` and folders: the same inputs give the same bytes.
    names = {stem: Path(path).name for stem, path in evaluation.result["artifacts"].items()}
    write_text(session.open_folder().path / "evaluation.json", render({**evaluation.result, "artifacts": names}) + "\n")
    lines: list[Line] = []
    if session.settings.predictions is not None and place is None:
        write_predictions(session.settings.predictions, session, evaluation)
    elif session.settings.predictions is not None:
        lines = prediction_lines(session, evaluation, **(place or {}))
    result = _finished(session, evaluation.result)
    return Outcome(result, session.spec, _figures(session, evaluation), tuple(lines))


def _finished(session: Session, result: dict[str, Any]) -> dict[str, Any]:
    tuned = {} if session.tuned is None else {"tuned": session.tuned}
    return {**result, **tuned, "seconds": {name: round(value, 4) for name, value in session.seconds.items()}}


def _sweep(command: str, settings: Settings, report: Reporter, render: Render, workers: WorkerGroup) -> Outcome:
    if command != "evaluate" or settings.posterior is not None:
        what = command if settings.posterior is None else "evaluate --posterior"
        raise UserError(
            f"{what} takes one checkpoint and one seed",
            hint=f'call it once for each: for c in runs/*.pt; do sublaplace {command} --checkpoint "$c"; done',
        )
    members, outcomes = members_of(settings), list[Outcome]()
    for member in each_with_time_left(members, report):
        place = {"checkpoint": member.checkpoint, "seed": member.seed}
        outcome = _run_once(command, member.settings, report, render, workers, place)
        # Pictures besides the curves are of the first run.
        outcomes.append(outcome if not outcomes else replace(outcome, figures=None))
    if settings.dry_run:
        plans = [outcome.result for outcome in outcomes]
        return Outcome(plan_of_sweep([member.checkpoint for member in members], plans), outcomes[0].spec)
    lines = [line for outcome in outcomes for line in outcome.lines]
    if settings.predictions is not None:
        write_lines(settings.predictions, lines)
    result = combined(members, [outcome.result for outcome in outcomes])
    return Outcome(result, outcomes[0].spec, outcomes[0].figures)


def _predict(settings: Settings, report: Reporter, workers: WorkerGroup) -> Outcome:
    """`evaluate --posterior FILE`."""
    found = product.open_posterior(settings)
    with open_session(settings, report, ("test",), scales=product.scales_of(found), workers=workers) as session:
        protect_inputs(session)
        if settings.dry_run:
            raise UserError("--dry-run has nothing to tell of --posterior: no artifact is written")
        evaluation = product.run(session, found)
        if settings.predictions is not None:
            write_predictions(settings.predictions, session, evaluation)
        return Outcome(_finished(session, evaluation.result), session.spec, _figures(session, evaluation))


def _figures(session: Session, evaluation: Evaluation) -> Figures | None:
    settings = session.settings
    if settings.plot is None and settings.report is None:
        return None
    figures = figures_of(session, evaluation)
    if settings.plot is not None and (why := figures.missing.get(settings.plot_kind or "")):
        raise UserError(f"--plot-kind {settings.plot_kind}: {why}")
    return figures


def _check_plot(session: Session, wanted: list[Choice]) -> None:
    """What can be known of a picture before anything is computed."""
    kind = session.settings.plot_kind
    if kind == "map" and not any(choice.call.selects for choice in wanted):
        raise UserError("--plot-kind map: no method of this evaluation chooses a sub-network")
    if kind == "calibration" and session.split("test").targets is None:
        raise UserError("--plot-kind calibration: the test rows have no targets")


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
