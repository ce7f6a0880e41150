"""Result formats: functions from a result to text.

To add one: write `name(answer) -> str` here, add it to `catalog.FORMATS`, add a test with a real reader.
"""

import csv
import html
import io
import json
import re
from typing import Any, Literal

from ..catalog import FULL, TASKS
from ..plain_text import csv_cell, visible, visible_json
from ..results.gate import checks_of
from ..results.metric_table import COLUMN_KEYS, COLUMNS_OF_A_SHORT_TABLE, METRICS, MOST_WANTED
from ..results.result import Answer, Listing, Result, SweepResult
from ..sizes import format_bytes
from .differences import difference_lines

_COLUMNS = {metric: metric.column for metric in METRICS.values() if metric.column is not None}
_ERROR_COLUMNS = [f"{metric.name}_se" for metric, column in _COLUMNS.items() if column.with_error]
_LABELS = ("checkpoint", "seed", "set", "method", "k")
# Columns in their order; a short table has the most wanted ones, json and csv have all metrics.
SHOWN = (*_LABELS, *(key for metric in _COLUMNS for key in COLUMN_KEYS[metric.name]))
# Shown only if some row that was asked for has another value.
HIDDEN_AT: dict[str, float] = {
    "seed": 0,
    **{metric.name: column.hidden_at for metric, column in _COLUMNS.items() if column.hidden_at is not None},
}
TABLE_WIDTH, GAP = 80, 2  # characters of a short table, and between its columns
LONGEST_HEADING = 7  # from which on a heading takes two lines
MOST_ROWS_NAMED = 5  # in the summary of the gate
VALUE_HEADING = "value"  # of a column that holds words as well as numbers
LEFT_ALIGNED = ("checkpoint", "set", "method", VALUE_HEADING)


def jsonl(answer: Answer) -> str:
    """One line of JSON per row."""
    lines = [answer.as_dict()] if isinstance(answer, Listing) else _all_rows(answer)
    return "\n".join(visible_json(json.dumps(line, allow_nan=False, ensure_ascii=False)) for line in lines)


def csv_text(answer: Answer, delimiter: str = ",") -> str:
    """All keys of the rows in full precision; missing values are empty."""
    cell = csv_cell if delimiter == "," else _tsv_cell
    if isinstance(answer, Listing):
        flat = {cell(k): json.dumps(v) if isinstance(v, (dict, list)) else v for k, v in answer.as_dict().items()}
        columns, rows = list(flat), [flat]
    else:
        columns, rows = [key for key in answer.rows[0].as_dict() if key != "why"], _all_rows(answer)
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)  # columns of rows are names of our own
    # None becomes an empty cell, and a mapping JSON.
    values = ([row.get(key) for key in columns] for row in rows)
    writer.writerows([cell(json.dumps(v) if isinstance(v, dict) else v) for v in own] for own in values)
    return out.getvalue()


def tsv(answer: Answer) -> str:
    """Tab-separated, for pipes."""
    return csv_text(answer, "\t")


