"""Several checkpoints or seeds in one go: a row for each, and mean ± standard error over them."""

from __future__ import annotations

import glob
import hashlib
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..catalog import METRICS
from ..errors import UserError
from .settings import Reporter, Settings

# What the runs of a sweep share; where they do not, it is null in the whole and stands with each run.
COMMON = (
    *("schema", "task", "n_train", "n_test", "n_params", "n_outputs", "noise_variance", "prior_precision"),
    *("device", "workers"),
)


@dataclass(frozen=True)
class Member:
    """One run of a sweep."""

    checkpoint: str
    seed: int
    settings: Settings


def is_sweep(settings: Settings) -> bool:
    """Several checkpoints, a pattern of them, or several seeds."""
    return len(settings.checkpoint) > 1 or len(settings.seeds) > 1 or any(map(_is_pattern, settings.checkpoint))


def members_of(settings: Settings) -> list[Member]:
    """Every checkpoint with every seed, in their order; patterns are filled in, in the order of names."""
    found: list[str] = []
    for word in settings.checkpoint:
        files = sorted(filter(os.path.isfile, glob.glob(word, recursive=True))) if _is_pattern(word) else [word]
        if not files:
            raise UserError(f"--checkpoint {word}: no file matches this pattern")
        if not os.path.isfile(files[0]):  # before the first run, not when its turn comes
            raise UserError(f"--checkpoint {word}: no such file")
        found += files
    # Each file once, by whatever name: a run that is counted twice would make a standard error too small.
    once = {os.path.realpath(name): name for name in reversed(found)}
    checkpoints: list[str | None] = [*reversed(once.values())] or [None]
    members = []
    for checkpoint in checkpoints:
        for seed in dict.fromkeys(settings.seeds or (0,)):
            own = replace(settings, checkpoint=() if checkpoint is None else (checkpoint,), seeds=(seed,))
            if settings.run_dir is not None:
                own = replace(own, run_dir=settings.run_dir / _folder(checkpoint, seed))
            members.append(Member("the spec's" if checkpoint is None else checkpoint, seed, own))
    return members


def _is_pattern(word: str) -> bool:
    return any(sign in word for sign in "*?[") and not os.path.exists(word)


def _folder(checkpoint: str | None, seed: int) -> str:
    """A folder name of its own for each run, the same whatever else is in the sweep."""
    place = "" if checkpoint is None else str(Path(checkpoint).resolve())
    stem = "model" if checkpoint is None else Path(checkpoint).stem
    return f"{stem}-{hashlib.sha256(f'{place} {seed}'.encode()).hexdigest()[:8]}"


def each_with_time_left(members: Sequence[Member], report: Reporter) -> Iterator[Member]:
    """The members one after the other; says which, and about how long the rest will take."""
    started = time.monotonic()
    for number, member in enumerate(members):
        spent = time.monotonic() - started
        left = f", about {_duration(spent / number * (len(members) - number))} left" if number else ""
        report.note(f"run {number + 1} of {len(members)}: {member.checkpoint}, seed {member.seed}{left}")
        yield member


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def combined(members: Sequence[Member], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result of all runs: their rows, the means over them, and what differs between them."""
    rows = [
        {"checkpoint": member.checkpoint, "seed": member.seed, **row}
        for member, result in zip(members, results, strict=True)
        for row in result["rows"]
    ]
    fulls = [result["full"] for result in results]
    return {
        **{key: _shared([result[key] for result in results]) for key in COMMON},
        "provenance": {key: _shared([r["provenance"][key] for r in results]) for key in results[0]["provenance"]},
        "full": _mean(fulls, members) if all(full is not None for full in fulls) else None,
        "rows": rows,
        "mean": [_mean([result["rows"][i] for result in results], members) for i in range(len(results[0]["rows"]))],
        "checkpoints": [
            {
                "checkpoint": member.checkpoint,
                "seed": member.seed,
                "weights_sha256": result["provenance"]["weights_sha256"],
                "fingerprint": result["provenance"]["fingerprint"],
                "noise_variance": result["noise_variance"],
                "prior_precision": result["prior_precision"],
                "full": result["full"],
                **{key: result[key] for key in ("tuned", "bracket") if key in result},
                "artifacts": result["artifacts"],
            }
            for member, result in zip(members, results, strict=True)
        ],
        "gate": None,
        "artifacts": {},
        "seconds": _added([result["seconds"] for result in results]),
    }


def _shared(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def _mean(rows: Sequence[dict[str, Any]], members: Sequence[Member]) -> dict[str, Any]:
    """Mean and standard error (ddof 1) of every metric over the runs.

    Seeds of one checkpoint are no further trainings: with several checkpoints the error is over their own means.
    """
    ks = [row["k"] for row in rows]
    mean: dict[str, Any] = {"method": rows[0]["method"], "k": _shared(ks), "n": len(rows)}
    why = {}
    if mean["k"] != ks[0]:
        mean["ks"], why["k"] = ks, f"it differs between the runs: {', '.join(map(str, ks))}"
    for metric in METRICS:
        if metric not in rows[0]:
            continue
        values = [row[metric] for row in rows]
        mean[metric] = mean[f"{metric}_se"] = None
        if any(value is None for value in values):
            reasons = [row["why"].get(metric) for row in rows if row[metric] is None]
            why[metric] = reasons[0] or "not known in every run"
            continue
        mean[metric] = statistics.fmean(values)
        units = _independent(values, members)
        if len(units) > 1:
            mean[f"{metric}_se"] = statistics.stdev(units) / math.sqrt(len(units))
        else:
            why[f"{metric}_se"] = "one run has no standard error"
    return {**mean, "why": why}


def _independent(values: Sequence[float], members: Sequence[Member]) -> list[float]:
    """A value for each checkpoint; where there is one, for each seed."""
    by_checkpoint: dict[str, list[float]] = {}
    for member, value in zip(members, values, strict=True):
        by_checkpoint.setdefault(member.checkpoint, []).append(value)
    if len(by_checkpoint) == 1:
        return list(values)
    return [statistics.fmean(own) for own in by_checkpoint.values()]


def _added(seconds: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in seconds for name in each)
    return {name: round(sum(each.get(name, 0.0) for each in seconds), 4) for name in names}
