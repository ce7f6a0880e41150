"""Several runs as one result: all rows, and mean ± standard error over the runs."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .differences import Difference, difference_details
from .metric_table import LISTED
from .result import Listing, References, Result, Row, Setup, SweepMember, SweepResult


def combine(labels: Sequence[tuple[str, int]], results: Sequence[Result]) -> SweepResult:
    """The result of a sweep from those of its runs, each labelled by its checkpoint and seed."""
    members = [SweepMember(*label, own) for label, own in zip(labels, results, strict=True)]
    fulls = [result.full for result in results if result.full is not None]
    setups, seconds = [vars(result.setup) for result in results], [result.seconds or {} for result in results]
    stages = dict.fromkeys(stage for own in seconds for stage in own)
    return SweepResult(
        setup=Setup(**{key: _common([setup[key] for setup in setups]) for key in setups[0]}),
        provenance={key: _common([own.provenance[key] for own in results]) for key in results[0].provenance},
        references=References(
            _mean(fulls, members) if len(fulls) == len(results) else None, _mean_rivals(results, members)
        ),
        rows=tuple(replace(row, checkpoint=m.checkpoint, seed=m.seed) for m in members for row in m.result.rows),
        mean=tuple(_mean(rows, members) for rows in zip(*(result.rows for result in results), strict=True)),
        members=tuple(members),
        details={key: value for key, value in results[0].details.items() if key == "test_sets"}
        | difference_details(_mean_differences(results, members)),
        seconds={stage: round(sum(own.get(stage, 0.0) for own in seconds), 4) for stage in stages},
    )


def _mean_rivals(results: Sequence[Result], members: Sequence[SweepMember]) -> tuple[Row, ...]:
    """The means of those that every run has."""
    by_run = [{row.name: row for row in result.references.rivals} for result in results]
    names = [name for name in by_run[0] if all(name in own for own in by_run)]
    return tuple(_mean([own[name] for own in by_run], members) for name in names)


def _mean_differences(results: Sequence[Result], members: Sequence[SweepMember]) -> tuple[Difference, ...]:
    """The means of those that every run has, with the standard error over the runs."""
    by_run = [{(each.set, each.method, each.k, each.metric): each for each in own.differences} for own in results]
    keys = [key for key in by_run[0] if all(key in own for own in by_run)]
    found = []
    for values in ([own[key] for own in by_run] for key in keys):
        numbers = [each.difference for each in values]
        error = _error(_independent(numbers, members))
        found.append(replace(values[0], difference=statistics.fmean(numbers), standard_error=error))
    return tuple(found)


def combine_plans(checkpoints: Sequence[str], plans: Sequence[Listing]) -> Listing:
    """The dry run of a sweep: memory is that of the largest run, because runs are sequential; time and files add up."""
    values = [plan.values for plan in plans]
    numbered = list(enumerate(values, start=1))
    combined = {
        "runs": len(values),
        "checkpoints": list(checkpoints),
        "run_dir": [own["run_dir"] for own in values],
        "memory_estimate": max(own["memory_estimate"] for own in values),
        "seconds_estimate": sum(own["seconds_estimate"] for own in values),
        "seconds_by_step": _added(own["seconds_by_step"] for own in values),
        "bytes_to_write": sum(own["bytes_to_write"] for own in values),
        "files": {f"{number}/{stem}": size for number, own in numbered for stem, size in own["files"].items()},
        "reused": sorted(f"{number}/{stem}" for number, own in numbered for stem in own["reused"]),
    }
    common = {name: value for name, value in values[0].items() if name != "estimate"}  # a sentence about one run
    return Listing({**common, **combined})


def _added(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for own in each:
        for name, value in own.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _common(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def _mean(rows: Sequence[Row], members: Sequence[SweepMember]) -> Row:
    """Mean and standard error (ddof 1) of every metric over the runs."""
    ks, values, why = tuple(row.k for row in rows), dict[str, float | None](), dict[str, str]()
    k = _common(ks)
    if k != ks[0]:
        why["k"] = f"it differs between the runs: {', '.join(map(str, ks))}"
    for metric in (name for name in LISTED if name in rows[0].values):
        values[metric] = values[f"{metric}_se"] = None
        known = [value for row in rows if (value := row.values[metric]) is not None]
        if len(known) < len(rows):
            reasons = [row.why.get(metric) for row in rows if row.values[metric] is None]
            why[metric] = reasons[0] or "not known in every run"
            continue
        values[metric] = statistics.fmean(known)
        values[f"{metric}_se"] = _error(_independent(known, members))
        if values[f"{metric}_se"] is None:
            why[f"{metric}_se"] = "one run has no standard error"
    names = dict.fromkeys(name for row in rows for name in row.half_widths)
    widths = {name: statistics.fmean(row.half_width(name) for row in rows) for name in names}
    different = ks if "k" in why else None
    return Row(rows[0].method, k, values, why, n=len(rows), ks=different, set=rows[0].set, half_widths=widths)


def _error(independent: Sequence[float]) -> float | None:
    return statistics.stdev(independent) / math.sqrt(len(independent)) if len(independent) > 1 else None


def _independent(values: Sequence[float], members: Sequence[SweepMember]) -> list[float]:
    """One value per checkpoint, because its seeds are not separate trainings; with one checkpoint, one per seed."""
    by_checkpoint: dict[str, list[float]] = {}
    for member, value in zip(members, values, strict=True):
        by_checkpoint.setdefault(member.checkpoint, []).append(value)
    return list(values) if len(by_checkpoint) == 1 else [statistics.fmean(own) for own in by_checkpoint.values()]
