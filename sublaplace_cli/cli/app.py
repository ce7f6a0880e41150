"""The command line: parse → run → deliver. The only error boundary and exit-code map.

Nothing heavy is imported at the top: `--help` and wrong usage must answer at once.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import time
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import __version__, signals
from ..errors import Reason, SublaplaceError
from . import garbage
from .advice import ADVICE, hint_of
from .console import Console, print_result
from .settings import COMMANDS, GROUPS, Command, Settings

OTHER_OPTIONS = "Other"  # the section of those without a group
FORCE_IS_DEPRECATED = "--force is deprecated: --overwrite replaces output files, --recompute repeats the work"


@contextlib.contextmanager
def _shown_usage_errors() -> Iterator[None]:
    """Usage errors leave through the console like all others."""
    try:
        yield
    except Exception as error:  # click's own, which typer has moved between versions
        if not hasattr(error, "show"):
            raise
        Console().usage_error(error)
        raise typer.Exit(getattr(error, "exit_code", 2)) from error


class CommandGroup(typer.core.TyperGroup):
    """All commands."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        with _shown_usage_errors():
            return super().make_context(*args, **more)

    def resolve_command(self, *args: Any, **more: Any) -> Any:
        with _shown_usage_errors():
            return super().resolve_command(*args, **more)