def _tsv_cell(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def markdown(answer: Answer) -> str:
    """A table for a README or a pull request."""
    columns, rows = short_grid(answer)
    lines = [f"**{_markdown_text(title(answer))}**", ""] if title(answer) else []
    lines += _markdown_table(columns, rows)
    if review := review_grid(answer):
        lines += ["", _markdown_text(review[0]), "", *_markdown_table(*review[1:])]
    if said := [*difference_lines(answer), *verdict_lines(answer), *gate_lines(answer)]:
        lines += ["", *(f"* {_markdown_text(line)}" for line in said)]
    return "\n".join(lines)


def _markdown_table(columns: list[str], rows: list[list[str]]) -> list[str]:
    head = ["| " + " | ".join(columns) + " |", "| --- |" + " ---: |" * (len(columns) - 1)]
    return head + ["| " + " | ".join(map(_markdown_text, row)) + " |" for row in rows]


def _markdown_text(text: str) -> str:
    """Text without markup: no tag, link, emphasis or code, and no end of a cell."""
    escaped = re.sub(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", text)
    return html.escape(escaped, quote=False)


def table(answer: Answer) -> str:
    """A plain-text table, and what it means."""
    parts = [[title(answer)], _plain_grid(*short_grid(answer))]
    if review := review_grid(answer):
        parts += [[review[0]], _plain_grid(*review[1:])]
    parts += [difference_lines(answer), [*verdict_lines(answer), *gate_lines(answer)]]
    return "\n\n".join("\n".join(part) for part in parts if any(part))


def _plain_grid(columns: list[str], rows: list[list[str]]) -> list[str]:
    from rich.console import Console as RichConsole

    out = io.StringIO()
    RichConsole(file=out, width=1000, color_system=None).print(rich_table(columns, rows))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def review_grid(answer: Answer) -> tuple[str, list[str], list[list[str]]] | None:
    """(title, columns, rows) of the test rows to look at first."""
    found = None if isinstance(answer, Listing) else answer.review
    if found is None:
        return None
    name = found["method"] if found["k"] is None else f"{found['method']} (k = {found['k']})"
    of_set = f" of {found['set']}" if "set" in found else ""
    columns = list(found["rows"][0])
    return (
        visible(f"test rows{of_set} that {name} is most uncertain of:"),
        columns,
        [[short(row[key]) for key in columns] for row in found["rows"]],
    )


def verdict_lines(answer: Answer) -> list[str]:
    """Whether a posterior helps, in sentences; none for a listing or a sweep."""
    return [] if isinstance(answer, Listing) else [visible(line) for line in answer.verdict]


def rich_table(columns: list[str], rows: list[list[str]]) -> Any:
    """The table as an object that rich prints."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    vertical: Literal["top", "bottom"] = "top" if VALUE_HEADING in columns else "bottom"
    for i, name in enumerate(columns):
        side: Literal["left", "right"] = "left" if i == 0 or name in LEFT_ALIGNED else "right"
        heading = Text("\n".join(_heading_lines(name)), justify=side)
        words = name == VALUE_HEADING  # the only column that may be folded to fit the terminal
        grid.add_column(heading, justify=side, no_wrap=not words, overflow="fold", vertical=vertical)
    for row in rows:
        grid.add_row(*map(Text, row))  # a string would be markup
    return grid


def _heading_lines(name: str) -> list[str]:
    """A long name in two lines, so that the column is as narrow as its numbers."""
    cuts = [i + after for i, letter in enumerate(name) if letter == "_" for after in (0, 1)]
    if len(name) <= LONGEST_HEADING or not cuts:
        return [name]
    at = min(cuts, key=lambda cut: max(cut, len(name) - cut))
    return [name[:at], name[at:]]


def gate_lines(answer: Answer) -> list[str]:
    """The gate in words: one line per limit that is broken or not judged, and how many limits hold."""
    checks = checks_of(answer)
    lines = [visible(f"{check.verdict}: {check.description}") for check in checks if check.verdict != "passed"]
    return [*lines, visible(gate_summary(answer))] if checks else []


def gate_summary(answer: Answer) -> str:
    """The whole gate in one line."""
    checks = checks_of(answer)
    rows = list(dict.fromkeys(check.row.place for check in checks))
    named = ", ".join(rows[:MOST_ROWS_NAMED]) + (" …" if len(rows) > MOST_ROWS_NAMED else "")
    return f"gate: {sum(bool(check.passed) for check in checks)} of {len(checks)} limits hold (rows: {named})"


def title(answer: Answer) -> str:
    """What was evaluated, in one line; empty for a listing."""
    if isinstance(answer, Listing):
        return ""
    setup = answer.setup
    noise = "" if setup.noise_variance is None else f", noise variance {setup.noise_variance:.4g}"
    runs = f"{len(answer.members)} runs, " if isinstance(answer, SweepResult) else ""
    sets = ", ".join(f"{name} {count}" for name, count in answer.test_sets.items())
    tests = f"test rows {sets}" if len(answer.test_sets) > 1 else f"{setup.n_test} test rows"
    rows = f"{setup.n_train} training rows, {tests}"
    prior = f"prior precision {short(setup.prior_precision)}"
    full = "" if answer.certified is None else f", σ of full certified to ± {100 * answer.certified:.2g} %"
    return visible(f"{setup.task}: {runs}{rows}, {setup.n_params} parameters, {prior}{noise}{full}")


def short_grid(answer: Answer, width: int | None = None) -> tuple[list[str], list[list[str]]]:
    """The most wanted columns, rounded, as many as fit into `width`; the full posterior is the last row.

    Without a width: as many as fit into that of a usual terminal, not counting names of checkpoints.
    """
    if isinstance(answer, Listing):
        return _listed(answer)
    columns, cells = wide_grid(answer)
    widths = {
        key: max(map(len, [*_heading_lines(key), *(row[i] for row in cells)])) + GAP for i, key in enumerate(columns)
    }
    wanted = [key for key in _most_wanted(answer) if key in columns]
    labels = [key for key in _LABELS if key in columns]
    counted = [key for key in labels if width is not None or key != "checkpoint"]
    room = (TABLE_WIDTH if width is None else width) + GAP - sum(widths[key] for key in counted)
    taken = wanted[: COLUMNS_OF_A_SHORT_TABLE - len(labels)]
    while len(taken) > 1 and sum(widths[key] for key in taken) > room:
        taken.pop()
    chosen = [i for i, key in enumerate(columns) if key in labels or key in taken]
    return [columns[i] for i in chosen], [[row[i] for i in chosen] for row in cells]


def wide_grid(result: Result) -> tuple[list[str], list[list[str]]]:
    """All columns for people that are not empty, rounded."""
    rows = _all_rows(result)
    asked = [row.as_dict() for row in result.rows]
    columns = [
        key
        for key in SHOWN
        if any(row.get(key) not in (None, HIDDEN_AT.get(key)) for row in (asked if key in HIDDEN_AT else rows))
    ]
    if isinstance(result, SweepResult):
        columns = [key for key in columns if key not in _ERROR_COLUMNS]  # the means show it as ±
    return columns, [[_with_error(row, key) for key in columns] for row in rows]


def _most_wanted(result: Result) -> tuple[str, ...]:
    return MOST_WANTED["classes" if TASKS[result.setup.task].labels else "measurements"]


def _listed(listing: Listing) -> tuple[list[str], list[list[str]]]:
    items = listing.as_dict().items()
    flat = [(name, value) for name, value in items if name != "schema" and not isinstance(value, dict)]
    nested = [(f"{name}: {key}", v) for name, value in items if isinstance(value, dict) for key, v in value.items()]
    return ["", VALUE_HEADING], [[visible(name), _in_words(name, v)] for name, v in [*flat, *nested] if v is not None]


def _all_rows(result: Result) -> list[dict[str, Any]]:
    """The rows, the references, last the full posterior if it is not among them; set by set, if there are several.

    In a sweep first the rows of all runs, then the means.
    """
    own = [*result.compared_rows, *result.references.rivals]
    if result.full is not None and not any(row.method == FULL for row in result.rows):
        own.append(result.full)
    sets = dict.fromkeys(row.set for row in own)
    shown = [row.as_dict() for name in sets for row in own if row.set == name]
    if not isinstance(result, SweepResult):
        return shown
    return [row.as_dict() for row in result.rows] + [{"checkpoint": "mean", **row} for row in shown]


def _with_error(row: dict[str, Any], key: str) -> str:
    """A value; in a mean over runs with its standard error."""
    error = row.get(f"{key}_se") if "n" in row else None
    return short(row.get(key)) + ("" if error is None else f" ± {error:.2g}")


def _in_words(name: str, value: Any) -> str:
    if isinstance(value, list):
        return visible(", ".join(map(str, value))) or "–"
    if isinstance(value, int) and re.match(r"memory_|files: |(hessian_\w+: )?bytes_", name):
        return format_bytes(value)
    return short(value)


def short(value: Any) -> str:
    """A value in a table: four digits of a number, – for None."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))
