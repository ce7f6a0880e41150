"""The gate: every limit at every row, passed, broken or not to be judged; and the exit code that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..steps.settings import Settings
from .baseline import Baseline, Row, changes, compared_rows, joint_error, worsening
from .limits import Limit, parse_fail_if, parse_max_regression

BROKEN, NOT_JUDGED = 1, 4  # exit codes
COMPARED = "baseline"  # stands for a metric where a whole row could not be compared
Check = dict[str, Any]


def limits_of_command(settings: Settings) -> list[Limit]:
    """The limits that are typed on the command line."""
    return [*map(parse_fail_if, settings.fail_if), *map(parse_max_regression, settings.max_regression)]


def judge(
    result: Mapping[str, Any], limits: Sequence[Limit], baseline: Baseline | None, significant: bool
) -> dict[str, Any] | None:
    """The `gate` of a result; None where nothing was asked for."""
    if not limits and baseline is None:
        return None
    checks: list[Check] = []
    for limit in limits:
        if limit.kind == "max_regression":
            checks += [_compared(row, limit, result, baseline, significant) for row in compared_rows(result)]
        else:
            checks += [_held(row, limit, significant) for row in result["rows"]]
    if baseline is not None:
        checks += _not_compared(result, baseline, checks)
    verdicts = [check["passed"] for check in checks]
    passed = False if False in verdicts else None if None in verdicts else True
    gate: dict[str, Any] = {"passed": passed, "checks": checks}
    if baseline is not None:
        gate["baseline"] = {"file": str(baseline.path), "changes": changes(result, baseline)}
    return gate


def exit_code(result: Mapping[str, Any]) -> int:
    """0 all held, 1 one was broken, 4 one could not be judged; 1 wins over 4."""
    gate = result.get("gate")
    verdicts = [check["passed"] for check in gate["checks"]] if gate else []
    return BROKEN if False in verdicts else NOT_JUDGED if None in verdicts else 0


def _not_compared(result: Mapping[str, Any], baseline: Baseline, checks: Sequence[Check]) -> list[Check]:
    """Rows that the baseline cannot be compared with, where no limit has said so: that is never a pass."""
    if any(check["limit"].startswith("max_regression") for check in checks):
        return []
    found = []
    for row in compared_rows(result):
        why = baseline.unlike(result, COMPARED)
        if why is None and baseline.row(row) is None:
            why = _no_row(row)
        if why is not None:
            found.append({**_check(row, Limit(COMPARED, "max_regression", 0.0), why=why), "limit": "comparable"})
    return found


def _no_row(row: Row) -> str:
    at = "" if row["k"] is None else f" at k = {row['k']}"
    return f"the baseline has no row of {row['method']}{at}"


def _check(row: Row, limit: Limit, **more: Any) -> Check:
    place = {key: row[key] for key in ("checkpoint", "seed") if key in row}
    return {
        "metric": limit.metric,
        "method": row["method"],
        "k": row["k"],
        **place,
        "value": row.get(limit.metric),
        "limit": limit.text,
        "passed": None,
        **more,
    }


def _held(row: Row, limit: Limit, significant: bool) -> Check:
    value, error = row.get(limit.metric), row.get(f"{limit.metric}_se")
    if value is None:
        return _check(row, limit, why=_missing(row, limit.metric))
    if not limit.broken_by(value):
        return _check(row, limit, passed=True)
    within = None if error is None else abs(value - limit.amount) <= error
    return _broken(row, limit, within, significant, standard_error=error)


def _compared(row: Row, limit: Limit, result: Mapping[str, Any], baseline: Baseline | None, significant: bool) -> Check:
    value = row.get(limit.metric)
    if baseline is None:
        return _check(row, limit, why="there is no --baseline to compare with")
    why = baseline.unlike(result, limit.metric)
    before = baseline.row(row)
    if why is not None or before is None:
        return _check(row, limit, why=why or _no_row(row))
    if value is None or before.get(limit.metric) is None:
        why = _missing(row, limit.metric) if value is None else f"the baseline has no {limit.metric}"
        return _check(row, limit, why=why)
    allowed = limit.amount * abs(before[limit.metric]) if limit.relative else limit.amount
    known = {"baseline": before[limit.metric], "change": value - before[limit.metric]}
    excess = worsening(limit.metric, value, before[limit.metric]) - allowed
    if excess <= 0:
        return _check(row, limit, passed=True, **known)
    error = joint_error(limit.metric, row, before)
    within = None if error is None else excess <= error
    return _broken(row, limit, within, significant, **known, standard_error=error)


def _broken(row: Row, limit: Limit, within: bool | None, significant: bool, **known: Any) -> Check:
    """A limit that does not hold; with --significant it fails only where it is broken by more than the error."""
    return _check(row, limit, passed=bool(significant and within), **known, within_error=within)


def _missing(row: Row, metric: str) -> str:
    return row.get("why", {}).get(metric, f"this row has no {metric}")


def verdict(check: Check) -> str:
    """One word for how a check ended."""
    if check["passed"] is None:
        return "not judged"
    if check["passed"]:
        return "within error" if check.get("within_error") else "passed"
    return "failed"


def described(check: Check) -> str:
    """“gradient (k = 200): w2 = 0.12, limit max 0.1”, with what else is known."""
    if check["metric"] == COMPARED:
        return f"{name_of(check)}: {check['why']}"
    value = "not known" if check["value"] is None else f"{check['value']:.6g}"
    text = f"{name_of(check)}: {check['metric']} = {value}, limit {check['limit']}"
    if check.get("baseline") is not None:
        text += f", baseline {check['baseline']:.6g} ({check['change']:+.3g})"
    if check.get("standard_error") is not None:
        inside = "no more" if check.get("within_error") else "more"
        text += f"; broken by {inside} than the standard error of {check['standard_error']:.3g}"
    return text if check.get("why") is None else f"{text}: {check['why']}"


def name_of(check: Check) -> str:
    """The row that a check is about."""
    method = check["method"] if check["k"] is None else f"{check['method']} (k = {check['k']})"
    seed = f", seed {check['seed']}" if check.get("seed") else ""
    return f"{check['checkpoint']}{seed}: {method}" if "checkpoint" in check else method
