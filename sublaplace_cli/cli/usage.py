"""Options as typed → a job; wrong options are refused before anything is read."""

import os
import re
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from .. import catalog
from ..catalog import FORMAT_OF_SUFFIX, METHODS, NAMES_PREFIX, PICTURE_SUFFIXES, PICTURES
from ..errors import UserError, how_to_install, suggestion
from ..results.limits import SHOWN_REFERENCES, Limit, method_of_row, parse_limits
from ..run.job import (
    COMPARED,
    FULL_KINDS,
    GRAM_DTYPES,
    KERNELS,
    ComputeOptions,
    Job,
    OutputOptions,
    PosteriorOptions,
    ProjectOptions,
    SelectionOptions,
)
from ..run.method_calls import Choice, MethodCall
from ..sizes import parse_bytes
from .settings import Settings
from .test_files import named_test_files

ONE_OF = {
    "score": ("weighted", "unweighted"),
    "reference": ("train", "test", "reference"),
    "dtype": ("float32", "float64"),
    "gram_dtype": GRAM_DTYPES,
    "kernels": KERNELS,
    "full": FULL_KINDS,
    "rescale": catalog.RESCALES,
    "link": catalog.LINKS,
    "conformal_by": catalog.GROUPINGS,
    "split": ("train", "test", "reference", "all"),
    "format": ("auto", *catalog.FORMATS),
}
# Options that have no effect on predictions with a stored posterior.
FIXED_BY_POSTERIOR = (
    "method",
    "k",
    "rescale",
    "folds",
    "link",
    "retain",
    "pool",
    "score",
    "reference",
    "full",
    "full_rows",
    "tolerance",
)
AUTO = "auto"
LEAST_LEVEL = 0.001
DEFAULT_RETAIN = 0.9
Options = TypeVar("Options")


def parse_job(command: str, settings: Settings) -> Job:
    """All options, parsed once."""
    _check(settings)
    limits, choices = tuple(parse_limits(settings.fail_if, settings.max_regression)), _choices(command, settings)
    _check_rows(limits, choices, settings)
    allowed = os.environ.get("SUBLAPLACE_ALLOW_CODE", "").replace(",", " ").split()
    return Job(
        command=cast(Any, command),
        memory=None if settings.memory is None else parse_bytes(settings.memory, "--memory"),
        max_artifact=parse_bytes(settings.max_artifact, "--max-artifact"),
        limits=limits,
        choices=choices,
        project=_picked(
            ProjectOptions, settings, test=named_test_files(settings.test), allow_code=(*settings.allow_code, *allowed)
        ),
        compute=_picked(ComputeOptions, settings, recompute=settings.recompute or settings.force),
        selection=_picked(SelectionOptions, settings),
        posterior=_picked(PosteriorOptions, settings),
        outputs=_picked(
            OutputOptions,
            settings,
            format="json" if settings.json else settings.format,
            overwrite=settings.overwrite or settings.force,
        ),
    )


def _picked(kind: type[Options], settings: Settings, **parsed: Any) -> Options:
    """A part of the job: the settings of the same names, or what was parsed from them."""
    names = [field.name for field in fields(cast(Any, kind))]
    return kind(**{name: getattr(settings, name) for name in names} | parsed)


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


def _check_rows(limits: Sequence[Limit], choices: Sequence[Choice], settings: Settings) -> None:
    """A limit that names a method must be about one of those that were asked for, or a reference that is shown."""
    if settings.posterior is not None:
        return
    asked = [choice.call.name for choice in choices]
    shown = [*asked, *SHOWN_REFERENCES, *([catalog.FULL] if settings.full in COMPARED else [])]
    for limit in limits:
        if limit.row is not None and method_of_row(limit.row) not in shown:
            hint = "it is there with --full exact or certified" if limit.row == catalog.FULL else "add it to --method"
            raise UserError(f"a limit names the row '{limit.row}', but --method is {','.join(asked)}", hint=hint)


def _check(settings: Settings) -> None:
    for name, known in ONE_OF.items():
        value = getattr(settings, name)
        if value is not None and value not in known:
            raise UserError(f"{_flag(name)} {value!r} is not known", hint=suggestion(value, known))
    if not 0 < settings.tolerance < 1:
        raise UserError(
            f"--tolerance {settings.tolerance:g} is out of range", hint="expected a share of σ such as 0.01, below 1"
        )
    if settings.tolerance != Settings.tolerance and settings.full not in ("auto", "certified"):
        raise UserError(f"--tolerance is for certified intervals, not for --full {settings.full}")
    if settings.full_rows is not None and settings.full != "bracket":
        raise UserError("--full-rows needs --full bracket")
    if settings.full_rows is not None and settings.full_rows < 1:
        raise UserError(f"--full-rows {settings.full_rows} is not a positive integer")
    if settings.review is not None and settings.review < 1:
        raise UserError(f"--review {settings.review} is not a positive integer")
    if settings.folds < 2:
        raise UserError(f"--folds {settings.folds} is too few", hint="expected 2 or more: each part needs others")
    if settings.pool not in ("all", "2k", "paper") and not is_count(settings.pool):
        raise UserError(f"--pool {settings.pool[:40]!r} is not a pool", hint="expected all, 2k, paper or a number")
    for seed in settings.seeds:
        if not 0 <= seed < 2**63:
            raise UserError(f"--seed {seed} is out of range", hint="expected a number from 0 to 2^63 - 1")
    if settings.json and settings.format not in ("auto", "json"):
        raise UserError(f"--json and --format {settings.format} contradict each other")
    for path in settings.output:
        if path.suffix not in FORMAT_OF_SUFFIX:
            raise UserError(
                f"-o {path}: no format belongs to this suffix",
                hint=f"use one of {', '.join(FORMAT_OF_SUFFIX)} (--format is that of stdout)",
            )
    _check_conformal(settings)
    _check_samples(settings)
    _check_pictures(settings)
    predictions = settings.predictions
    if predictions is not None and predictions.suffix not in (".csv", ".jsonl", ".safetensors"):
        raise UserError(f"--predictions {predictions}: expected a .csv, .jsonl or .safetensors file")
    for name in FIXED_BY_POSTERIOR if settings.posterior is not None else ():
        if getattr(settings, name) != getattr(Settings, name):  # its default
            raise UserError(f"{_flag(name)} has no effect with --posterior: leave {_flag(name)} out")


