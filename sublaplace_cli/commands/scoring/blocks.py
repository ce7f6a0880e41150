"""The rows of a result in blocks, one for each set of test rows, and the differences of the others to the first one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.prediction import Comparison, Prediction
from ...results.differences import Difference
from ...results.metric_table import METRICS
from ...results.result import References, Row
from .measuring import Measured, measured


@dataclass(frozen=True)
class Compared:
    """The predictions of one set of test rows, and what they are compared with."""

    name: str | None
    asked: Sequence[Prediction]
    rivals: Sequence[Prediction]
    full: Prediction | None  # where there is no row of it otherwise
    known: Comparison


@dataclass(frozen=True)
class Blocks:
    """All rows of a result."""

    rows: tuple[Row, ...]
    references: References
    differences: tuple[Difference, ...]


def blocks_of(sets: Sequence[Compared]) -> Blocks:
    """The rows name their set only if there are several."""
    first, *others = (_measured(own, own.name if len(sets) > 1 else None) for own in sets)
    rivals = [*first.rivals, *(each for own in others for each in own.all[len(own.asked) :])]
    return Blocks(
        rows=tuple(each.row for own in (first, *others) for each in own.asked),
        references=References(first.full[0].row if first.full else None, tuple(each.row for each in rivals)),
        differences=tuple(
            found
            for number, own in enumerate(others, start=1)
            for found in _differences(own, first, are_paired(sets[number].known.targets, sets[0].known.targets))
        ),
    )


def are_paired(targets: Tensor | None, others: Tensor | None) -> bool:
    """Whether two sets are the same rows, changed: as many, with the same targets in the same order."""
    return targets is not None and others is not None and torch.equal(targets, others)


@dataclass(frozen=True)
class _Block:
    asked: tuple[Measured, ...]
    rivals: tuple[Measured, ...]
    full: tuple[Measured, ...]  # one or none

    @property
    def all(self) -> tuple[Measured, ...]:
        """Each method once: the full posterior may be one of those that were asked for."""
        there = {each.row.choice for each in self.asked}
        return (*self.asked, *self.rivals, *(each for each in self.full if each.row.choice not in there))


def _measured(own: Compared, name: str | None) -> _Block:
    def of(predictions: Sequence[Prediction]) -> tuple[Measured, ...]:
        found = (measured(each, own.known) for each in predictions)
        return tuple(replace(each, row=replace(each.row, set=name)) for each in found)

    return _Block(of(own.asked), of(own.rivals), of([] if own.full is None else [own.full]))


def _differences(own: _Block, first: _Block, paired: bool) -> Iterator[Difference]:
    """Of every mean over rows that both sets have: its value here minus that in the first set."""
    there = {each.row.choice: each for each in first.all}
    for here in own.all:
        before = there.get(here.row.choice)
        for metric in (name for name, metric in METRICS.items() if metric.per_row):
            if before is None or metric not in here.by_row or metric not in before.by_row:
                continue
            values, old = here.by_row[metric], before.by_row[metric]
            change = float(values.mean() - old.mean())
            error = _error(values - old) if paired else math.hypot(_error(values), _error(old))
            if math.isfinite(change):
                known = error if math.isfinite(error) else None
                place = (str(here.row.set), str(before.row.set), here.row.method, here.row.k)
                yield Difference(*place, metric, change, known, paired)


def _error(values: Tensor) -> float:
    """Standard error of the mean (ddof 1); of one row it is not a number."""
    return float(values.std(correction=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