class ParsedCommand(typer.core.TyperCommand):
    """One command; its help has a section per group of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {group: [] for group in (*GROUPS, OTHER_OPTIONS)}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                sections[getattr(parameter, "rich_help_panel", None) or OTHER_OPTIONS].append(record)
        for group, records in sections.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)

    def make_context(self, *args: Any, **more: Any) -> Any:
        with _shown_usage_errors():
            return super().make_context(*args, **more)


app = typer.Typer(
    name="sublaplace",
    cls=CommandGroup,
    help="Sub-network Laplace approximations: how uncertain is each prediction of a trained network, with a "
    "posterior over k well-chosen parameters, and how close is that to the full Laplace posterior?",
    epilog="Try: sublaplace evaluate --method gradient --k 1000   (in a folder with a sublaplace.yaml)   "
    "or: sublaplace help",
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
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="show the version and exit")
]


def _show_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        print_result(context.get_help())
        raise typer.Exit


Help = Annotated[bool, typer.Option("--help", callback=_show_help, is_eager=True, help="show this message and exit")]


@app.callback()
def _top(version: Version = False, help: Help = False) -> None:
    pass


def _command(name: str) -> Callable[..., None]:
    """A Typer command whose options are fields of `Settings`: each option is declared once for all commands."""

    def body(**values: Any) -> None:
        values.pop("version")
        typed: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        _execute(name, Settings(**typed))

    hints = typing.get_type_hints(Settings, include_extras=True)
    declared = {field.name: field for field in dataclasses.fields(Settings)}
    about = COMMANDS[name]
    parameters = [_parameter(declared[field], hints[field], about) for field in about.fields]
    parameters.append(inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Version))
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    body.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return body


def _parameter(field: dataclasses.Field[Any], hint: Any, about: Command) -> inspect.Parameter:
    """A field of `Settings` as Typer declares it; repeated options are tuples there, lists for Typer."""
    (hint, text), default = typing.get_args(hint), field.default
    if isinstance(default, tuple):
        hint, default = list[typing.get_args(hint)[0]], list(default)  # type: ignore[misc]
    text = about.own_text(field.name, text)
    flags = text.flags or ("--" + field.name.replace("_", "-"),)
    option = typer.Option(
        *flags,
        help=text.help,
        metavar=text.metavar,
        hidden=text.hidden,
        autocompletion=text.complete if text.names else None,
        rich_help_panel=next((group for group, names in GROUPS.items() if field.name in names), None),
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option]
    )


_OWN_HELP = {"help_option_names": ["--help"]}
for _name, _about in COMMANDS.items():
    about, epilog = _about.help, _about.epilog()
    declare = app.command(_name, cls=ParsedCommand, help=about, epilog=epilog, context_settings=_OWN_HELP)
    declare(_command(_name))


_INIT_EXAMPLES = Command(
    "", (), ("sublaplace init model.pt data.csv", "sublaplace init model.pt2 data.npz --task binary")
)


@app.command("init", cls=ParsedCommand, epilog=_INIT_EXAMPLES.epilog(), context_settings=_OWN_HELP)
def _init(
    checkpoint: Annotated[Path | None, typer.Argument(help="weights, .pt2 or Hugging Face folder")] = None,
    data: Annotated[Path | None, typer.Argument(help="csv, parquet, arrow, npz or safetensors")] = None,
    task: Annotated[str | None, typer.Option(help="regression, binary or multiclass", metavar="NAME")] = None,
    activation: Annotated[str | None, typer.Option(help="of an MLP: relu, tanh, …", metavar="NAME")] = None,
    spec: Annotated[Path, typer.Option(help="where to write it", metavar="FILE")] = Path("sublaplace.yaml"),
    json: Annotated[bool, typer.Option("--json", help="what was found, as JSON")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show a traceback on errors")] = False,
) -> None:
    """Write a sublaplace.yaml for a checkpoint and its data. It has comments; what was inferred is printed."""
    from .starting import run_init

    with _reported_errors(debug):
        run_init(checkpoint, data, task, activation, spec, as_json=json)


_CLEAN_EXAMPLES = Command("", (), ("sublaplace clean --dry-run", "sublaplace clean --older-than 7d"))


@app.command("clean", cls=ParsedCommand, epilog=_CLEAN_EXAMPLES.epilog(), context_settings=_OWN_HELP)
def _clean(
    older_than: Annotated[
        str | None, typer.Option(help="only runs unused for so long: 30m, 12h, 7d or 2w", metavar="TIME")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list them")] = False,
    spec: Annotated[
        Path | None, typer.Option(help="the spec; default: the nearest sublaplace.yaml", metavar="FILE")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="instead: this run folder, or all run folders in it", metavar="DIR")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="what was found, as JSON")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show a traceback on errors")] = False,
) -> None:
    """List and remove what runs have kept beside a spec. All of it can be computed again."""
    from .cleaning import run_clean

    with _reported_errors(debug):
        run_clean(spec, run_dir, older_than, dry_run=dry_run, as_json=json)


@app.command("help", cls=ParsedCommand, context_settings=_OWN_HELP)
def _help(topic: Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False)] = None) -> None:
    """Show a guide in the terminal; without a topic, list them."""
    from .help_topics import show_topic

    with _reported_errors():
        show_topic(topic)


@contextlib.contextmanager
def _reported_errors(debug: bool = False) -> Iterator[None]:
    """Of a command that is not distributed: a failure becomes one message and an exit code."""
    try:
        yield
    except Exception as error:
        signals.check()
        if debug:
            Console().traceback(error)
        explained = _explained(error)
        Console().error(explained)
        raise typer.Exit(explained.exit_code) from error


def _execute(command: str, settings: Settings) -> None:
    """The error boundary: every failure becomes one message and an exit code."""
    from ..distributed.process_group import exit_if_distributed, report_error, worker_group
    from ..distributed.ranks import current_rank
    from .deliver import deliver
    from .usage import parse_job

    console = Console(settings.quiet, settings.verbose)
    try:
        info = current_rank()
        if not info.is_leader:
            console = Console(quiet=True)
        job = parse_job(command, settings)
        if settings.force:
            console.note(FORCE_IS_DEPRECATED)
        from ..files.spec.loading import find_spec, load_spec  # imports pydantic

        spec = load_spec(job.project.spec or find_spec(Path.cwd()))  # a wrong spec is reported before torch is imported
        # Warnings of libraries are shown with --verbose.
        warnings.showwarning = lambda message, *_args, **_more: console.detail(f"(library warning) {message}")
        from ..commands.runner import follow_job, run_job  # imports torch

        garbage.resume()
        with worker_group(info, job.compute.device) as workers:
            own = dataclasses.replace(job.compute, device=str(getattr(workers, "device", job.compute.device)))
            job = dataclasses.replace(job, compute=own)
            # No exit inside this block: the group is closed at its regular end only.
            lead = functools.partial(run_job, spent=time.process_time())
            outcome = (lead if info.is_leader else follow_job)(job, spec, console, workers)
        signals.check()
        code = 0 if outcome is None else deliver(job, spec, outcome, console)
    except Exception as error:
        signals.check()  # an interruption that a library turned into another exception
        if settings.debug:
            console.traceback(error)
        explained = _explained(error)
        report_error(explained, console.error)
        code = explained.exit_code
        exit_if_distributed(code)
    raise typer.Exit(code)


def _explained(error: Exception) -> SublaplaceError:
    if isinstance(error, SublaplaceError):
        error.hint = hint_of(error)  # other ranks get the message and the hint, not the reason
        return error
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, not imported here
        return SublaplaceError("out of memory", hint=ADVICE[Reason.OUT_OF_MEMORY])
    return SublaplaceError(f"unexpected {type(error).__name__}: {error}", hint="--debug shows the traceback")
