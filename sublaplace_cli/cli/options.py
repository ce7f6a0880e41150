"""Flags and help of every option in `Settings`, and the options of each command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..catalog import FORMATS, METHODS, NAMES_PREFIX, PICTURES


@dataclass(frozen=True)
class OptionText:
    """Flags and help of one option; a shell completes its value from `names`."""

    flags: tuple[str, ...]
    help: str
    metavar: str | None = None
    names: Iterable[str] = ()
    is_list: bool = False  # a comma list of names

    def complete(self, incomplete: str) -> list[str]:
        """Names that continue what is typed; of a comma list, its last part."""
        before, comma, last = incomplete.rpartition(",") if self.is_list else ("", "", incomplete)
        return [f"{before}{comma}{name}" for name in self.names if name.startswith(last)]


OPTIONS = {
    "spec": OptionText(
        ("--spec",), help="the spec; default: the nearest sublaplace.yaml, searched upward", metavar="FILE"
    ),
    "checkpoint": OptionText(
        ("--checkpoint",),
        help="replaces model.weights.path of the spec; evaluate: may be repeated or a quoted pattern, for a sweep",
        metavar="FILE",
    ),
    "run_dir": OptionText(
        ("--run-dir",),
        help="folder for artifacts; default: .sublaplace/<fingerprint>/ next to the spec",
        metavar="DIR",
    ),
    "device": OptionText(("--device",), help="auto, cpu, cuda or cuda:N", metavar="NAME"),
    "memory": OptionText(
        ("--memory",),
        help="upper bound for working memory, e.g. 8GiB; default: a safe share of what is free",
        metavar="SIZE",
    ),
    "max_artifact": OptionText(
        ("--max-artifact",),
        help="no larger artifact is stored; what is not stored is recomputed",
        metavar="SIZE",
    ),
    "dtype": OptionText(
        ("--dtype",), help="of the network's passes: float32 or float64; sums are always float64", metavar="NAME"
    ),
    "gram_dtype": OptionText(
        ("--gram-dtype",),
        help="of the products in Gram matrices: float64, or float32 where float64 is slow; refused where it "
        "shows in the variances",
        metavar="NAME",
        names=("float64", "float32"),
    ),
    "format": OptionText(
        ("--format",),
        help="auto, table, json, jsonl, csv, tsv, markdown, junit or github; auto: table on a terminal, "
        "tab-separated in a pipe",
        metavar="NAME",
        names=FORMATS,
    ),
    "json": OptionText(("--json",), help="the same as --format json"),
    "output": OptionText(
        (
            "-o",
            "--output",
        ),
        help="also write the result to FILE; format by suffix; may be repeated",
        metavar="FILE",
    ),
    "allow_code": OptionText(
        ("--allow-code",),
        help="allow the spec to import this package (also SUBLAPLACE_ALLOW_CODE)",
        metavar="PACKAGE",
    ),
    "allow_outside": OptionText(("--allow-outside",), help="allow paths in the spec that lead out of its folder"),
    "force": OptionText(("--force",), help="recompute everything and overwrite output files"),
    "dry_run": OptionText(("--dry-run",), help="show what would be computed and written, and write nothing"),
    "seeds": OptionText(
        ("--seed",),
        help="of the random method and of --samples; evaluate: may be repeated, for a sweep (0)",
        metavar="N",
    ),
    "quiet": OptionText(
        (
            "-q",
            "--quiet",
        ),
        help="no notes, no progress",
    ),
    "verbose": OptionText(
        (
            "-v",
            "--verbose",
        ),
        help="more notes",
    ),
    "debug": OptionText(("--debug",), help="show a traceback on errors"),
    "split": OptionText(("--split",), help="train, test, reference or all", metavar="NAME"),
    "scores_only": OptionText(("--scores-only",), help="compute the scores and store no Jacobian"),
    "method": OptionText(
        ("--method",),
        help=f"one of {', '.join(METHODS)}, names:PATTERN or package.module:function; "
        "evaluate: a comma list; default: gradient",
        metavar="NAME",
        names=(*METHODS, NAMES_PREFIX),
        is_list=True,
    ),
    "k": OptionText(
        ("--k",),
        help="how many parameters; evaluate: a comma list; default: 1000, or all if there are fewer",
        metavar="K",
    ),
    "indices": OptionText(("--indices",), help="a stored selection, instead of --method and --k", metavar="FILE"),
    "pool": OptionText(("--pool",), help="candidates of greedy: all, 2k, paper or a number", metavar="POOL"),
    "score": OptionText(
        ("--score",),
        help="weighted (by the output Hessian) or unweighted (Algorithm 1 to the letter)",
        metavar="KIND",
    ),
    "reference": OptionText(
        ("--reference",), help="rows that the scores are computed over: train, test or reference", metavar="SPLIT"
    ),
    "retain": OptionText(
        ("--retain",), help="with --k auto: fraction of the full IPV to reach (0.9)", metavar="FRACTION"
    ),
    "rescale": OptionText(
        ("--rescale",),
        help="correct for what a sub-network leaves out: none, scale or hybrid; default: as the spec says, else none",
        metavar="KIND",
        names=("none", "scale", "hybrid"),
    ),
    "full": OptionText(("--full",), help="the full posterior to compare with: exact, none or bracket", metavar="KIND"),
    "full_rows": OptionText(
        ("--full-rows",),
        help="with --full bracket: training rows whose full posterior bounds it from above (4000)",
        metavar="N",
    ),
    "posterior": OptionText(
        ("--posterior",),
        help="predict the test rows with a posterior-*.safetensors alone; no training rows are read",
        metavar="FILE",
    ),
    "samples": OptionText(("--samples",), help="number of draws of the outputs to add to --predictions", metavar="N"),
    "predictions": OptionText(
        ("--predictions",),
        help="write mean and std of each test row (.csv, .jsonl, .safetensors)",
        metavar="FILE",
    ),
    "plot": OptionText(
        ("--plot",), help="draw the result (.png, .svg or .pdf; needs the extra [plot])", metavar="FILE"
    ),
    "plot_kind": OptionText(
        ("--plot-kind",),
        help="curves (the default), calibration, scatter or map; with --plot",
        metavar="KIND",
        names=PICTURES,
    ),
    "report": OptionText(
        ("--report",), help="one HTML file with table, pictures, gate and provenance (extra [plot])", metavar="FILE"
    ),
    "fail_if": OptionText(
        ("--fail-if",),
        help="exit with 1 where this holds in any row, e.g. 'w2 > 0.1'; may be repeated",
        metavar="'METRIC OP NUMBER'",
    ),
    "baseline": OptionText(("--baseline",), help="the JSON of an earlier run to compare with", metavar="FILE"),
    "max_regression": OptionText(
        ("--max-regression",),
        help="how much worse than the baseline a metric may be, e.g. w2=0.01 or nll=5%; may be repeated",
        metavar="METRIC=AMOUNT",
    ),
    "significant": OptionText(
        ("--significant",), help="a limit that is broken by no more than its standard error does not fail"
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
    """What `COMMAND --help` shows, and the options that it takes."""

    help: str
    fields: tuple[str, ...]
    examples: tuple[str, ...]

    def epilog(self) -> str:
        """Examples, one per line (the mark keeps them from being joined into a paragraph)."""
        return "\n".join(["\b", "Examples:", *(f"  {line}" for line in self.examples)])


COMMANDS = {
    "jacobians": Command(
        "Compute and store outputs, Jacobians and scores.",
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
        "Compare methods with the full posterior, the targets and an oracle; computes whatever is missing.",
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
