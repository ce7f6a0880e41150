"""Options as typed → a job; wrong options are refused before anything is read."""

import os
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from ..catalog import FORMAT_OF_SUFFIX, FORMATS, PICTURE_SUFFIXES, PICTURES
from ..errors import UserError, suggestion
from ..results.limits import parse_limits
from ..run.job import (
    Choice,
    ComputeOptions,
    GateOptions,
    Job,
    Mode,
    OutputOptions,
    PosteriorOptions,
    ProjectOptions,
    RowOptions,
    SelectionOptions,
)
from ..sizes import parse_bytes
from .methods import is_count, parse_choices, parse_methods
from .settings import Settings

ONE_OF = {
    "score": ("weighted", "unweighted"),
    "reference": ("train", "test", "reference"),
    "dtype": ("float32", "float64"),
    "gram_dtype": ("float64", "float32"),
    "full": ("exact", "none", "bracket"),
    "rescale": ("none", "scale", "hybrid"),
    "split": ("train", "test", "reference", "all"),
    "format": ("auto", *FORMATS),
}
# Options that have no effect on predictions with a stored posterior.
FIXED_BY_POSTERIOR = ("method", "k", "rescale", "retain", "pool", "score", "reference", "full", "full_rows")
Options = TypeVar("Options")


def parse_job(command: str, settings: Settings) -> Job:
    """All options, parsed once."""
    _check(settings)
    memory = None if settings.memory is None else parse_bytes(settings.memory, "--memory")
    max_artifact = parse_bytes(settings.max_artifact, "--max-artifact")
    allowed = os.environ.get("SUBLAPLACE_ALLOW_CODE", "").replace(",", " ").split()
    limits = tuple(parse_limits(settings.fail_if, settings.max_regression))
    return Job(
        command=cast(Any, command),
        choices=_choices(command, settings),
        project=_picked(
            ProjectOptions, settings, checkpoints=settings.checkpoint, allow_code=(*settings.allow_code, *allowed)
        ),
        compute=_picked(ComputeOptions, settings, memory=memory, max_artifact=max_artifact),
        selection=_picked(SelectionOptions, settings, typed=(settings.method, settings.k)),
        posterior=_picked(PosteriorOptions, settings),
        rows=_picked(RowOptions, settings),
        outputs=_picked(
            OutputOptions, settings, format="json" if settings.json else settings.format, results=settings.output
        ),
        gate=_picked(GateOptions, settings, limits=limits),
        mode=_picked(Mode, settings),
    )


def _picked(kind: type[Options], settings: Settings, **parsed: Any) -> Options:
    """A part of the job: the parsed values, and the settings of the same name for the other fields."""
    names = [field.name for field in fields(cast(Any, kind)) if field.name not in parsed]
    return kind(**{name: getattr(settings, name) for name in names}, **parsed)


def on_device(job: Job, device: str) -> Job:
    """The same job on the device of this rank."""
    return replace(job, compute=replace(job.compute, device=device))


def _choices(command: str, settings: Settings) -> tuple[Choice, ...]:
    if command == "jacobians" or settings.posterior is not None:
        return ()
    if command == "fit" and settings.indices is not None:
        if settings.method is not None or settings.k is not None:
            raise UserError("--indices already says which parameters: leave --method and --k out")
        return ()
    found = parse_choices(settings)
    if command != "evaluate" and len(found) != 1:
        raise UserError(
            f"{command} takes one method and one k, got {len(found)} combinations",
            hint="call it once for each, or compare them all with: sublaplace evaluate",
        )
    return found


def _check(settings: Settings) -> None:
    for name, known in ONE_OF.items():
        value = getattr(settings, name)
        if value is not None and value not in known:
            raise UserError(f"{_flag(name)} {value!r} is not known", hint=suggestion(value, known))
    if settings.full_rows is not None and settings.full != "bracket":
        raise UserError("--full-rows needs --full bracket")
    if settings.full_rows is not None and settings.full_rows < 1:
        raise UserError(f"--full-rows {settings.full_rows} is not a positive integer")
    if settings.pool not in ("all", "2k", "paper") and not is_count(settings.pool):
        raise UserError(f"--pool {settings.pool[:40]!r} is not a pool", hint="expected all, 2k, paper or a number")
    for seed in settings.seeds:
        if not 0 <= seed < 2**63:
            raise UserError(f"--seed {seed} is out of range", hint="expected a number from 0 to 2^63 - 1")
    if settings.json and settings.format not in ("auto", "json"):
        raise UserError(f"--json and --format {settings.format} contradict each other")
    for path in settings.output:
        if settings.format == "auto" and path.suffix not in FORMAT_OF_SUFFIX:
            raise UserError(
                f"-o {path}: no format belongs to this suffix",
                hint=f"use one of {', '.join(FORMAT_OF_SUFFIX)}, or --format",
            )
    _check_samples(settings)
    _check_pictures(settings)
    predictions = settings.predictions
    if predictions is not None and predictions.suffix not in (".csv", ".jsonl", ".safetensors"):
        raise UserError(f"--predictions {predictions}: expected a .csv, .jsonl or .safetensors file")
    _check_posterior(settings)


def _check_samples(settings: Settings) -> None:
    if settings.samples is None:
        return
    if settings.samples < 1:
        raise UserError(f"--samples {settings.samples} is not a positive integer")
    if settings.predictions is None:
        raise UserError("--samples needs a file to write to", hint="for example: --samples 50 --predictions draws.csv")
    references = [call.name for call in parse_methods(settings.method) if not call.selects]
    if settings.posterior is None and references:
        raise UserError(
            f"--samples draws from a sub-network's posterior; {references[0]} has none",
            hint="leave it out of --method",
        )


def _check_pictures(settings: Settings) -> None:
    if settings.plot_kind is not None and settings.plot is None:
        raise UserError("--plot-kind needs --plot FILE")
    if settings.plot is not None and settings.plot.suffix not in PICTURE_SUFFIXES:
        raise UserError(f"--plot {settings.plot}: expected a file that ends in {', '.join(PICTURE_SUFFIXES)}")
    if settings.report is not None and settings.report.suffix not in (".html", ".htm"):
        raise UserError(f"--report {settings.report}: expected a file that ends in .html")
    kind = settings.plot_kind or "curves"
    if kind not in PICTURES:
        raise UserError(f"--plot-kind {kind!r} is not known", hint=suggestion(kind, PICTURES))
    if settings.plot is not None and kind == "scatter" and (settings.full != "exact" or settings.posterior):
        raise UserError("--plot-kind scatter compares with the full posterior", hint="it needs --full exact")
    if (settings.plot is not None or settings.report is not None) and find_spec("matplotlib") is None:
        raise UserError("--plot and --report need matplotlib", hint="install it with: pip install 'sublaplace[plot]'")


def _check_posterior(settings: Settings) -> None:
    usual = Settings()
    for name in FIXED_BY_POSTERIOR if settings.posterior is not None else ():
        if getattr(settings, name) != getattr(usual, name):
            raise UserError(f"{_flag(name)} has no effect with --posterior: leave {_flag(name)} out")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
