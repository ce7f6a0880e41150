"""Method and k as typed → what is to be done. Everything here is known before any file is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec

from ..catalog import FORMATS, METHODS, NAMES_PREFIX, PICTURE_SUFFIXES, PICTURES, SUFFIXES
from ..errors import UserError, suggestion
from ..results.gate import limits_of_command
from .settings import Settings, parse_bytes

DEFAULT_METHOD = "gradient"
DEFAULT_K = 1000
AUTO = "auto"
DEFAULT_RETAIN = 0.9
POOLED = ("greedy", "variance")  # methods that choose among the candidates of --pool


@dataclass(frozen=True)
class MethodCall:
    """A method by the name that the user gave it."""

    name: str
    takes_k: bool
    nested: bool
    entry: str | None  # of a selector; None for references and `names:`
    own_code: bool = False

    @property
    def pattern(self) -> str | None:
        """The glob of `names:PATTERN`."""
        return self.name.removeprefix(NAMES_PREFIX) if self.name.startswith(NAMES_PREFIX) else None

    @property
    def selects(self) -> bool:
        return self.entry is not None or self.pattern is not None


@dataclass(frozen=True)
class Choice:
    """A method with its k; None where the method takes none, k is the default, or `retain` decides on it."""

    call: MethodCall
    k: int | None
    retain: float | None = None  # --k auto: the fraction of the full network's ipv to be reached


def parse_method(name: str) -> MethodCall:
    """One method name, checked."""
    if name.startswith(NAMES_PREFIX):
        if name == NAMES_PREFIX:
            raise UserError("--method names: needs a pattern", hint="for example: --method 'names:layer3.*'")
        return MethodCall(name, takes_k=False, nested=True, entry=None)
    if name in METHODS:
        known = METHODS[name]
        return MethodCall(name, known.takes_k, known.nested, known.entry)
    module, colon, function = name.partition(":")
    if colon and module.replace(".", "").isidentifier() and function.isidentifier():
        return MethodCall(name, takes_k=True, nested=False, entry=name, own_code=True)
    known_names = [*METHODS, "names:PATTERN", "package.module:function"]
    raise UserError(f"unknown method '{name}'", hint=suggestion(name, known_names))


def parse_methods(text: str | None) -> list[MethodCall]:
    """A comma list of methods without repetition."""
    # A comma inside brackets belongs to the glob of names:PATTERN.
    names = [name.strip() for name in re.split(r",(?![^\[]*\])", DEFAULT_METHOD if text is None else text)]
    if any(not name for name in names):
        raise UserError(f"--method {text!r} has an empty name in it", hint=f"available: {', '.join(METHODS)}")
    return [parse_method(name) for name in dict.fromkeys(names)]


def parse_ks(text: str | None) -> list[int]:
    """A comma list of positive integers without repetition; empty where none was given."""
    if text is None or text.strip() == AUTO:
        return []
    ks: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        if not _is_count(word):
            raise UserError(
                f"--k {word[:40]!r} is not a positive integer",
                hint="for example: --k 1000, --k 50,100,200 or --k auto --retain 0.9",
            )
        ks.append(int(word))
    return list(dict.fromkeys(ks))


def choices(settings: Settings) -> list[Choice]:
    """Every (method, k) pair that is asked for, in the order given."""
    calls, ks = parse_methods(settings.method), parse_ks(settings.k)
    if settings.k is not None and not any(call.takes_k for call in calls):
        names = ", ".join(call.name for call in calls)
        raise UserError(f"--k was given, but {names} takes no k", hint="leave --k out, or add a method that takes it")
    retain = _retain(settings, calls)
    wanted: list[int | None] = [*ks] if ks else [None]
    return [
        Choice(call, k, retain if call.takes_k else None)
        for call in calls
        for k in (wanted if call.takes_k else [None])
    ]


def is_nested(call: MethodCall, pool: str) -> bool:
    """Whether the choice for a small k begins that for a larger one; not where the pool grows with k."""
    return call.nested and not (call.name in POOLED and pool in ("2k", "paper"))


def _retain(settings: Settings, calls: list[MethodCall]) -> float | None:
    """The fraction that `--k auto` goes for; None for any other k."""
    if settings.k is None or settings.k.strip() != AUTO:
        if settings.retain is not None:
            raise UserError("--retain goes with --k auto", hint="for example: --k auto --retain 0.9")
        return None
    for call in calls:
        if call.takes_k and not is_nested(call, settings.pool):
            raise UserError(
                f"--k auto needs a method whose choice for a small k begins that for a larger one; {call.name} "
                + (f"with --pool {settings.pool} is none" if call.name in POOLED else "is none"),
                hint="give k as a number" + (", or use --pool all" if call.name in POOLED else ""),
            )
    retain = DEFAULT_RETAIN if settings.retain is None else settings.retain
    if not 0 < retain <= 1:
        raise UserError(f"--retain {retain:g} is out of range", hint="expected a fraction, more than 0 and at most 1")
    return retain


def single_choice(settings: Settings, command: str) -> Choice:
    """The one (method, k) pair that `select` and `fit` work on."""
    found = choices(settings)
    if len(found) != 1:
        raise UserError(
            f"{command} takes one method and one k, got {len(found)} combinations",
            hint="call it once for each, or compare them all with: sublaplace evaluate",
        )
    return found[0]


def actual_k(choice: Choice, n_params: int) -> int | None:
    """k for this network, where it is known beforehand: the default where none was given; over p is an error."""
    if not choice.call.takes_k or choice.retain is not None:
        return None
    k = min(DEFAULT_K, n_params) if choice.k is None else choice.k
    if k > n_params:
        raise UserError(
            f"--k {k} is more than the {n_params} trainable parameters of the model",
            hint=f"choose k between 1 and {n_params}",
        )
    return k


def check_usage(settings: Settings) -> None:
    """Refuse what is wrong or not there yet in the options, before anything is read."""
    _one_of("--score", settings.score, ("weighted", "unweighted"))
    _one_of("--reference", settings.reference, ("train", "test", "reference"))
    _one_of("--dtype", settings.dtype, ("float32", "float64"))
    _one_of("--gram-dtype", settings.gram_dtype, ("float64", "float32"))
    _one_of("--full", settings.full, ("exact", "none", "bracket"))
    if settings.full_rows is not None and settings.full != "bracket":
        raise UserError("--full-rows goes with --full bracket")
    if settings.full_rows is not None and settings.full_rows < 1:
        raise UserError(f"--full-rows {settings.full_rows} is not a positive integer")
    if settings.rescale is not None:
        _one_of("--rescale", settings.rescale, ("none", "scale", "hybrid"))
    _one_of("--split", settings.split, ("train", "test", "reference", "all"))
    _one_of("--format", settings.format, ("auto", *FORMATS))
    if settings.pool not in ("all", "2k", "paper") and not _is_count(settings.pool):
        raise UserError(f"--pool {settings.pool[:40]!r} is not a pool", hint="expected all, 2k, paper or a number")
    for seed in settings.seeds:
        if not 0 <= seed < 2**63:
            raise UserError(f"--seed {seed} is out of range", hint="expected a number from 0 to 2^63 - 1")
    if settings.json and settings.format not in ("auto", "json"):
        raise UserError(f"--json and --format {settings.format} contradict each other")
    for option, text in (("--memory", settings.memory), ("--max-artifact", settings.max_artifact)):
        if text is not None:
            parse_bytes(text, option)
    for path in settings.output:
        if settings.format == "auto" and path.suffix not in SUFFIXES:
            raise UserError(
                f"-o {path}: no format goes with this suffix",
                hint=f"use one of {', '.join(SUFFIXES)}, or --format",
            )
    if settings.samples is not None:
        _check_samples(settings)
    limits_of_command(settings)
    _check_pictures(settings)
    if settings.predictions is not None and settings.predictions.suffix not in (
        ".csv",
        ".jsonl",
        ".safetensors",
    ):
        raise UserError(f"--predictions {settings.predictions}: expected a .csv, .jsonl or .safetensors file")


def _check_samples(settings: Settings) -> None:
    if settings.samples is None or settings.samples < 1:
        raise UserError(f"--samples {settings.samples} is not a positive integer")
    if settings.predictions is None:
        raise UserError("--samples needs a file to go to", hint="for example: --samples 50 --predictions draws.csv")
    references = [call.name for call in parse_methods(settings.method) if not call.selects]
    if settings.posterior is None and references:
        raise UserError(
            f"--samples draws from a sub-network's posterior; {references[0]} has none",
            hint="leave it out of --method",
        )


def _check_pictures(settings: Settings) -> None:
    if settings.plot_kind is not None and settings.plot is None:
        raise UserError("--plot-kind goes with --plot FILE")
    if settings.plot is not None and settings.plot.suffix not in PICTURE_SUFFIXES:
        raise UserError(f"--plot {settings.plot}: expected a file that ends in {', '.join(PICTURE_SUFFIXES)}")
    if settings.report is not None and settings.report.suffix not in (".html", ".htm"):
        raise UserError(f"--report {settings.report}: expected a file that ends in .html")
    kind = settings.plot_kind or "curves"
    _one_of("--plot-kind", kind, tuple(PICTURES))
    if settings.plot is not None and kind == "scatter" and (settings.full != "exact" or settings.posterior):
        raise UserError("--plot-kind scatter compares with the full posterior", hint="it goes with --full exact")
    if (settings.plot is not None or settings.report is not None) and find_spec("matplotlib") is None:
        raise UserError("--plot and --report need matplotlib", hint="install it with: pip install 'sublaplace[plot]'")


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 18 and int(word) > 0


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{option} {value!r} is not known", hint=suggestion(value, known))
