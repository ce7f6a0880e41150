"""What the other sets of test rows say about the network and its best posterior, in one sentence for each set."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...results.differences import Difference
from ...results.metric_table import METRICS, NOMINAL
from ...results.result import Row
from ...run.posteriors.calibration import MAP
from .blocks import Blocks

CALIBRATIONS = {  # the first of these that is known says whether a method is calibrated: metric, words, unit
    "coverage95_total": (f"the share of the targets in its {100 * NOMINAL:.0f} % intervals is", "{:.2f}"),
    "ece": ("its ece is", "{:.3g}"),
}


def with_shift(verdict: Mapping[str, Any], blocks: Blocks) -> dict[str, Any]:
    """The verdict on the first set of test rows, with a sentence about each of the others."""
    if not (text := shift_text(blocks.rows, blocks.differences)):
        return dict(verdict)
    return {**verdict, "text": [*verdict.get("text", ()), *text]}


def shift_text(rows: Sequence[Row], differences: Sequence[Difference]) -> list[str]:
    """By the nll of the method that is best on the first set, and of the network alone beside it."""
    by_nll = [each for each in differences if each.metric == "nll"]
    first = [row for row in rows if row.set == rows[0].set and row.value("nll") is not None]
    posteriors = [row for row in first if row.method != MAP] or first
    if not posteriors:
        return []
    best, found = min(posteriors, key=lambda row: row.values["nll"] or 0.0), list[str]()
    for name in dict.fromkeys(each.set for each in by_nll):
        here = {(each.method, each.k): each for each in by_nll if each.set == name}
        if (own := here.get((best.method, best.k))) is None:
            continue
        there = next(row for row in rows if row.set == name and row.choice == best.choice)
        alone = here.get((MAP, None)) if best.method != MAP else None
        parts = [f"On {name}, the NLL of {best.choice} is {_change(own)}", *_calibration(best, there)]
        beside = "" if alone is None else f"; the NLL of the network alone is {_change(alone)}"
        found.append(f"{' and '.join(parts)}{beside}.")
    return found


def _change(own: Difference) -> str:
    error = "" if own.standard_error is None else f" ± {own.standard_error:.2g}"
    if not own.is_clear:
        return f"not clearly another one than on {own.reference} ({own.difference:+.2g}{error})"
    better = METRICS[own.metric].better == "higher"
    how = "better" if (own.difference > 0) is better else "worse"
    return f"{abs(own.difference):.2g}{error} {how} than on {own.reference}"


def _calibration(first: Row, there: Row) -> list[str]:
    for metric, (words, number) in CALIBRATIONS.items():
        before, now = first.value(metric), there.value(metric)
        if before is not None and now is not None:
            return [f"{words} {number.format(now)} ({number.format(before)} on {first.set})"]
    return []
