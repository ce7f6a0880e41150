"""`--report FILE`: one self-contained HTML file: verdict, gate, table, pictures, provenance, how to reproduce it."""

import base64
import html
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..catalog import PICTURES, load
from ..plain_text import visible
from ..results.figures import Figures
from ..results.metric_table import METRICS
from ..results.result import Result, SweepResult
from .differences import difference_lines
from .text import review_grid, short, title, wide_grid

PICTURE_HEADINGS = {
    "curves": "W2 and coverage over k",
    "calibration": "Calibration",
    "risk-coverage": "Risk of the most certain rows",
    "scatter": "σ of each method against σ of the full posterior",
    "map": "Parameters of each sub-network, by layer",
    "ood": "Test rows and out-of-distribution rows",
}
PAGE_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; margin: 2rem auto; max-width: 86rem; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.lead { color: #57606a; margin: 0 0 1.2rem; }
p.verdict { font-size: 1.1rem; max-width: 60rem; margin: .4rem 0; }
ul.metrics { list-style: none; padding: 0; margin: .8rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #d8dee4; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td.text { white-space: normal; overflow-wrap: anywhere; }
thead th { border-bottom: 2px solid #8c959f; }
.banner { padding: .6rem 1rem; border-left: 6px solid; border-radius: 4px; background: #f6f8fa; font-weight: 600; }
.passed { border-color: #1a7f37; } .broken { border-color: #cf222e; } .open { border-color: #bf8700; }
img { max-width: 100%; height: auto; } pre { background: #f6f8fa; padding: .8rem 1rem; overflow-x: auto; }
"""


@dataclass(frozen=True)
class Origin:
    """What made the result: the network's name, the arguments of the command, the spec and the version."""

    model: str
    words: Sequence[str]
    spec_text: str
    version: str


def html_report(result: Result, figures: Figures | None, origin: Origin) -> str:
    """The report on one result: what follows from it comes first."""
    columns, rows = wide_grid(result)
    shown_spec = "\n".join(map(_escape, origin.spec_text.splitlines()))
    name = _escape(origin.model)
    parts = [
        f"<h1>{name}</h1><p class='lead'>{_escape(title(result))}</p>",
        *(f"<p class='verdict'>{_escape(line)}</p>" for line in (*result.verdict, *difference_lines(result))),
        _gate(result),
        "<h2>Result</h2>",
        _table(columns, rows),
        _definitions(columns),
        *_review(result),
        *_missing(result),
        *_pictures(result, figures),
        *_changes(result),
        "<h2>Setup and provenance</h2>",
        _table(["", "value"], _provenance(result), text_from=1),
        "<h2>How to reproduce it</h2>",
        f"<pre>{_escape(shlex.join(['sublaplace', *origin.words]))}</pre>",
        f"<p>with this <code>sublaplace.yaml</code>:</p><pre>{shown_spec}</pre>",
        f"<p class='lead'>Made by sublaplace {_escape(origin.version)}.</p>",
    ]
    body = "\n".join(part for part in parts if part)
    meta = "<meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
    head = f"{meta}<style>{PAGE_STYLE}</style><title>{name}: sublaplace report</title>"
    return f"<!doctype html>\n<html lang='en'><head>{head}</head>\n<body>{body}</body></html>\n"


def _definitions(columns: Sequence[str]) -> str:
    """Each metric of the table in a line."""
    better = {"lower": "lower is better", "higher": "higher is better"}
    lines = ["σ is the epistemic standard deviation of a method, σ₀² the noise variance."]
    for metric in (METRICS[name] for name in columns if name in METRICS):
        aim = f"{metric.nominal:g} is right" if metric.better == "nominal" else better.get(metric.better or "")
        lines.append(f"<b>{metric.name}</b>: {_escape(metric.definition)}{f' ({aim})' if aim else ''}")
    return f"<ul class='metrics'>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"


def _gate(result: Result) -> str:
    gate = result.gate
    if gate is None or not gate.checks:
        return ""
    kind = {True: "passed", False: "broken", None: "open"}[gate.passed]
    words = {"passed": "all limits hold", "broken": "a limit is broken", "open": "a limit could not be judged"}[kind]
    rows = [[check.verdict, check.description] for check in gate.checks]
    held, others = [row for row in rows if row[0] == "passed"], [row for row in rows if row[0] != "passed"]
    shown = _table(["", "check"], others, text_from=1) if others else ""
    folded = _folded(f"{len(held)} limits that hold", _table(["", "check"], held, text_from=1)) if held else ""
    return f"<p class='banner {kind}'>Gate: {words}</p>{shown}{folded}"


def _review(result: Result) -> list[str]:
    review = review_grid(result)
    return [] if review is None else [_folded(review[0].removesuffix(":"), _table(*review[1:]))]


def _changes(result: Result) -> list[str]:
    gate = result.gate
    if gate is None or gate.baseline_file is None or not gate.changes:
        return []
    keys = [*(["set"] if any(one.set is not None for one in gate.changes) else []), "method", "k", "metric"]
    keys += ["baseline", "value", "change"]
    rows = [[*(_number(getattr(one, key)) for key in keys), "yes" if one.within_error else ""] for one in gate.changes]
    head = f"<h2>Changes from the baseline</h2><p><code>{_escape(gate.baseline_file)}</code></p>"
    return [head, _folded(f"{len(rows)} numbers", _table([*keys, "within its standard error"], rows))]


def _missing(result: Result) -> list[str]:
    """Reasons for missing numbers, each reason once."""
    reasons: dict[str, set[str]] = {}
    for row in result.rows:
        for metric, why in row.why.items():
            if row.value(metric) is None and not metric.endswith("_se"):
                reasons.setdefault(why, set()).add(metric)
    items = "".join(f"<li>{_escape(', '.join(sorted(names)))}: {_escape(why)}</li>" for why, names in reasons.items())
    return [_folded("Missing numbers, and why", f"<ul>{items}</ul>")] if items else []


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{_escape(summary)}</summary>{body}</details>"


def _pictures(result: Result, figures: Figures | None) -> list[str]:
    if figures is None:
        return []
    from .plots import picture

    parts = []
    for kind, entry in PICTURES.items():
        name = _escape(PICTURE_HEADINGS.get(kind, kind))
        heading = f"<h2>{name}</h2>"
        if kind in figures.missing:
            parts.append(f"{heading}<p>Not drawn: {_escape(figures.missing[kind])}.</p>")
            continue
        if kind != "curves" and isinstance(result, SweepResult):
            heading += f"<p>Of the first run, {_escape(result.members[0].checkpoint)}.</p>"
        if kind != "map" and figures.test_set is not None:
            heading += f"<p>Of the first set of test rows, {_escape(figures.test_set)}.</p>"
        data = base64.b64encode(picture(load(entry)(result, figures), "svg")).decode()
        parts.append(f"{heading}<img alt='{name}' src='data:image/svg+xml;base64,{data}'>")
    return parts


def _provenance(result: Result) -> list[list[str]]:
    rows = [[key, _number(value)] for key, value in {**vars(result.setup), **result.provenance}.items()]
    if not isinstance(result, SweepResult):
        return [*rows, *([name, path] for name, path in result.artifacts.items())]
    for member in result.members:
        weights = member.result.provenance["weights_sha256"]
        rows.append([f"run {member.checkpoint}, seed {member.seed}", f"weights {weights}"])
    return rows


def _table(columns: list[str], rows: list[list[str]], text_from: int | None = None) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = [" class='text'" if text_from is not None and i >= text_from else "" for i in range(len(values))]
        return "".join(f"<{tag}{kind}>{_escape(value)}</{tag}>" for kind, value in zip(kinds, values, strict=True))

    head = f"<thead><tr>{cells('th', columns)}</tr></thead>"
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<div class='scroll'><table>{head}<tbody>{body}</tbody></table></div>"


def _number(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else short(value)


def _escape(text: str) -> str:
    return html.escape(visible(text))