def _check_conformal(settings: Settings) -> None:
    level = settings.conformal
    if level is None and settings.conformal_by is not None:
        raise UserError(
            "--conformal-by needs --conformal",
            hint=f"for example: --conformal 0.9 --conformal-by {settings.conformal_by}",
        )
    if level is not None and not LEAST_LEVEL <= level < 1:
        raise UserError(
            f"--conformal {level:g} is out of range",
            hint=f"expected a share of the targets such as 0.95, at least {LEAST_LEVEL:g} and less than 1",
        )


def _check_samples(settings: Settings) -> None:
    if settings.samples is None:
        return
    if settings.samples < 1:
        raise UserError(f"--samples {settings.samples} is not a positive integer")
    if settings.predictions is None:
        raise UserError("--samples needs a file to write to", hint="for example: --samples 50 --predictions draws.csv")
    references = [call.name for call in parse_methods(settings.method) if not call.is_compact]
    if settings.posterior is None and references:
        raise UserError(
            f"--samples draws from a posterior over k parameters or features; {references[0]} has none",
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
    if settings.plot is not None and kind == "scatter" and (settings.full not in COMPARED or settings.posterior):
        hint = "leave it out, or use --full exact or --full certified"
        raise UserError("--plot-kind scatter compares with the full posterior", hint=hint)
    if (settings.plot is not None or settings.report is not None) and find_spec("matplotlib") is None:
        raise UserError("--plot and --report need matplotlib", hint=how_to_install("plot"))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def parse_choices(settings: Settings) -> tuple[Choice, ...]:
    """Every requested (method, k) pair, in the order typed."""
    calls, ks = parse_methods(settings.method), _parse_ks(settings.k)
    if settings.k is not None and not any(call.method.takes_k for call in calls):
        names = ", ".join(call.name for call in calls)
        raise UserError(f"--k was given, but {names} takes no k", hint="leave --k out, or add a method that takes it")
    retain = _parse_retain(settings, calls)
    wanted: list[int | None] = [*ks] if ks else [None]
    return tuple(
        Choice(call, k, retain if call.method.takes_k else None)
        for call in calls
        for k in (wanted if call.method.takes_k else [None])
    )


def parse_methods(text: str | None) -> list[MethodCall]:
    """A comma list of methods without repetition."""
    # A comma inside brackets belongs to the glob of names:PATTERN.
    names = [name.strip() for name in re.split(r",(?![^\[]*\])", catalog.DEFAULT_METHOD if text is None else text)]
    if any(not name for name in names):
        raise UserError(f"--method {text!r} has an empty name in it", hint=f"available: {', '.join(METHODS)}")
    return [_parse_method(name) for name in dict.fromkeys(names)]


def _parse_method(name: str) -> MethodCall:
    if name.startswith(NAMES_PREFIX):
        if name == NAMES_PREFIX:
            raise UserError("--method names: needs a pattern", hint="for example: --method 'names:layer3.*'")
        return MethodCall(name, catalog.BY_NAME, pattern=name.removeprefix(NAMES_PREFIX))
    if name in METHODS:
        return MethodCall(name, METHODS[name])
    module, colon, function = name.partition(":")
    if colon and module.replace(".", "").isidentifier() and function.isidentifier():
        return MethodCall(name, catalog.Method(name, "a user's own selector", nested=False), own_code=True)
    known_names = [*METHODS, "names:PATTERN", "package.module:function"]
    raise UserError(f"unknown method '{name}'", hint=suggestion(name, known_names))


def _parse_ks(text: str | None) -> list[int]:
    """A comma list of positive integers without repetition; empty if none was typed."""
    if text is None or text.strip() == AUTO:
        return []
    ks: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        if not is_count(word):
            raise UserError(
                f"--k {word[:40]!r} is not a positive integer",
                hint="for example: --k 1000, --k 50,100,200 or --k auto --retain 0.9",
            )
        ks.append(int(word))
    return list(dict.fromkeys(ks))


def is_count(word: str) -> bool:
    """Whether a word is a positive integer of a sensible length."""
    return word.isascii() and word.isdigit() and len(word) <= 18 and int(word) > 0


def _parse_retain(settings: Settings, calls: list[MethodCall]) -> float | None:
    """The fraction that `--k auto` must reach; None for any other k."""
    if settings.k is None or settings.k.strip() != AUTO:
        if settings.retain is not None:
            raise UserError("--retain needs --k auto", hint="for example: --k auto --retain 0.9")
        return None
    for call in calls:
        if call.method.takes_k and not call.makes_features and not call.is_nested(settings.pool):
            pooled = call.method.pooled
            raise UserError(
                f"--k auto needs a method whose choice for a small k is a prefix of that for a larger one; {call.name} "
                + (f"with --pool {settings.pool} is not" if pooled else "is not"),
                hint="give k as a number" + (", or use --pool all" if pooled else ""),
            )
    retain = DEFAULT_RETAIN if settings.retain is None else settings.retain
    if not 0 < retain <= 1:
        raise UserError(f"--retain {retain:g} is out of range", hint="expected a fraction, more than 0 and at most 1")
    return retain
