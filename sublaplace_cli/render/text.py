"""Result formats: functions from a result to text.

To add one: write `name(answer) -> str` here, add it to `catalog.FORMATS`, add a test with a real reader.
"""

import csv
import html
import io
import json
import re
from typing import Any

from ..catalog import FULL
from ..plain_text import csv_cell, visible, visible_json
from ..results.gate import checks_of
from ..results.metric_table import COLUMN_KEYS, METRICS
from ..results.result import Answer, Listing, Result, SweepResult
from ..sizes import format_bytes

_COLUMNS = {metric: metric.column for metric in METRICS.values() if metric.column is not None}
_ERROR_COLUMNS = [f"{metric.name}_se" for metric, column in _COLUMNS.items() if column.with_error]
# The most interesting columns; json and csv have all.
SHOWN = ("checkpoint", "seed", "method", "k", *(key for metric in _COLUMNS for key in COLUMN_KEYS[metric.name]))
# Shown only if some row has another value.
HIDDEN_AT = {"seed": 0, **{metric.name: column.hidden_at for metric, column in _COLUMNS.items()}}
# Dropped in this order if the terminal is too narrow: a truncated number is worse than none.
_DROP_ORDER = {metric.name: column.dropped for metric, column in _COLUMNS.items() if column.dropped}
DROPPED_FIRST = (*_ERROR_COLUMNS, *sorted(_DROP_ORDER, key=_DROP_ORDER.__getitem__))
MOST_ROWS_NAMED = 5  # in the summary of the gate
VALUE_HEADING = "value"  # of a column that holds words as well as numbers
LEFT_ALIGNED = ("checkpoint", "method", VALUE_HEADING)


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
    writer.writerows([cell(row.get(key)) for key in columns] for row in rows)  # None becomes an empty cell
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
    if said := [*verdict_lines(answer), *gate_lines(answer)]:
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
    """A plain-text table, as wide as needed."""
    from rich.console import Console as RichConsole

    out = io.StringIO()
    RichConsole(file=out, width=1000, color_system=None).print(rich_table(*short_grid(answer)))
    text = "\n".join([title(answer), *(line.rstrip() for line in out.getvalue().splitlines())]).strip("\n")
    if review := review_grid(answer):
        out = io.StringIO()
        RichConsole(file=out, width=1000, color_system=None).print(rich_table(*review[1:]))
        text += "\n".join(["", "", review[0], *(line.rstrip() for line in out.getvalue().rstrip().splitlines())])
    return "\n".join([text, *verdict_lines(answer), *gate_lines(answer)])


def review_grid(answer: Answer) -> tuple[str, list[str], list[list[str]]] | None:
    """(title, columns, rows) of the test rows to look at first."""
    found = None if isinstance(answer, Listing) else answer.review
    if found is None:
        return None
    name = found["method"] if found["k"] is None else f"{found['method']} (k = {found['k']})"
    columns = list(found["rows"][0])
    return (
        visible(f"test rows that {name} is most uncertain of:"),
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

    grid = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(columns):
        grid.add_column(name, justify="left" if i == 0 or name in LEFT_ALIGNED else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*map(Text, row))  # a string would be markup
    return grid


def gate_lines(answer: Answer) -> list[str]:
    """The gate in words: one line per limit that is broken or not judged, and how many limits hold."""
    checks = checks_of(answer)
    lines = [visible(f"{check.verdict}: {check.description}") for check in checks if check.verdict != "passed"]
    return [*lines, visible(gate_summary(answer))] if checks else []


def gate_summary(answer: Answer) -> str:
    """The whole gate in one line."""
    checks = checks_of(answer)
    rows = list(dict.fromkeys(check.row.choice for check in checks))
    named = ", ".join(rows[:MOST_ROWS_NAMED]) + (" …" if len(rows) > MOST_ROWS_NAMED else "")
    return f"gate: {sum(bool(check.passed) for check in checks)} of {len(checks)} limits hold (rows: {named})"


def title(answer: Answer) -> str:
    """What was evaluated, in one line; empty for a listing."""
    if isinstance(answer, Listing):
        return ""
    setup = answer.setup
    noise = "" if setup.noise_variance is None else f", noise variance {setup.noise_variance:.4g}"
    runs = f"{len(answer.members)} runs, " if isinstance(answer, SweepResult) else ""
    rows = f"{setup.n_train} training rows, {setup.n_test} test rows"
    prior = f"prior precision {short(setup.prior_precision)}"
    return visible(f"{setup.task}: {runs}{rows}, {setup.n_params} parameters, {prior}{noise}")


def short_grid(answer: Answer, width: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Non-empty columns, rounded, as many as fit into `width`; the full posterior is the last row."""
    if isinstance(answer, Listing):
        items = answer.as_dict().items()
        flat = [(name, value) for name, value in items if name != "schema" and not isinstance(value, dict)]
        nested = [(f"{name}: {key}", v) for name, value in items if isinstance(value, dict) for key, v in value.items()]
        cells = [[visible(name), _in_words(name, v)] for name, v in [*flat, *nested] if v is not None]
        return ["", VALUE_HEADING], cells
    rows = _all_rows(answer)
    columns = [key for key in SHOWN if any(row.get(key) not in (None, HIDDEN_AT.get(key)) for row in rows)]
    if isinstance(answer, SweepResult):
        columns = [key for key in columns if key not in _ERROR_COLUMNS]  # the means show it as ±
    shown = {key: [_with_error(row, key) for row in rows] for key in columns}
    for key in DROPPED_FIRST:
        if width is not None and key in columns and sum(max(map(len, [k, *shown[k]])) + 3 for k in columns) > width:
            columns.remove(key)
    return columns, [[shown[key][i] for key in columns] for i in range(len(rows))]


def _all_rows(result: Result) -> list[dict[str, Any]]:
    """The rows, then the means of a sweep, the references, last the full posterior if it is not among them."""
    means, label = (result.mean, {"checkpoint": "mean"}) if isinstance(result, SweepResult) else ((), {})
    rows = [row.as_dict() for row in result.rows] + [{**label, **row.as_dict()} for row in means]
    rows += [{**label, **row.as_dict()} for row in result.references.rivals]
    if result.full is not None and not any(row.method == FULL for row in result.rows):
        rows.append({**label, **result.full.as_dict()})
    return rows


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
