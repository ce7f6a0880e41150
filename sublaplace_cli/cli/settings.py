"""The commands with their options: what is typed, and what `COMMAND --help` shows."""

from dataclasses import dataclass, replace
from typing import Annotated

from ..catalog import FULL, METHODS, NAMES_PREFIX
from ..run.job import ComputeOptions, OutputOptions, PosteriorOptions, ProjectOptions, SelectionOptions, Text


@dataclass(frozen=True)
class Settings(ProjectOptions, ComputeOptions, SelectionOptions, PosteriorOptions, OutputOptions):
    """The options of all commands, as typed: those of a job, and those that are parsed into other values."""

    memory: Annotated[
        str | None, Text("upper bound for working memory, e.g. 8GiB; default: a safe share of what is free", "SIZE")
    ] = None
    max_artifact: Annotated[str, Text("larger artifacts are not stored but recomputed", "SIZE")] = "20GiB"
    json: Annotated[bool, Text("the same as --format json")] = False
    retain: Annotated[float | None, Text("with --k auto: fraction of the full IPV to reach (0.9)", "FRACTION")] = None
    fail_if: Annotated[
        tuple[str, ...],
        Text(
            "exit with 1 if this holds in any row of --method, e.g. 'w2 > 0.1', or in the row that it names, also full "
            "or map, e.g. 'full: ece > 0.1'; may be repeated",
            "'[ROW:] METRIC OP NUMBER'",
        ),
    ] = ()
    max_regression: Annotated[
        tuple[str, ...],
        Text(
            "how much worse than the baseline a metric may be, e.g. w2=0.01, nll=5% or 'full: nll=5%'; may be repeated",
            "[ROW:]METRIC=AMOUNT",
        ),
    ] = ()
    force: Annotated[bool, Text("both --overwrite and --recompute; use these instead", hidden=True)] = False
    quiet: Annotated[bool, Text("no notes, no progress", flags=("-q", "--quiet"))] = False
    verbose: Annotated[bool, Text("more notes", flags=("-v", "--verbose"))] = False
    debug: Annotated[bool, Text("show a traceback on errors")] = False


# The sections of `COMMAND --help`, and the options in each, in their order.
GROUPS = {
    "What": (
        *("method", "k", "retain", "indices", "split", "scores_only", "pool", "score", "reference", "rescale", "folds"),
        *("link", "full", "tolerance", "full_rows", "posterior", "samples", "conformal", "conformal_by", "seeds"),
    ),
    "Model and data": ("spec", "checkpoint", "test", "allow_code", "allow_outside"),
    "Output": (
        *("format", "json", "output", "overwrite", "predictions", "review", "plot", "plot_kind", "report"),
        *("quiet", "verbose", "debug"),
    ),
    "Gates": ("fail_if", "baseline", "max_regression", "significant"),
    "Resources": (
        *(
            "device",
            "memory",
            "dtype",
            "gram_dtype",
            "kernels",
            "run_dir",
            "max_artifact",
            "recompute",
            "dry_run",
            "force",
        ),
    ),
}
_SELECTORS = tuple(name for name, method in METHODS.items() if method.kind == "selector")
_FEATURES = tuple(name for name, method in METHODS.items() if method.kind == "features")

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
        "kernels",
        "format",
        "json",
    ),
    *(
        "output",
        "allow_code",
        "allow_outside",
        "overwrite",
        "recompute",
        "force",
        "dry_run",
        "seeds",
        "quiet",
        "verbose",
        "debug",
    ),
    *("pool", "score", "reference"),
)
_EVALUATE = (
    *(
        "method",
        "k",
        "test",
        "predictions",
        "review",
        "full",
        "tolerance",
        "full_rows",
        "plot",
        "plot_kind",
        "report",
        "fail_if",
        "baseline",
    ),
    *("max_regression", "significant", "posterior", "samples", "retain", "rescale", "folds", "link"),
    *("conformal", "conformal_by"),
)


@dataclass(frozen=True)
class Command:
    """A command of the command line; `names` are the fields of `Settings` that it takes."""

    help: str
    names: tuple[str, ...]
    examples: tuple[str, ...]
    methods: tuple[str, ...] = ()  # those that it does not refuse

    @property
    def fields(self) -> tuple[str, ...]:
        """In the order of the help."""
        grouped = [name for group in GROUPS.values() for name in group if name in self.names]
        return tuple(dict.fromkeys((*grouped, *self.names)))

    def own_text(self, name: str, text: Text) -> Text:
        """The help and the completion of an option; only methods that this command takes are offered."""
        if name != "method":
            return text
        several = len(self.methods) == len(METHODS)
        help = text.help.format(names=", ".join(self.methods)) + ("; a comma list compares several" if several else "")
        return replace(text, help=help, names=(*self.methods, NAMES_PREFIX), is_list=several)

    def epilog(self) -> str:
        """Examples, one per line (\\b stops Click from joining them into a paragraph)."""
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
        _SELECTORS,
    ),
    "fit": Command(
        "Fit the posterior over the chosen parameters.",
        ("method", "k", "indices", "retain", "rescale", "folds", "link", *_COMMON),
        ("sublaplace fit --method gradient --k 1000", "sublaplace fit --indices indices.npy"),
        (*_SELECTORS, *_FEATURES, FULL),
    ),
    "evaluate": Command(
        "Compare methods with the full posterior and the targets. Computes whatever is missing.",
        (*_EVALUATE, *_COMMON),
        (
            "sublaplace evaluate --method gradient --k 1000",
            "sublaplace evaluate --method gradient,greedy,last-k --k 50,100,200 --json",
            "sublaplace evaluate --method greedy --k 500 --predictions predictions.csv",
            "sublaplace evaluate --k 1000 --rescale calibrated",
            "sublaplace evaluate --k 1000 --rescale calibrated --review 20",
            "sublaplace evaluate --method gradient,greedy --k 50,200,1000 --plot curves.png --report report.html",
            "sublaplace evaluate --k 500 --fail-if 'w2 > 0.1' --baseline main.json --max-regression nll=2%",
            "sublaplace evaluate --checkpoint 'runs/*.pt' --k 500 --format markdown",
            "sublaplace evaluate --k 500 --conformal 0.9 --predictions intervals.csv",
            "sublaplace evaluate --method gradient,sketch --k 1000 --full certified --tolerance 0.02",
        ),
        tuple(METHODS),
    ),
}
