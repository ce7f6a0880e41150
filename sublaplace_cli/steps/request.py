"""Method and k as typed → what is to be done. Everything here is known before any file is read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..catalog import FORMATS, FORMATS_TO_COME, METHODS, METHODS_TO_COME, NAMES_PREFIX, SUFFIXES
from ..errors import NotAvailable, UserError, suggestion
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
    if name in METHODS_TO_COME:
        raise NotAvailable(f"--method {name}")
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
    _refuse_unavailable(settings)
    _one_of("--score", settings.score, ("weighted", "unweighted"))
    _one_of("--reference", settings.reference, ("train", "test", "reference"))
    _one_of("--dtype", settings.dtype, ("float32", "float64"))
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
    if not 0 <= settings.seed < 2**63:
        raise UserError(f"--seed {settings.seed} is out of range", hint="expected a number from 0 to 2^63 - 1")
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


def _refuse_unavailable(settings: Settings) -> None:
    asked = {
        "several --checkpoint files at once": len(settings.checkpoint) > 1
        or any("*" in c for c in settings.checkpoint),
        "--plot": settings.plot is not None,
        "--plot-kind": settings.plot_kind is not None,
        "--report": settings.report is not None,
        "--fail-if": bool(settings.fail_if),
        "--baseline": settings.baseline is not None,
        "--max-regression": bool(settings.max_regression),
        "--significant": settings.significant,
        f"--format {settings.format}": settings.format in FORMATS_TO_COME,
    }
    for what, wanted in asked.items():
        if wanted:
            raise NotAvailable(what)


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 18 and int(word) > 0


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{option} {value!r} is not known", hint=suggestion(value, known))
