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
from .console import Console, folded, print_result, print_table

if TYPE_CHECKING:
    from ..commands.runner import Outcome
    from ..files.spec.loading import LoadedSpec
    from ..run.job import Job, OutputOptions

FORMATS_IN_WORDS = ("table", "markdown", "github")  # they show the verdict and the gate in words


def deliver(job: Job, spec: LoadedSpec, outcome: Outcome, console: Console) -> int:
    """Write and print everything; returns the exit code."""
    if not job.compute.dry_run:
        write_files(job, outcome, spec)
        for _, path in job.outputs.named():
            console.note(f"wrote {path}")
    _print(job, outcome.answer, console)
    answer = outcome.answer
    in_words = _stdout_format(job.outputs) in FORMATS_IN_WORDS
    if not in_words and not isinstance(answer, Listing):  # a note: --quiet drops it
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
        on = "" if change.set is None else f"{change.set}/"
        console.detail(f"{on}{change.method}, k = {change.k}: {change.metric} {values}{within}")
    return code


def write_files(job: Job, outcome: Outcome, spec: LoadedSpec) -> None:
    """Write all files that the options name, except the predictions."""
    from ..commands.runner import write_output

    outputs = job.outputs
    for path in outputs.output:
        write_output(path, load(FORMATS[FORMAT_OF_SUFFIX[path.suffix]])(outcome.answer).rstrip("\n") + "\n")
    if outputs.plot is not None:
        from ..render.plots import picture

        figure = load(PICTURES[outputs.plot_kind or "curves"])(outcome.answer, outcome.figures)
        write_output(outputs.plot, picture(figure, outputs.plot.suffix.removeprefix(".")))
    if outputs.report is not None and not isinstance(outcome.answer, Listing):
        from ..render.html import Origin, html_report

        origin = Origin(spec.spec.model.name(job.project.checkpoint), sys.argv[1:], spec.text, __version__)
        write_output(outputs.report, html_report(outcome.answer, outcome.figures, origin))


def _stdout_format(outputs: OutputOptions) -> str:
    return ("table" if sys.stdout.isatty() else "tsv") if outputs.format == "auto" else outputs.format


def _print(job: Job, answer: Answer, console: Console) -> None:
    kind = _stdout_format(job.outputs)
    if console.quiet and kind in FORMATS_IN_WORDS and not isinstance(answer, Listing):
        answer = answer.without_verdict()
    if kind == "table" and job.outputs.format == "auto":  # on a terminal: as wide as it is
        _print_for_terminal(answer, shutil.get_terminal_size().columns)
        return
    print_result(load(FORMATS[kind])(answer))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if kind == "github" and summary and not job.compute.dry_run:
        _append_summary(summary, answer, console)


def _print_for_terminal(answer: Answer, width: int) -> None:
    from ..render.differences import difference_lines
    from ..render.text import gate_lines, review_grid, short_grid, title, verdict_lines

    print_table(title(answer), *short_grid(answer, width), width)
    if review := review_grid(answer):
        print_table(*review, width)
    for line in (*difference_lines(answer), *verdict_lines(answer), *gate_lines(answer)):
        print_result(folded(line, width))


def _append_summary(path: str, answer: Answer, console: Console) -> None:
    """Append to the runner's summary file, which other steps also write to; a failure is only a warning."""
    from ..render.ci import github_summary

    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(github_summary(answer))
    except OSError as error:
        console.warn(f"GITHUB_STEP_SUMMARY {path}: {error.strerror}; the summary was not written")
