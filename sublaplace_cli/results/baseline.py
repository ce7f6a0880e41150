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
    bracket: Any = None

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
        if metric in ("w2_low", "w2_high") and self.bracket != _bracket(result):
            return "the baseline has another bracket (--full-rows)"
        if self.is_sweep != ("mean" in result):
            return "of the baseline and this run, one is of several checkpoints and one is not"
        return None

    def row(self, like: Row) -> Row | None:
        """Its row of the same method at the same k."""
        return next((row for row in self.rows if _key(row) == _key(like)), None)


def _key(row: Row) -> tuple[Any, ...]:
    """What a row is found by; `ks` are those of a mean over runs that differ in k."""
    return row.get("method"), row.get("k"), row.get("ks")


def _bracket(result: Mapping[str, Any]) -> Any:
    if "checkpoints" in result:
        return [member.get("bracket") for member in result["checkpoints"]]
    return result.get("bracket")


def load_baseline(path: Path) -> Baseline:
    """Read and check it; anything but a result of `evaluate` is refused."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
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
        for key in (name for metric in METRICS for name in (metric, f"{metric}_se")):
            if row.get(key) is not None and not _is_number(row[key]):
                raise UserError(f"--baseline {path}: {key} is {str(row[key])[:40]!r}, expected a finite number or null")
    if len({json.dumps(_key(row)) for row in rows}) < len(rows):
        raise UserError(f"--baseline {path}: it has two rows of the same method and k")
    made_from = found.get("provenance")
    return Baseline(path, rows, made_from if isinstance(made_from, dict) else {}, "mean" in found, _bracket(found))


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


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
        before = baseline.row(row)
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
