"""The JSON of an earlier run to compare with: same data, methods, k and metrics, possibly other weights."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..json_files import read_json
from .metric_table import LISTED, METRIC_VERSION, METRICS
from .result import SCHEMA, References, Result, Row, SweepResult

EXACT = "exact"  # the output Hessian of all results that do not say it


@dataclass(frozen=True)
class Baseline:
    """The part of an earlier result that is compared."""

    path: Path
    rows: tuple[Row, ...]  # also of references; for a sweep: the means
    provenance: Mapping[str, Any]
    is_sweep: bool
    bracket: Any = None

    def mismatch(self, result: Result, needs: str | None = None) -> str | None:
        """Why this result, or a metric of it that `needs` something, cannot be compared; None if it can."""
        mine, theirs = result.provenance, self.provenance
        if theirs.get("metrics") != METRIC_VERSION:
            return f"the baseline has metrics of version {theirs.get('metrics')}, this tool of version {METRIC_VERSION}"
        if theirs.get("rows_sha256") != mine["rows_sha256"]:
            return "the baseline is of other data"
        for option in ("rescale", "link"):
            if theirs.get(option) != mine[option]:
                return f"the baseline has --{option} {theirs.get(option)}, this run {mine[option]}"
        before = theirs.get("hessian", EXACT)
        if before != mine["hessian"]:
            return f"the baseline has the output Hessian '{before}', this run '{mine['hessian']}' (posterior.hessian)"
        if needs == "oracle" and theirs.get("oracle_sha256") != mine["oracle_sha256"]:
            return "the baseline has another oracle"
        if needs == "bracket" and self.bracket != result.bracket:
            return "the baseline has another bracket (--full-rows)"
        if needs == "conformal" and theirs.get("conformal") != mine["conformal"]:
            return "the baseline has another --conformal level or --conformal-by"
        if self.is_sweep != isinstance(result, SweepResult):
            return "of the baseline and this run, one is of several checkpoints and one is not"
        return None

    def row(self, like: Row) -> Row | None:
        """The baseline's row of the same method at the same k, or over the same ks, on the same set of test rows."""
        same = (like.method, like.k, like.ks, like.set)
        return next((row for row in self.rows if (row.method, row.k, row.ks, row.set) == same), None)


@dataclass(frozen=True)
class Change:
    """A metric of a row, now and in the baseline."""

    method: str
    k: int | None
    metric: str
    value: float
    baseline: float
    change: float
    worse: bool
    standard_error: float | None  # of the change
    within_error: bool | None
    set: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "set" or value is not None}


def load_baseline(path: Path) -> Baseline:
    """Read and check the file; anything but a result of `evaluate` is refused."""
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise UserError(f"--baseline {path}: {reason}", hint="expected what evaluate --json wrote") from None
    found_rows: Any = found.get("mean", found.get("rows")) if isinstance(found, dict) else None
    known = _are_mappings(found_rows) and found.get("schema") == SCHEMA
    if not known or not _are_mappings(found.get("checkpoints", [])):
        hint = "make one with: sublaplace evaluate … -o baseline.json"
        raise UserError(f"--baseline {path}: it is not a result of sublaplace evaluate", hint=hint)
    rows = tuple(_row(row, path) for row in found_rows)
    full, rivals = found.get("full"), found.get("references", [])
    if not _are_mappings([] if full is None else [full]) or not _are_mappings(rivals):
        raise UserError(f"--baseline {path}: 'full' or 'references' are not rows of sublaplace evaluate")
    references = References(None if full is None else _row(full, path), tuple(_row(row, path) for row in rivals))
    if len({json.dumps([row.get(key) for key in ("method", "k", "ks", "set")]) for row in found_rows}) < len(rows):
        raise UserError(f"--baseline {path}: it has two rows of the same method and k")
    provenance, bracket = found.get("provenance"), found.get("bracket")
    if "checkpoints" in found:
        bracket = [member.get("bracket") for member in found["checkpoints"]]
    provenance = provenance if isinstance(provenance, dict) else {}
    return Baseline(path, references.besides(rows), provenance, is_sweep="mean" in found, bracket=bracket)


def _row(found: dict[str, Any], path: Path) -> Row:
    values = {key: found.get(key) for metric in METRICS for key in (metric, f"{metric}_se")}
    for key, value in values.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and abs(value) <= sys.float_info.max):
            raise UserError(f"--baseline {path}: {key} is {str(value)[:40]!r}, expected a finite number or null")
    ks: Any = found.get("ks")
    ks = tuple(ks) if isinstance(ks, list) else ks
    widths = found.get("half_widths", {})
    if not isinstance(widths, dict) or not all(map(_is_width, widths.values())):
        raise UserError(f"--baseline {path}: half_widths are not numbers of at least 0")
    return Row(found.get("method", ""), found.get("k"), values, ks=ks, set=found.get("set"), half_widths=widths)


def _is_width(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value <= sys.float_info.max


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def worsening(metric: str, value: float, before: float, level: float = 0.0) -> float:
    """By how much a metric is worse than before; negative if it is better. `level` is the conformal one."""
    better, nominal = METRICS[metric].better, METRICS[metric].nominal
    if better == "level":  # more than it is no failure: a good network reaches it with the most probable class alone
        return max(level - value, 0.0) - max(level - before, 0.0)
    if better == "nominal":
        return abs(value - nominal) - abs(before - nominal)
    return before - value if better == "higher" else value - before


def joint_error(metric: str, *rows: Row) -> float | None:
    """Standard error of the difference of two rows; None if one of them has none."""
    known = [error for row in rows if (error := row.error(metric)) is not None]
    return math.hypot(*known) if len(known) == len(rows) else None


def changes(result: Result, baseline: Baseline) -> tuple[Change, ...]:
    """All metrics with a direction that both have."""
    directed = [metric for metric in LISTED if METRICS[metric].better is not None]
    compared = [metric for metric in directed if baseline.mismatch(result, METRICS[metric].needs) is None]
    found = []
    for row in result.compared_rows:
        if (before := baseline.row(row)) is None:
            continue
        for metric in compared:
            value, old = row.value(metric), before.value(metric)
            if value is not None and old is not None:
                change, error = value - old, joint_error(metric, row, before)
                worse = worsening(metric, value, old, result.conformal_level) > 0
                within_error = None if error is None else abs(change) <= error
                found.append(Change(row.method, row.k, metric, value, old, change, worse, error, within_error, row.set))
    return tuple(found)
