"""The runs of a sweep: several checkpoints or seeds, one after the other."""

import glob
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UserError
from ..reporter import Reporter
from ..run.job import Job


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    checkpoint: str
    seed: int
    job: Job


def is_sweep(job: Job) -> bool:
    """Whether there are several checkpoints, a glob of them, or several seeds."""
    checkpoints = job.project.checkpoint
    return len(checkpoints) > 1 or len(job.selection.seeds) > 1 or any(map(_is_pattern, checkpoints))


def runs_of(job: Job) -> list[SweepRun]:
    """Every checkpoint with every seed, in order; globs are expanded and sorted by name."""
    if not is_sweep(job):
        return [SweepRun("", job.selection.seed, job)]
    runs = []
    for checkpoint in _checkpoints(job):
        for seed in dict.fromkeys(job.selection.seeds or (0,)):
            folder = job.project.run_dir and job.project.run_dir / _folder(checkpoint, seed)
            checkpoints = () if checkpoint is None else (checkpoint,)
            project = replace(job.project, checkpoint=checkpoints, run_dir=folder)
            own = replace(job, project=project, selection=replace(job.selection, seeds=(seed,)))
            runs.append(SweepRun("the spec's" if checkpoint is None else checkpoint, seed, own))
    return runs


def _checkpoints(job: Job) -> list[str | None]:
    found: list[str] = []
    for word in job.project.checkpoint:
        files = sorted(filter(os.path.isfile, glob.glob(word, recursive=True))) if _is_pattern(word) else [word]
        if not files:
            raise UserError(f"--checkpoint {word}: no file matches this pattern")
        if not os.path.isfile(files[0]):  # checked before the first run starts
            raise UserError(f"--checkpoint {word}: no such file")
        found += files
    # Each file once, under any name: counting a run twice would make the standard error too small.
    once = {os.path.realpath(name): name for name in reversed(found)}
    return [*reversed(once.values())] or [None]


def _is_pattern(word: str) -> bool:
    return any(sign in word for sign in "*?[") and not os.path.exists(word)


def _folder(checkpoint: str | None, seed: int) -> str:
    """A folder name for each run, independent of the rest of the sweep."""
    path = "" if checkpoint is None else str(Path(checkpoint).resolve())
    stem = "model" if checkpoint is None else Path(checkpoint).stem
    return f"{stem}-{hashlib.sha256(f'{path} {seed}'.encode()).hexdigest()[:8]}"


def with_time_left(runs: Sequence[SweepRun], reporter: Reporter) -> Iterator[SweepRun]:
    """Iterate over the runs; note each one and the estimated remaining time."""
    started = time.monotonic()
    for number, run in enumerate(runs):
        spent = time.monotonic() - started
        left = f", about {_duration(spent / number * (len(runs) - number))} left" if number else ""
        reporter.note(f"run {number + 1} of {len(runs)}: {run.checkpoint}, seed {run.seed}{left}")
        yield run


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
