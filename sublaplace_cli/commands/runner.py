"""From a job to its outcome: check, open the run, run the command, write its files, judge."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from ..core.workers import SINGLE_WORKER, WorkerGroup
from ..device import OUT_OF_MEMORY
from ..errors import UserError
from ..files.artifacts.artifact import Artifact
from ..files.artifacts.atomic import replacing, write_text
from ..files.spec.gate import limits_of
from ..files.spec.loading import LoadedSpec
from ..reporter import Reporter
from ..results.baseline import load_baseline
from ..results.figures import Figures
from ..results.gate import judge
from ..results.result import Answer, Listing, Result, json_text
from ..results.sweep import combine, combine_plans
from ..run.job import Job
from ..run.open_run import open_run
from ..run.output_files import Line, check_outputs, write_lines, write_tensors
from ..run.posteriors.fitting import open_posterior, require_room_for, scales_of
from ..run.rows.row_storage import follow
from ..run.run import Run
from .early_checks import check_run, check_sweep
from .evaluate import evaluate
from .fit import fit
from .jacobians import jacobians
from .plan import Estimate, plan
from .predict import predict
from .scoring.figures import figures_of
from .scoring.outcome import Evaluation
from .select import select
from .sweep import SweepRun, is_sweep, runs_of, with_time_left

LEAST_MEMORY = 2**14  # bytes: trying with less is useless
RUN_COMMAND: dict[str, Callable[[Run], Evaluation | dict[str, Any]]]
RUN_COMMAND = {"jacobians": jacobians, "select": select, "fit": fit, "evaluate": evaluate}


@dataclass(frozen=True)
class Outcome:
    """The result, and the data for pictures and reports."""

    answer: Answer
    figures: Figures | None = None  # if a picture or a report was requested
    lines: tuple[Line, ...] = ()  # of the predictions file


def run_job(
    job: Job, spec: LoadedSpec, reporter: Reporter, workers: WorkerGroup = SINGLE_WORKER, spent: float = 0.0
) -> Outcome:
    """Run one of the four commands, once or as a sweep; `spent` are the seconds that it took to start."""
    begun = time.process_time() - spent
    check_outputs(job)
    check_sweep(job)
    baseline = None if job.outputs.baseline is None else load_baseline(job.outputs.baseline)
    artifact, scales = _posterior(job)
    command = RUN_COMMAND[job.command] if artifact is None else partial(predict, artifact=artifact)
    runs, outcomes = runs_of(job), list[Outcome]()
    for member in with_time_left(runs, reporter) if is_sweep(job) else runs:
        with open_run(member.job, spec, reporter, workers, scales) as run:
            check_run(run)
            if artifact is not None:
                require_room_for(artifact, run.memory)
            elif not job.compute.dry_run:
                run.store.open_folder()
            done: Listing | Evaluation | dict[str, Any] | None = None
            if job.compute.dry_run:
                done, begun = plan(run, time.process_time() - begun), time.process_time()
            elif artifact is None and workers.size == 1 and (expected := Estimate(run).expectation()) is not None:
                # Not with several workers: the others would wait while one of them measures.
                reporter.note(expected)
            while done is None:
                try:
                    done = command(run)
                except OUT_OF_MEMORY:
                    # Half the budget may be enough; what is finished is in the store. Not with several workers: the
                    # others are inside the collective call that failed here.
                    if run.workers.size > 1 or run.memory < 2 * LEAST_MEMORY:
                        raise
                if done is None:  # outside the handler: the exception keeps tensors alive
                    run = run.with_half_the_memory()
            label = {"checkpoint": member.checkpoint, "seed": member.seed} if is_sweep(job) else {}
            outcomes.append(_outcome(run, done, label, is_first=not outcomes))
    if lines := [line for outcome in outcomes for line in outcome.lines]:
        write_lines(cast(Path, job.outputs.predictions), lines)
    outcome = _combined(job, runs, outcomes) if is_sweep(job) else outcomes[0]
    if isinstance(outcome.answer, Listing):
        return outcome
    limits = [*limits_of(spec.spec.gate), *job.limits]
    return replace(outcome, answer=judge(outcome.answer, limits, baseline, job.outputs.significant))


def follow_job(job: Job, spec: LoadedSpec, reporter: Reporter, workers: WorkerGroup) -> None:
    """On all workers but the leader: open the same runs and take part in its collective calls."""
    _, scales = _posterior(job)
    for member in runs_of(job):
        with open_run(member.job, spec, reporter, workers, scales) as run:
            follow(run.row_source, workers)


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the command line names: to a temporary file in its folder, synced, then renamed."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _outcome(run: Run, done: Listing | Evaluation | dict[str, Any], label: dict[str, Any], is_first: bool) -> Outcome:
    """Write the output files of one run, other than its artifacts; the lines of all runs go to one file."""
    seconds = {name: round(value, 4) for name, value in run.store.seconds.items()}
    if isinstance(done, Listing):
        return Outcome(done)
    if isinstance(done, dict):
        artifacts = {"artifacts": dict(sorted(run.store.artifacts.items()))}
        tuned = {"tuned": done.pop("tuned")} if "tuned" in done else {}
        return Outcome(Listing({"schema": 1, **done, **artifacts, **tuned, "seconds": seconds}))
    if run.job.posterior.posterior is None:
        text = json_text(done.result.reproducible())  # the same inputs give the same bytes
        write_text(run.store.folder.path / "evaluation.json", text + "\n")
    figures = _figures(run, done) if is_first else None  # in a sweep they show the first run
    path, lines = run.job.outputs.predictions, list[Line]()
    if path is not None and path.suffix == ".safetensors":
        write_tensors(path, run, done.first.predictions[0], done.first.known)
    elif path is not None:
        lines = [line for own in done.sets for line in own.lines(label | done.label_of(own))]
    return Outcome(replace(done.result, seconds=seconds), figures, tuple(lines))


def _combined(job: Job, runs: list[SweepRun], outcomes: list[Outcome]) -> Outcome:
    answers = [outcome.answer for outcome in outcomes]
    if job.compute.dry_run:
        plans = [answer for answer in answers if isinstance(answer, Listing)]
        return Outcome(combine_plans([member.checkpoint for member in runs], plans))
    labels = [(member.checkpoint, member.seed) for member in runs]
    results = [answer for answer in answers if isinstance(answer, Result)]
    return Outcome(combine(labels, results), outcomes[0].figures)


def _posterior(job: Job) -> tuple[Artifact | None, Any]:
    """The posterior from --posterior and the scales of its rows; nothing if the job fits its own."""
    if job.posterior.posterior is None:
        return None, None
    artifact = open_posterior(job.posterior.posterior, f"--posterior {job.posterior.posterior}")
    return artifact, scales_of(artifact)


def _figures(run: Run, evaluation: Evaluation) -> Figures | None:
    outputs = run.job.outputs
    if outputs.plot is None and outputs.report is None:
        return None
    figures = figures_of(evaluation, run.layout)
    if outputs.plot is not None and figures.test_set is not None and outputs.plot_kind != "map":
        run.reporter.note(f"--plot: it shows {figures.test_set}, the first of the sets of test rows")
    if outputs.plot is not None and (why := figures.missing.get(outputs.plot_kind or "")):
        raise UserError(f"--plot-kind {outputs.plot_kind}: {why}")
    return figures
