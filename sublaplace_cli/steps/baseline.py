"""The JSON of an earlier run, to compare with: the same rows of data, method, k and metrics; other weights, perhaps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..catalog import METRIC_VERSION, METRICS
from ..errors import UserError

NOMINAL = 0.95
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Baseline:
    """An earlier result, as far as it is compared with."""

    path: Path
    rows: list[Row]  # of a sweep over checkpoints: the means
    made_from: Mapping[str, Any]
    is_sweep: bool

    def unlike(self, result: Mapping[str, Any], metric: str) -> str | None:
        """Why a metric of this result cannot be compared with it; None where it can."""
        mine, theirs = result["provenance"], self.made_from
        if theirs.get("metrics") != METRIC_VERSION:
            return f"the baseline has metrics of version {theirs.get('metrics')}, this tool of version {METRIC_VERSION}"
        if theirs.get("rows_sha256") != mine["rows_sha256"]:
            return "the baseline is of other data"
        if theirs.get("rescale") != mine["rescale"]:
            return f"the baseline has --rescale {theirs.get('rescale')}, this run {mine['rescale']}"
        if metric == "coverage95" and theirs.get("oracle_sha256") != mine["oracle_sha256"]:
            return "the baseline has another oracle"
        if self.is_sweep != ("mean" in result):
            return "of the baseline and this run, one is of several checkpoints and one is not"
        return None

    def row(self, method: str, k: int | None) -> Row | None:
        """Its row of this method at this k."""
        return next((row for row in self.rows if row.get("method") == method and row.get("k") == k), None)


def load_baseline(path: Path) -> Baseline:
    """Read and check it; anything but a result of `evaluate` is refused."""
    try:
        found = json.loads(path.read_text(), parse_constant=_no_number)
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise UserError(f"--baseline {path}: {reason}", hint="expected what evaluate --json wrote") from None
    rows = found.get("mean", found.get("rows")) if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or found.get("schema") != 1:
        raise UserError(
            f"--baseline {path}: it is not a result of sublaplace evaluate",
            hint="make one with: sublaplace evaluate … -o baseline.json",
        )
    for row in rows:
        for metric in METRICS:
            value = row.get(metric)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise UserError(f"--baseline {path}: {metric} is {str(value)[:40]!r}, expected a number or null")
    made_from = found.get("provenance")
    return Baseline(path, rows, made_from if isinstance(made_from, dict) else {}, "mean" in found)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def worsening(metric: str, value: float, before: float) -> float:
    """By how much a metric is worse than before; negative where it is better."""
    if METRICS[metric] == "nominal":
        return abs(value - NOMINAL) - abs(before - NOMINAL)
    return before - value if METRICS[metric] == "higher" else value - before


def joint_error(metric: str, *rows: Row) -> float | None:
    """Standard error of the difference of two rows; None where one of them has none."""
    errors = [row.get(f"{metric}_se") for row in rows]
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if len(known) == len(rows) else None


def changes(result: Mapping[str, Any], baseline: Baseline) -> list[dict[str, Any]]:
    """Every metric with a direction that both have: before, now, and whether the change is within its error."""
    found = []
    for row in compared_rows(result):
        before = baseline.row(row["method"], row["k"])
        for metric, direction in METRICS.items():
            if before is None or direction is None or row.get(metric) is None or before.get(metric) is None:
                continue
            if baseline.unlike(result, metric) is not None:
                continue
            error = joint_error(metric, row, before)
            change = row[metric] - before[metric]
            found.append(
                {
                    "method": row["method"],
                    "k": row["k"],
                    "metric": metric,
                    "value": row[metric],
                    "baseline": before[metric],
                    "change": change,
                    "worse": worsening(metric, row[metric], before[metric]) > 0,
                    "standard_error": error,
                    "within_error": None if error is None else abs(change) <= error,
                }
            )
    return found


def compared_rows(result: Mapping[str, Any]) -> list[Row]:
    """Rows that a baseline is compared with: those of the result, or the means of a sweep."""
    return result.get("mean", result["rows"])
