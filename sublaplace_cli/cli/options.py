"""The commands: what `COMMAND --help` shows, and the options of each."""

from dataclasses import dataclass

_COMMON = (
    *("spec", "checkpoint", "run_dir", "device", "memory", "max_artifact", "dtype", "gram_dtype", "format", "json"),
    *("output", "allow_code", "allow_outside", "force", "dry_run", "seeds", "quiet", "verbose", "debug"),
    *("pool", "score", "reference"),
)
_EVALUATE = (
    *("method", "k", "predictions", "full", "full_rows", "plot", "plot_kind", "report", "fail_if", "baseline"),
    *("max_regression", "significant", "posterior", "samples", "retain", "rescale"),
)


@dataclass(frozen=True)
class Command:
    """A command of the command line; `fields` are those of `Settings` that it takes."""

    help: str
    fields: tuple[str, ...]
    examples: tuple[str, ...]

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
    ),
    "fit": Command(
        "Fit the posterior over the chosen parameters.",
        ("method", "k", "indices", "retain", "rescale", *_COMMON),
        ("sublaplace fit --method gradient --k 1000", "sublaplace fit --indices indices.npy"),
    ),
    "evaluate": Command(
        "Compare methods with the full posterior, the targets and an oracle; computes whatever is missing.",
        (*_EVALUATE, *_COMMON),
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
