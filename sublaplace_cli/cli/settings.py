"""Every option, declared once: its type, its default and its help. The command line is built from this."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..catalog import FORMATS, METHODS, NAMES_PREFIX, PICTURES


@dataclass(frozen=True)
class Text:
    """Help of one option; a shell completes its value, or the last part of a comma list, from `names`."""

    help: str
    metavar: str | None = None
    names: tuple[str, ...] = ()
    is_list: bool = False
    flags: tuple[str, ...] = ()  # if they are not --NAME

    def complete(self, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if self.is_list else ("", "", incomplete)
        return [f"{before}{comma}{name}" for name in self.names if name.startswith(last)]


_METHOD_HELP = f"one of {', '.join(METHODS)}, names:PATTERN or package.module:function; evaluate: a comma list"
_FORMAT_HELP = f"auto, {', '.join(FORMATS)}; auto: table on a terminal, tab-separated in a pipe"
File = Path | None


@dataclass(frozen=True)
class Settings:
    """The options of all commands, as typed."""

    spec: Annotated[File, Text("the spec; default: the nearest sublaplace.yaml, searched upward", "FILE")] = None
    checkpoint: Annotated[
        tuple[str, ...],
        Text(
            "replaces model.weights.path of the spec; evaluate: may be repeated or a quoted pattern, for a sweep",
            "FILE",
        ),
    ] = ()
    run_dir: Annotated[
        File, Text("folder for artifacts; default: .sublaplace/<fingerprint>/ next to the spec", "DIR")
    ] = None
    device: Annotated[str, Text("auto, cpu, cuda or cuda:N", "NAME")] = "auto"
    memory: Annotated[
        str | None, Text("upper bound for working memory, e.g. 8GiB; default: a safe share of what is free", "SIZE")
    ] = None
    max_artifact: Annotated[str, Text("larger artifacts are not stored but recomputed", "SIZE")] = "20GiB"
    dtype: Annotated[
        str,
        Text("of the network's passes: float32 or float64; sums are always float64", "NAME", ("float32", "float64")),
    ] = "float32"
    gram_dtype: Annotated[
        str,
        Text(
            "of the products in Gram matrices: float64, or float32 where float64 is slow; refused if too inaccurate",
            "NAME",
            ("float64", "float32"),
        ),
    ] = "float64"
    format: Annotated[str, Text(_FORMAT_HELP, "NAME", tuple(FORMATS))] = "auto"
    json: Annotated[bool, Text("the same as --format json")] = False
    output: Annotated[
        tuple[Path, ...],
        Text("also write the result to FILE; format by suffix; may be repeated", "FILE", flags=("-o", "--output")),
    ] = ()
    allow_code: Annotated[
        tuple[str, ...], Text("allow the spec to import this package (also SUBLAPLACE_ALLOW_CODE)", "PACKAGE")
    ] = ()
    allow_outside: Annotated[bool, Text("allow paths in the spec that lead out of its folder")] = False
    force: Annotated[bool, Text("recompute everything and overwrite output files")] = False
    dry_run: Annotated[bool, Text("show what would be computed and written, and write nothing")] = False
    seeds: Annotated[
        tuple[int, ...],
        Text(
            "of the random method and of --samples; evaluate: may be repeated, for a sweep (0)", "N", flags=("--seed",)
        ),
    ] = ()
    quiet: Annotated[bool, Text("no notes, no progress", flags=("-q", "--quiet"))] = False
    verbose: Annotated[bool, Text("more notes", flags=("-v", "--verbose"))] = False
    debug: Annotated[bool, Text("show a traceback on errors")] = False
    split: Annotated[str, Text("train, test, reference or all", "NAME")] = "all"
    scores_only: Annotated[bool, Text("compute the scores and store no Jacobian")] = False
    method: Annotated[
        str | None, Text(f"{_METHOD_HELP}; default: gradient", "NAME", (*METHODS, NAMES_PREFIX), is_list=True)
    ] = None
    k: Annotated[
        str | None, Text("how many parameters; evaluate: a comma list; default: 1000, or all if there are fewer", "K")
    ] = None
    indices: Annotated[File, Text("a stored selection, instead of --method and --k", "FILE")] = None
    pool: Annotated[str, Text("candidates of greedy: all, 2k, paper or a number", "POOL")] = "all"
    score: Annotated[str, Text("weighted (by the output Hessian) or unweighted (exactly Algorithm 1)", "KIND")] = (
        "weighted"
    )
    reference: Annotated[str, Text("rows that the scores are computed over: train, test or reference", "SPLIT")] = (
        "reference"
    )
    retain: Annotated[float | None, Text("with --k auto: fraction of the full IPV to reach (0.9)", "FRACTION")] = None
    rescale: Annotated[
        str | None,
        Text(
            "correct for what a sub-network leaves out: none, scale or hybrid; default: as the spec says, else none",
            "KIND",
            ("none", "scale", "hybrid"),
        ),
    ] = None
    full: Annotated[str, Text("the full posterior to compare with: exact, none or bracket", "KIND")] = "exact"
    full_rows: Annotated[
        int | None, Text("with --full bracket: training rows whose full posterior is the upper bound (4000)", "N")
    ] = None
    posterior: Annotated[
        File, Text("predict the test rows with a posterior-*.safetensors alone; no training rows are read", "FILE")
    ] = None
    samples: Annotated[int | None, Text("number of draws of the outputs to add to --predictions", "N")] = None
    predictions: Annotated[File, Text("write mean and std of each test row (.csv, .jsonl, .safetensors)", "FILE")] = (
        None
    )
    plot: Annotated[File, Text("draw the result (.png, .svg or .pdf; needs the extra [plot])", "FILE")] = None
    plot_kind: Annotated[
        str | None, Text("curves (the default), calibration, scatter or map; with --plot", "KIND", tuple(PICTURES))
    ] = None
    report: Annotated[File, Text("one HTML file with table, pictures, gate and provenance (extra [plot])", "FILE")] = (
        None
    )
    fail_if: Annotated[
        tuple[str, ...],
        Text("exit with 1 if this holds in any row, e.g. 'w2 > 0.1'; may be repeated", "'METRIC OP NUMBER'"),
    ] = ()
    baseline: Annotated[File, Text("the JSON of an earlier run to compare with", "FILE")] = None
    max_regression: Annotated[
        tuple[str, ...],
        Text(
            "how much worse than the baseline a metric may be, e.g. w2=0.01 or nll=5%; may be repeated", "METRIC=AMOUNT"
        ),
    ] = ()
    significant: Annotated[bool, Text("a limit that is broken by no more than its standard error does not fail")] = (
        False
    )
