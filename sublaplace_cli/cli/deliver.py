"""Output of a command: the files that the command line names, the result on stdout, the exit code."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from .. import __version__
from ..catalog import FORMAT_OF_SUFFIX, FORMATS, PICTURES, load
from ..results.gate import exit_code
from ..results.result import Answer, Listing
from .console import Console, print_result, print_table

if TYPE_CHECKING:
    from ..commands.runner import Outcome
    from ..run.job import Job, OutputOptions

FORMATS_IN_WORDS = ("table", "markdown", "github")  # they show the verdict and the gate in words


def deliver(job: Job, spec_text: str, outcome: Outcome, console: Console) -> int:
    """Write and print everything; returns the exit code."""
    if not job.compute.dry_run:
        write_files(job.outputs, outcome, spec_text)
    _print(job, outcome.answer, console)
    answer = outcome.answer
    in_words = _stdout_format(job.outputs) in FORMATS_IN_WORDS
    if not in_words and not isinstance(answer, Listing):
        for line in answer.verdict:
            console.note(line)
    if isinstance(answer, Listing) or answer.gate is None:
        return 0
    code = exit_code(answer)
    if not in_words:
        from ..render.text import gate_lines

        for line in gate_lines(answer):
            (console.warn if code else console.note)(line)
    for change in answer.gate.changes:
        within = " (within its standard error)" if change.within_error else ""
        values = f"{change.baseline:.6g} → {change.value:.6g}"
        console.detail(f"{change.method}, k = {change.k}: {change.metric} {values}{within}")
    return code


def write_files(outputs: OutputOptions, outcome: Outcome, spec_text: str) -> None:
    """Write all files that the options name, except the predictions."""
    from ..commands.runner import write_output

    for path in outputs.output:
        write_output(path, load(FORMATS[FORMAT_OF_SUFFIX[path.suffix]])(outcome.answer).rstrip("\n") + "\n")
    if outputs.plot is not None:
        from ..render.plots import picture

        figure = load(PICTURES[outputs.plot_kind or "curves"])(outcome.answer, outcome.figures)
        write_output(outputs.plot, picture(figure, outputs.plot.suffix.removeprefix(".")))
    if outputs.report is not None and not isinstance(outcome.answer, Listing):
        from ..render.html import html_report

        text = html_report(outcome.answer, outcome.figures, sys.argv[1:], spec_text, __version__)
        write_output(outputs.report, text)


def _stdout_format(outputs: OutputOptions) -> str:
    return ("table" if sys.stdout.isatty() else "tsv") if outputs.format == "auto" else outputs.format


def _print(job: Job, answer: Answer, console: Console) -> None:
    kind = _stdout_format(job.outputs)
    if kind == "table" and job.outputs.format == "auto":  # on a terminal: as wide as it is
        from ..render.text import gate_lines, review_grid, short_grid, title, verdict_lines

        print_table(title(answer), *short_grid(answer, shutil.get_terminal_size().columns))
        if review := review_grid(answer):
            print_table(*review)
        for line in (*verdict_lines(answer), *gate_lines(answer)):
            print_result(line)
        return
    print_result(load(FORMATS[kind])(answer))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if kind == "github" and summary and not job.compute.dry_run:
        _append_summary(summary, answer, console)


def _append_summary(path: str, answer: Answer, console: Console) -> None:
    """Append to the runner's summary file, which other steps also write to; a failure is only a warning."""
    from ..render.ci import github_summary

    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(github_summary(answer))
    except OSError as error:
        console.warn(f"GITHUB_STEP_SUMMARY {path}: {error.strerror}; the summary was not written")
