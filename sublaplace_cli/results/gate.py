"""The gate: every limit at every row passes, is broken, or cannot be judged; the exit code follows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .baseline import Baseline, Change, changes, joint_error, worsening
from .limits import EVERY_ROW, Limit
from .metric_table import METRICS
from .result import Answer, Result, Row

WHOLE_ROW = "baseline"  # instead of a metric, if a whole row could not be compared


@dataclass(frozen=True)
class Check:
    """One limit at one row."""

    row: Row
    metric: str
    limit: str
    passed: bool | None = None  # None: could not be judged
    why: str | None = None  # the reason for that
    baseline: float | None = None  # the value there, if it was compared
    change: float | None = None
    standard_error: float | None = None  # of a value that breaks the limit
    within_error: bool | None = None  # whether the limit is broken by no more than that

    @property
    def verdict(self) -> str:
        if not self.passed:
            return "not judged" if self.passed is None else "failed"
        return "within error" if self.within_error else "passed"

    @property
    def description(self) -> str:
        """“gradient (k = 200): w2 = 0.12, limit max 0.1”, with baseline and standard error if known."""
        if self.metric == WHOLE_ROW:
            return f"{self.row.name}: {self.why}"
        value = self.row.value(self.metric)
        shown = "not known" if value is None else f"{value:.6g}"
        text = f"{self.row.name}: {self.metric} = {shown}, limit {self.limit}"
        if self.baseline is not None:
            text += f", baseline {self.baseline:.6g} ({self.change:+.3g})"
        if self.standard_error is not None:
            inside = "no more" if self.within_error else "more"
            text += f"; broken by {inside} than the standard error of {self.standard_error:.3g}"
        return text if self.why is None else f"{text}: {self.why}"

    def as_dict(self) -> dict[str, Any]:
        compared = {"baseline": self.baseline, "change": self.change}
        excess = {"standard_error": self.standard_error, "within_error": self.within_error}
        return {
            "metric": self.metric,
            "method": self.row.method,
            "k": self.row.k,
            **self.row.in_set,
            **self.row.run,
            "value": self.row.value(self.metric),
            "limit": self.limit,
            "passed": self.passed,
            **({} if self.why is None else {"why": self.why}),
            **({} if self.baseline is None else compared),
            **(excess if self.passed is False or self.within_error else {}),
        }


@dataclass(frozen=True)
class Gate:
    """All checks of a result, and the comparison with a baseline if there is one."""

    checks: tuple[Check, ...]
    baseline_file: str | None = None
    changes: tuple[Change, ...] = ()

    @property
    def passed(self) -> bool | None:
        """False if a limit is broken, else None if one could not be judged, else True."""
        verdicts = [check.passed for check in self.checks]
        return False if False in verdicts else None if None in verdicts else True

    def as_dict(self) -> dict[str, Any]:
        gate: dict[str, Any] = {"passed": self.passed, "checks": [check.as_dict() for check in self.checks]}
        if self.baseline_file is not None:
            gate["baseline"] = {"file": self.baseline_file, "changes": [change.as_dict() for change in self.changes]}
        return gate


def judge(result: Result, limits: Sequence[Limit], baseline: Baseline | None, significant: bool) -> Result:
    """The result with its gate; unchanged if there is nothing to judge."""
    if not limits and baseline is None:
        return result
    checks: list[Check] = []
    for limit in limits:
        if not (rows := _rows_of(limit, result)):
            checks.append(_absent(limit, result))
        elif limit.kind == "max_regression":
            checks += [_compare(row, limit, result, baseline, significant) for row in rows]
        else:
            checks += [_hold(row, limit, significant) for row in rows]
    if baseline is None:
        return replace(result, gate=Gate(tuple(checks)))
    if not any(limit.kind == "max_regression" for limit in limits):  # not comparable is never a pass
        reasons = [(row, baseline.mismatch(result) or _no_row(row, baseline)) for row in result.compared_rows]
        checks += [Check(row, WHOLE_ROW, "comparable", why=why) for row, why in reasons if why is not None]
    return replace(result, gate=Gate(tuple(checks), str(baseline.path), changes(result, baseline)))


def checks_of(answer: Answer) -> tuple[Check, ...]:
    """All checks of a result; none if nothing was judged."""
    return () if answer.gate is None else answer.gate.checks


def exit_code(result: Answer) -> int:
    """0: all limits hold, 1: one is broken, 4: one could not be judged; 1 wins over 4."""
    return 0 if result.gate is None else {True: 0, False: 1, None: 4}[result.gate.passed]


def _rows_of(limit: Limit, result: Result) -> tuple[Row, ...]:
    """The rows of all methods that were asked for; references too where the limit names a row."""
    compares = limit.kind == "max_regression"
    rows = result.compared_rows if compares else result.rows
    if limit.row is not None:
        rows = result.references.besides(rows) if compares else result.all_rows
    return tuple(row for row in rows if limit.is_about(row))


def _absent(limit: Limit, result: Result) -> Check:
    there = ", ".join(dict.fromkeys(row.place for row in result.all_rows))
    return Check(
        Row(limit.row or EVERY_ROW, None, {}, set=limit.set),
        limit.metric,
        limit.text,
        why=f"there is no such row, only {there}",
    )


def _no_row(row: Row, baseline: Baseline) -> str | None:
    at_k = "" if row.k is None else f" at k = {row.k}"
    in_set = "" if row.set is None else f" on {row.set}"
    return None if baseline.row(row) is not None else f"the baseline has no row of {row.method}{at_k}{in_set}"


def _hold(row: Row, limit: Limit, significant: bool) -> Check:
    check, value = Check(row, limit.metric, limit.text), row.value(limit.metric)
    if value is None:
        return replace(check, why=_missing(row, limit.metric))
    off = row.half_width(limit.metric)
    if limit.broken_by(value - off) != limit.broken_by(value + off):
        return replace(check, why=_undecided(off))
    if not limit.broken_by(value):
        return replace(check, passed=True)
    return _broken(check, abs(value - limit.amount), row.error(limit.metric), significant)


def _compare(row: Row, limit: Limit, result: Result, baseline: Baseline | None, significant: bool) -> Check:
    check, metric = Check(row, limit.metric, limit.text), limit.metric
    if baseline is None:
        return replace(check, why="there is no --baseline to compare with")
    why, before = baseline.mismatch(result, METRICS[metric].needs), baseline.row(row)
    if why is not None or before is None:
        return replace(check, why=why or _no_row(row, baseline))
    value, old = row.value(metric), before.value(metric)
    if value is None or old is None:
        return replace(check, why=_missing(row, metric) if value is None else f"the baseline has no {metric}")
    check = replace(check, baseline=old, change=value - old)
    excess = worsening(metric, value, old, result.conformal_level) - (
        limit.amount * abs(old) if limit.relative else limit.amount
    )
    off = row.half_width(metric) + before.half_width(metric)
    if abs(excess) < off:
        return replace(check, why=_undecided(off))
    if excess <= 0:
        return replace(check, passed=True)
    return _broken(check, excess, joint_error(metric, row, before), significant)


def _broken(check: Check, excess: float, error: float | None, significant: bool) -> Check:
    """With --significant, a limit fails only if it is broken by more than the standard error."""
    within = None if error is None else excess <= error
    return replace(check, passed=bool(significant and within), standard_error=error, within_error=within)


def _undecided(off: float) -> str:
    return f"the full posterior is certified to an interval, so this is known to within ± {off:.3g}: lower --tolerance"


def _missing(row: Row, metric: str) -> str:
    return row.why.get(metric, f"this row has no {metric}")
