"""The flags and help of every option in `Settings`, and which command takes which."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import typer

from ..catalog import FORMATS, METHODS, PICTURES


def _option(*flags: str, help: str, metavar: str | None = None, names: Iterable[str] = ()) -> Any:
    """An option; a shell completes its value from `names`."""
    complete = _complete_from(tuple(names)) if names else None
    return typer.Option(*flags, help=help, metavar=metavar, show_default=True, autocompletion=complete)


def _complete_method(incomplete: str) -> list[str]:
    """Names that go on from what is typed; of a comma list, its last part."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in [*METHODS, "names:"] if name.startswith(last)]


def _complete_from(names: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


OPTIONS: dict[str, Any] = {
    "spec": _option("--spec", help="the spec; default: the nearest sublaplace.yaml, searched upward", metavar="FILE"),
    "checkpoint": _option(
        "--checkpoint",
        help="replaces model.weights.path of the spec; evaluate: may be repeated or a quoted pattern, for a sweep",
        metavar="FILE",
    ),
    "run_dir": _option(
        "--run-dir",
        help="where artifacts live; default: .sublaplace/<fingerprint>/ beside the spec",
        metavar="DIR",
    ),
    "device": _option("--device", help="auto, cpu, cuda or cuda:N", metavar="NAME"),
    "memory": _option(
        "--memory",
        help="upper bound for working memory, e.g. 8GiB; default: a safe share of what is free",
        metavar="SIZE",
    ),
    "max_artifact": _option(
        "--max-artifact",
        help="no larger artifact is stored; what is not stored is recomputed",
        metavar="SIZE",
    ),
    "dtype": _option(
        "--dtype", help="of the network's passes: float32 or float64; sums are float64 always", metavar="NAME"
    ),
    "gram_dtype": _option(
        "--gram-dtype",
        help="of the products in Gram matrices: float64, or float32 where float64 is slow, checked and refused where "
        "it shows in the variances",
        metavar="NAME",
        names=("float64", "float32"),
    ),
    "format": _option(
        "--format",
        help="auto, table, json, jsonl, csv, tsv, markdown, junit or github; auto: table on a terminal, "
        "tab-separated in a pipe",
        metavar="NAME",
        names=FORMATS,
    ),
    "json": _option("--json", help="the same as --format json"),
    "output": _option(
        "-o",
        "--output",
        help="also write the result to FILE; format by suffix; may be repeated",
        metavar="FILE",
    ),
    "allow_code": _option(
        "--allow-code",
        help="permit the spec to import this package (also SUBLAPLACE_ALLOW_CODE)",
        metavar="PACKAGE",
    ),
    "allow_outside": _option("--allow-outside", help="permit paths in the spec that lead out of its folder"),
    "force": _option("--force", help="make everything anew and overwrite output files"),
    "dry_run": _option("--dry-run", help="say what would be computed and written, and write nothing"),
    "seeds": _option(
        "--seed", help="of the random method and of --samples; evaluate: may be repeated, for a sweep (0)", metavar="N"
    ),
    "quiet": _option("-q", "--quiet", help="no notes, no progress"),
    "verbose": _option("-v", "--verbose", help="more notes"),
    "debug": _option("--debug", help="a traceback on errors"),
    "split": _option("--split", help="train, test, reference or all", metavar="NAME"),
    "scores_only": _option("--scores-only", help="compute the scores and store no Jacobian"),
    "method": typer.Option(
        "--method",
        help=f"one of {', '.join(METHODS)}, names:PATTERN or package.module:function; "
        "evaluate: a comma list; default: gradient",
        metavar="NAME",
        autocompletion=_complete_method,
    ),
    "k": _option(
        "--k",
        help="how many parameters; evaluate: a comma list; default: 1000, or all if there are fewer",
        metavar="K",
    ),
    "indices": _option("--indices", help="a selection made before, instead of --method and --k", metavar="FILE"),
    "pool": _option("--pool", help="candidates of greedy: all, 2k, paper or a number", metavar="POOL"),
    "score": _option(
        "--score",
        help="weighted (by the output Hessian) or unweighted (Algorithm 1 to the letter)",
        metavar="KIND",
    ),
    "reference": _option(
        "--reference", help="rows that scores are taken over: train, test or reference", metavar="SPLIT"
    ),
    "retain": _option("--retain", help="with --k auto: fraction of the full IPV to reach (0.9)", metavar="FRACTION"),
    "rescale": _option(
        "--rescale",
        help="make up for what a sub-network leaves out: none, scale or hybrid; default: what the spec says, else none",
        metavar="KIND",
        names=("none", "scale", "hybrid"),
    ),
    "full": _option("--full", help="the full posterior to compare with: exact, none or bracket", metavar="KIND"),
    "full_rows": _option(
        "--full-rows",
        help="with --full bracket: training rows whose full posterior bounds it from above (4000)",
        metavar="N",
    ),
    "posterior": _option(
        "--posterior",
        help="predict the test rows with a posterior-*.safetensors alone: no training rows are read",
        metavar="FILE",
    ),
    "samples": _option("--samples", help="draws of the outputs to put into --predictions", metavar="N"),
    "predictions": _option(
        "--predictions",
        help="write mean and std of every test row (.csv, .jsonl, .safetensors)",
        metavar="FILE",
    ),
    "plot": _option("--plot", help="draw the result (.png, .svg or .pdf; needs the extra [plot])", metavar="FILE"),
    "plot_kind": _option(
        "--plot-kind",
        help="curves (the default), calibration, scatter or map; with --plot",
        metavar="KIND",
        names=PICTURES,
    ),
    "report": _option(
        "--report", help="one HTML file with table, pictures, gate and provenance (extra [plot])", metavar="FILE"
    ),
    "fail_if": _option(
        "--fail-if",
        help="exit with 1 where this holds in any row, e.g. 'w2 > 0.1'; may be repeated",
        metavar="'METRIC OP NUMBER'",
    ),
    "baseline": _option("--baseline", help="the JSON of an earlier run to compare with", metavar="FILE"),
    "max_regression": _option(
        "--max-regression",
        help="how much worse than the baseline a metric may be, e.g. w2=0.01 or nll=5%; may be repeated",
        metavar="METRIC=AMOUNT",
    ),
    "significant": _option(
        "--significant", help="what breaks a limit by no more than its standard error does not fail"
    ),
}

_COMMON = (
    *(
        "spec",
        "checkpoint",
        "run_dir",
        "device",
        "memory",
        "max_artifact",
        "dtype",
        "gram_dtype",
        "format",
        "json",
        "output",
    ),
    *("allow_code", "allow_outside", "force", "dry_run", "seeds", "quiet", "verbose", "debug"),
    *("pool", "score", "reference"),
)


@dataclass(frozen=True)
class Command:
    """What `COMMAND --help` shows, and the options it takes."""

    help: str
    fields: tuple[str, ...]
    examples: tuple[str, ...]

    def epilog(self) -> str:
        """Examples, a line each (the mark keeps them from being folded into a paragraph)."""
        return "\n".join(["\b", "Examples:", *(f"  {line}" for line in self.examples)])


COMMANDS = {
    "jacobians": Command(
        "Compute outputs, Jacobians and scores, and keep them.",
        ("split", "scores_only", *_COMMON),
        ("sublaplace jacobians", "sublaplace jacobians --split test", "sublaplace jacobians --scores-only"),
    ),
    "select": Command(
        "Choose k parameters by a method.",
        ("method", "k", "retain", *_COMMON),
        ("sublaplace select --method gradient --k 1000", "sublaplace select --method greedy --k 200 --json"),
    ),
    "fit": Command(
        "Fit the posterior over the chosen parameters.",
        ("method", "k", "indices", "retain", "rescale", *_COMMON),
        ("sublaplace fit --method gradient --k 1000", "sublaplace fit --indices indices.npy"),
    ),
    "evaluate": Command(
        "Compare methods with the full posterior, the targets and an oracle; makes whatever is missing.",
        (
            *("method", "k", "predictions", "full", "full_rows", "plot", "plot_kind", "report", "fail_if"),
            *(
                "baseline",
                "max_regression",
                "significant",
                "posterior",
                "samples",
                "retain",
                "rescale",
                *_COMMON,
            ),
        ),
        (
            "sublaplace evaluate --method gradient --k 1000",
            "sublaplace evaluate --method gradient,greedy,last-k --k 50,100,200 --json",
            "sublaplace evaluate --method greedy --k 500 --predictions predictions.csv",
            "sublaplace evaluate --method gradient,greedy --k 50,200,1000 --plot curves.png --report report.html",
            "sublaplace evaluate --k 500 --fail-if 'w2 > 0.1' --baseline main.json --max-regression nll=2%",
            "sublaplace evaluate --checkpoint 'runs/*.pt' --k 500 --format markdown",
        ),
    ),
}
