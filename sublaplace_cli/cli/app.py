"""The command line: parse → one step → print. The one error boundary and exit-code map.

Nothing heavy is imported up here: `--help` and wrong usage must answer at once.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import shutil
import sys
import traceback
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import __version__, signals
from ..catalog import FORMATS, PICTURES, SUFFIXES, load
from ..distributed.process_group import exit_if_distributed, report_error, worker_group
from ..distributed.ranks import RankInfo, current_rank
from ..errors import SublaplaceError
from ..steps.request import check_usage
from ..steps.settings import Settings
from .console import Console, print_result, print_table
from .options import COMMANDS, OPTIONS

IN_WORDS = ("table", "markdown", "github")  # formats that tell of the gate

if TYPE_CHECKING:
    from ..steps.commands import Outcome

app = typer.Typer(
    name="sublaplace",
    help="Sub-network Laplace approximations: how uncertain is each prediction of a trained network, with a "
    "posterior over k well-chosen parameters, and how close is that to the full Laplace posterior?",
    epilog="Try: sublaplace evaluate --method gradient --k 1000   (in a folder with a sublaplace.yaml)",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    # Typer's own --help and completion options would make every COMMAND --help import pydantic: 100 ms. A shell that
    # asks for completions says so in the environment.
    add_completion="_SUBLAPLACE_COMPLETE" in os.environ,
    context_settings={"help_option_names": []},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print_result(f"sublaplace {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and end")
]


def _show_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        print_result(context.get_help())
        raise typer.Exit


Help = Annotated[bool, typer.Option("--help", callback=_show_help, is_eager=True, help="show this message and end")]


@app.callback()
def _top(version: Version = False, help: Help = False) -> None:
    pass


def _command(name: str) -> Callable[..., None]:
    """A Typer command whose options are fields of `Settings`: each option is declared once for all commands."""

    def body(**values: Any) -> None:
        values.pop("version")
        given: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        _execute(name, Settings(**given))

    hints = typing.get_type_hints(Settings)
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Settings)}
    parameters = [
        inspect.Parameter(
            field,
            inspect.Parameter.KEYWORD_ONLY,
            default=list(defaults[field]) if isinstance(defaults[field], tuple) else defaults[field],
            annotation=Annotated[_option_type(hints[field]), OPTIONS[field]],
        )
        for field in COMMANDS[name].fields
    ]
    parameters.append(inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Version))
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    body.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    body.__doc__ = COMMANDS[name].help
    return body


def _option_type(hint: Any) -> Any:
    """Repeated options are tuples in `Settings`, lists for Typer."""
    return list[typing.get_args(hint)[0]] if typing.get_origin(hint) is tuple else hint  # type: ignore[misc]


for _name, _about in COMMANDS.items():
    own_help = {"help_option_names": ["--help"]}
    app.command(_name, help=_about.help, epilog=_about.epilog(), context_settings=own_help)(_command(_name))


def _execute(command: str, settings: Settings) -> None:
    """The error boundary: every failure becomes one message and an exit code."""
    console = Console(settings.quiet, settings.verbose)
    try:
        info = current_rank()
        if not info.is_leader:
            console = Console(quiet=True)
        code = _run(command, settings, console, info)
    except Exception as error:
        signals.check()  # an interruption in disguise is none of these errors
        if settings.debug:
            traceback.print_exc(file=sys.__stderr__)
        explained = _explained(error)
        report_error(explained, console.error)
        code = explained.exit_code
        exit_if_distributed(code)
    raise typer.Exit(code)


def _explained(error: Exception) -> SublaplaceError:
    if isinstance(error, SublaplaceError):
        return error
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, not imported here
        return SublaplaceError("out of memory", hint="lower --memory, --k or the number of rows")
    return SublaplaceError(f"unexpected {type(error).__name__}: {error}", hint="--debug shows the traceback")


def _run(command: str, settings: Settings, console: Console, info: RankInfo) -> int:
    settings = _with_environment(settings)
    check_usage(settings)
    _check_spec(settings)
    _route_warnings(console)
    from ..steps.commands import follow_command, run_command  # import torch: only once usage and spec are right

    with worker_group(info, settings.device) as workers:
        settings = dataclasses.replace(settings, device=str(getattr(workers, "device", settings.device)))
        if not info.is_leader:
            follow_command(command, settings, console, workers)
            return 0
        outcome = run_command(command, settings, console, load(FORMATS["json"]), workers)
    signals.check()
    if not settings.dry_run:
        _write_files(outcome, settings)
    _print(outcome.result, settings, console)
    return _judged(outcome.result, settings, console)


def _write_files(outcome: Outcome, settings: Settings) -> None:
    """Everything that the command line names, besides the predictions."""
    from ..files.artifacts.atomic import replacing, write_text

    for path in settings.output:
        kind = SUFFIXES[path.suffix] if settings.format == "auto" else settings.format
        write_text(path, load(FORMATS[kind])(outcome.result).rstrip("\n") + "\n")
    if settings.plot is not None:
        from ..render.plots import picture

        figure = load(PICTURES[settings.plot_kind or "curves"])(outcome.result, outcome.figures)
        with replacing(settings.plot) as file:
            file.write(picture(figure, settings.plot.suffix.removeprefix(".")))
    if settings.report is not None:
        from ..render.html import html_report

        text = html_report(outcome.result, outcome.figures, sys.argv[1:], outcome.spec.text, __version__)
        write_text(settings.report, text)


def _judged(result: dict[str, Any], settings: Settings, console: Console) -> int:
    """The exit code of the gate; on stderr what it comes from, where stdout does not say it in words."""
    if settings.dry_run or not result.get("gate"):
        return 0
    from ..render.text import gate_lines
    from ..results.gate import exit_code

    code = exit_code(result)
    if _format_of(settings) not in IN_WORDS:
        for line in gate_lines(result):
            (console.warn if code else console.note)(line)
    for change in result["gate"].get("baseline", {}).get("changes", ()):
        within = " (within its standard error)" if change["within_error"] else ""
        values = f"{change['baseline']:.6g} → {change['value']:.6g}"
        console.detail(f"{change['method']}, k = {change['k']}: {change['metric']} {values}{within}")
    return code


def _with_environment(settings: Settings) -> Settings:
    allowed = os.environ.get("SUBLAPLACE_ALLOW_CODE", "").replace(",", " ").split()
    return dataclasses.replace(settings, allow_code=(*settings.allow_code, *allowed))


def _check_spec(settings: Settings) -> None:
    from ..files.spec.loading import find_spec, load_spec

    load_spec(settings.spec if settings.spec is not None else find_spec(Path.cwd()))


def _route_warnings(console: Console) -> None:
    """Warnings of libraries are for --verbose; ours are written on purpose."""

    def show(message: Warning | str, *_args: Any, **_kwargs: Any) -> None:
        console.detail(f"(library warning) {message}")

    warnings.showwarning = show


def _format_of(settings: Settings) -> str:
    """What stdout is written in."""
    kind = "json" if settings.json else settings.format
    return ("table" if sys.stdout.isatty() else "tsv") if kind == "auto" else kind


def _print(result: dict[str, Any], settings: Settings, console: Console) -> None:
    kind = _format_of(settings)
    if kind == "table" and settings.format == "auto":  # on a terminal: as wide as it is
        from ..render.text import gate_lines, short_grid, title

        print_table(title(result), *short_grid(result, shutil.get_terminal_size().columns))
        for line in gate_lines(result):
            print_result(line)
        return
    print_result(load(FORMATS[kind])(result))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if kind == "github" and summary and not settings.dry_run:
        _append_summary(summary, result, console)


def _append_summary(path: str, result: dict[str, Any], console: Console) -> None:
    """To the runner's file, which other steps write to as well; the verdict does not depend on it."""
    from ..render.ci import github_summary

    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(github_summary(result))
    except OSError as error:
        console.warn(f"GITHUB_STEP_SUMMARY {path}: {error.strerror}; the summary was not written")
