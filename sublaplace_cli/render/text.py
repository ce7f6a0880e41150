"""Result formats: one result model (the dict of section 5 of the contract) in, text out.

To add one: write `name(result) -> str` here, add it to `catalog.FORMATS`, add a test with a real reader.
A result with `rows` is a table of them; one without is a list of its values.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from ..cli.console import VALUE, table_text
from ..results.gate import described, verdict
from ..steps.settings import format_bytes

Result = dict[str, Any]
# What a person wants to see first; everything is in json and csv.
SHOWN = (
    *(
        "checkpoint",
        "seed",
        "method",
        "k",
        "rescale",
        "remainder",
        "mean_std",
        "w2",
        "w2_se",
        "w2_low",
        "w2_high",
        "w2_relative",
    ),
    *("coverage95", "coverage95_total", "retained", "nll", "rmse", "crps", "accuracy", "ece", "brier"),
)
# Shown only where some row has another value than this.
USUAL = {"rescale": 1.0, "remainder": 0.0, "seed": 0}
MEAN = "mean"  # of a sweep: what stands instead of a checkpoint
# What goes first where a terminal is too narrow for all of them: a cut number would be worse than none.
LEAST_MISSED = (
    *("w2_se", "crps", "rmse", "brier", "mean_std", "coverage95_total", "w2", "ece", "remainder", "retained"),
    *("rescale", "accuracy", "coverage95", "nll"),
)


def json_text(result: Result) -> str:
    """Strict JSON: no NaN, no Infinity."""
    return json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False)


def jsonl(result: Result) -> str:
    """One line of JSON a row."""
    lines = _all_rows(result) if "rows" in result else [result]
    return "\n".join(json.dumps(line, allow_nan=False, ensure_ascii=False) for line in lines)


def csv_text(result: Result) -> str:
    """All keys of the rows, full precision, empty where there is no value."""
    return _delimited(*_full_grid(result), ",")


def tsv(result: Result) -> str:
    """Tab-separated, for pipes."""
    return _delimited(*_full_grid(result), "\t")


def markdown(result: Result) -> str:
    """A table for a README or a pull request."""
    columns, rows = short_grid(result)
    lines = [f"**{title(result)}**", ""] if title(result) else []
    lines += [
        "| " + " | ".join(columns) + " |",
        "|" + "|".join([" --- ", *[" ---: "] * (len(columns) - 1)]) + "|",
    ]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    if checks := gate_lines(result):
        lines += ["", *(f"* {line}" for line in checks)]
    return "\n".join(lines)


def table(result: Result) -> str:
    """A table for people, as plain text."""
    return "\n".join([table_text(title(result), *short_grid(result)), *gate_lines(result)])


def gate_lines(result: Result) -> list[str]:
    """The gate in words: what does not simply hold, a line each, and how many do."""
    checks = (result.get("gate") or {}).get("checks", [])
    lines = [f"{verdict(check)}: {described(check)}" for check in checks if verdict(check) != "passed"]
    return [*lines, gate_summary(result)] if checks else []


def gate_summary(result: Result) -> str:
    """One line on the whole gate."""
    checks = result["gate"]["checks"]
    return f"gate: {sum(bool(check['passed']) for check in checks)} of {len(checks)} limits hold"


def title(result: Result) -> str:
    """One line that says what was evaluated."""
    if "rows" not in result:
        return ""
    noise = "" if result["noise_variance"] is None else f", noise variance {result['noise_variance']:.4g}"
    runs = "" if "checkpoints" not in result else f"{len(result['checkpoints'])} runs, "
    return (
        f"{result['task']}: {runs}{result['n_train']} training rows, {result['n_test']} test rows, "
        f"{result['n_params']} parameters, prior precision {_short(result['prior_precision'])}{noise}"
    )


def short_grid(result: Result, width: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Columns that hold something, rounded, as many as `width` has room for; the full posterior as the last row."""
    if "rows" not in result:
        pairs = [(name, value) for name, value in result.items() if name != "schema" and not isinstance(value, dict)]
        nested = [(f"{name}: {k}", v) for name, d in result.items() if isinstance(d, dict) for k, v in d.items()]
        shown = [(name, value) for name, value in [*pairs, *nested] if value is not None]
        return ["", VALUE], [[name, _named(name, value)] for name, value in shown]
    rows = _all_rows(result)
    columns = [key for key in SHOWN if any(row.get(key) not in (None, USUAL.get(key)) for row in rows)]
    if "checkpoints" in result:
        columns = [key for key in columns if key != "w2_se"]  # it stands with the means, as ±
    cells = {key: [_with_error(row, key) for row in rows] for key in columns}
    for key in LEAST_MISSED:
        if width is not None and key in columns and sum(max(map(len, [k, *cells[k]])) + 3 for k in columns) > width:
            columns.remove(key)
    return columns, [[cells[key][i] for key in columns] for i in range(len(rows))]


def _full_grid(result: Result) -> tuple[list[str], list[list[Any]]]:
    if "rows" not in result:
        flat = {k: json.dumps(v) if isinstance(v, (dict, list)) else v for k, v in result.items()}
        return list(flat), [list(flat.values())]
    columns = [key for key in result["rows"][0] if key != "why"]
    return columns, [[row.get(key) for key in columns] for row in _all_rows(result)]


def _all_rows(result: Result) -> list[dict[str, Any]]:
    """The rows, behind them the means of a sweep, last the full posterior where it is not among them."""
    rows = list(result["rows"])
    named = {"checkpoint": MEAN} if "mean" in result else {}
    rows += [{**named, **row} for row in result.get("mean", ())]
    if result.get("full") and not any(row["method"] == "full" for row in rows):
        rows.append({**named, **result["full"]})
    return rows


def _with_error(row: dict[str, Any], key: str) -> str:
    """A value; of a mean over runs with its standard error."""
    error = row.get(f"{key}_se") if "n" in row else None
    return _short(row.get(key)) if error is None else f"{_short(row.get(key))} ± {error:.2g}"


def _delimited(columns: list[str], rows: list[list[Any]], delimiter: str) -> str:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([["" if value is None else value for value in row] for row in rows])
    return out.getvalue()


def _named(name: str, value: Any) -> str:
    """A value of a list: sizes and lists in words."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    if isinstance(value, int) and name.startswith(("memory_", "bytes_", "files: ")):
        return format_bytes(value)
    return _short(value)


def _short(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.4g}"
