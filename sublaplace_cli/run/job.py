"""Every option, declared once, and the job that a command's options are parsed into: nothing is parsed again later."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ..catalog import FORMATS, GROUPINGS, LINKS, METHODS, NAMES_PREFIX, PICTURES, RESCALES
from .method_calls import Choice

if TYPE_CHECKING:
    from ..results.limits import Limit

File = Path | None
FULL_KINDS = ("auto", "exact", "certified", "bracket", "none")
KERNELS = ("auto", "torch", "triton")
GRAM_DTYPES = ("float64", "float32", "split")
COMPARED = FULL_KINDS[:3]  # those that give one number to compare with
_FORMAT_HELP = f"of stdout: auto, {', '.join(FORMATS)}; auto: table on a terminal, tab-separated in a pipe"


@dataclass(frozen=True)
class Text:
    """Help of one option; a shell completes its value, or the last part of a comma list, from `names`."""

    help: str
    metavar: str | None = None
    names: tuple[str, ...] = ()
    is_list: bool = False
    flags: tuple[str, ...] = ()  # if they are not --NAME
    hidden: bool = False  # deprecated: it works, but no help shows it

    def complete(self, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if self.is_list else ("", "", incomplete)
        return [f"{before}{comma}{name}" for name in self.names if name.startswith(last)]


@dataclass(frozen=True)
class ProjectOptions:
    """Which spec, checkpoints and run folder, and what the spec may do."""

    spec: Annotated[File, Text("the spec; default: the nearest sublaplace.yaml, searched upward", "FILE")] = None
    checkpoint: Annotated[
        tuple[str, ...],
        Text(
            "replaces model.weights.path of the spec; evaluate: may be repeated or a quoted pattern, for a sweep",
            "FILE",
        ),
    ] = ()
    test: Annotated[
        tuple[str, ...],
        Text(
            "test rows of this file instead of the spec's; may be repeated: each set has its rows in the result, and "
            "its differences to the first one",
            "[NAME=]FILE",  # parsed: always with a name, and an absolute path
        ),
    ] = ()
    run_dir: Annotated[
        File, Text("folder for artifacts; default: .sublaplace/<fingerprint>/ next to the spec", "DIR")
    ] = None
    allow_code: Annotated[
        tuple[str, ...], Text("allow the spec to import this package (also SUBLAPLACE_ALLOW_CODE)", "PACKAGE")
    ] = ()
    allow_outside: Annotated[bool, Text("allow paths in the spec that lead out of its folder")] = False

    @property
    def test_files(self) -> dict[str, Path]:
        """By the name of the set."""
        return {name: Path(file) for name, _, file in (word.partition("=") for word in self.test)}


@dataclass(frozen=True)
class ComputeOptions:
    """Device and precision, and whether anything is computed or reused."""

    device: Annotated[str, Text("auto, cpu, cuda or cuda:N", "NAME")] = "auto"
    dtype: Annotated[
        str,
        Text("of the network's passes: float32 or float64; sums are always float64", "NAME", ("float32", "float64")),
    ] = "float32"
    gram_dtype: Annotated[
        str,
        Text(
            "of the products in Gram matrices: float64, or where that is slow split (8-bit digits, nearly as accurate) "
            "or float32; refused if too inaccurate",
            "NAME",
            GRAM_DTYPES,
        ),
    ] = "float64"
    kernels: Annotated[
        str,
        Text(
            "code of the products on a GPU: torch, or triton if its check passes there; auto is torch for now",
            "NAME",
            KERNELS,
        ),
    ] = "auto"
    tolerance: Annotated[
        float, Text("half-width of the certified intervals, as a share of σ: 0.01 is ± 1 %", "SHARE")
    ] = 0.01
    recompute: Annotated[bool, Text("recompute everything, and replace what a run folder holds")] = False
    dry_run: Annotated[bool, Text("show what would be computed and written, and write nothing")] = False


@dataclass(frozen=True)
class SelectionOptions:
    """Options that affect the choice of parameters; `Job.choices` are parsed from method and k."""

    method: Annotated[
        str | None,
        Text(
            "one of {names}, names:PATTERN or package.module:function; default: gradient",  # those of the command
            "NAME",
            (*METHODS, NAMES_PREFIX),
            is_list=True,
            flags=("-m", "--method"),
        ),
    ] = None
    k: Annotated[
        str | None,
        Text(
            "how many parameters; evaluate: a comma list; default: 1000, or all if there are fewer",
            "K",
            flags=("-k", "--k"),
        ),
    ] = None
    pool: Annotated[str, Text("candidates of greedy: all, 2k, paper or a number", "POOL")] = "all"
    score: Annotated[str, Text("weighted (by the output Hessian) or unweighted (exactly Algorithm 1)", "KIND")] = (
        "weighted"
    )
    reference: Annotated[str, Text("rows that the scores are computed over: train, test or reference", "SPLIT")] = (
        "reference"
    )
    split: Annotated[str, Text("train, test, reference or all", "NAME")] = "all"
    scores_only: Annotated[bool, Text("compute the scores and store no Jacobian")] = False
    seeds: Annotated[
        tuple[int, ...],
        Text(
            "of the random method and of --samples; evaluate: may be repeated, for a sweep (0)", "N", flags=("--seed",)
        ),
    ] = ()

    @property
    def seed(self) -> int:
        return self.seeds[0] if self.seeds else 0


@dataclass(frozen=True)
class PosteriorOptions:
    """How posteriors are fitted and compared."""

    indices: Annotated[File, Text("a stored selection, instead of --method and --k", "FILE")] = None
    rescale: Annotated[
        str | None,
        Text(
            "correct the size of the variances: calibrated (by targets of held-out rows), scale or hybrid (by the full "
            "posterior) or none; default: as the spec says, else none",
            "KIND",
            RESCALES,
        ),
    ] = None
    folds: Annotated[
        int, Text("without a validation split, calibrate each of so many parts of the test rows on the others", "N")
    ] = 5
    link: Annotated[
        str | None,
        Text(
            "from uncertain logits to class probabilities: integral, mean-field or probit; default: as the spec says, "
            "else integral",
            "KIND",
            LINKS,
        ),
    ] = None
    full: Annotated[
        str,
        Text(
            "the full posterior to compare with: auto (exact where its matrix fits in memory, else certified), exact, "
            "certified (without the matrix: an interval for every σ), bracket (the cheapest bounds) or none",
            "KIND",
            FULL_KINDS,
        ),
    ] = "auto"
    full_rows: Annotated[
        int | None, Text("with --full bracket: training rows whose full posterior is the upper bound (4000)", "N")
    ] = None
    posterior: Annotated[
        File, Text("predict the test rows with a posterior-*.safetensors alone; no training rows are read", "FILE")
    ] = None
    samples: Annotated[int | None, Text("number of draws of the outputs to add to --predictions", "N")] = None
    conformal: Annotated[
        float | None,
        Text(
            "intervals, or sets of classes, that hold this share of new targets, such as 0.95; fitted for every method "
            "to the targets of the validation split",
            "LEVEL",
        ),
    ] = None
    conformal_by: Annotated[
        str | None, Text("class: with --conformal, the level holds for the rows of each class", "GROUP", GROUPINGS)
    ] = None


@dataclass(frozen=True)
class OutputOptions:
    """Files that the command line names, the format of stdout, and the comparison with a baseline."""

    format: Annotated[str, Text(_FORMAT_HELP, "NAME", tuple(FORMATS), flags=("-f", "--format"))] = "auto"
    output: Annotated[
        tuple[Path, ...],
        Text(
            "also write the result to FILE, in the format of its suffix; may be repeated",
            "FILE",
            flags=("-o", "--output"),
        ),
    ] = ()
    overwrite: Annotated[bool, Text("replace output files that exist")] = False
    predictions: Annotated[File, Text("write mean and std of each test row (.csv, .jsonl, .safetensors)", "FILE")] = (
        None
    )
    review: Annotated[
        int | None, Text("list the N test rows that the first method is most uncertain of: look at these first", "N")
    ] = None
    plot: Annotated[File, Text("draw the result (.png, .svg or .pdf; needs the extra [plot])", "FILE")] = None
    plot_kind: Annotated[
        str | None,
        Text(
            "curves (the default), calibration, risk-coverage, scatter, map or ood; with --plot",
            "KIND",
            tuple(PICTURES),
        ),
    ] = None
    report: Annotated[File, Text("one HTML file with table, pictures, gate and provenance (extra [plot])", "FILE")] = (
        None
    )
    baseline: Annotated[File, Text("the JSON of an earlier run to compare with", "FILE")] = None
    significant: Annotated[bool, Text("a limit that is broken by no more than its standard error does not fail")] = (
        False
    )

    def named(self) -> list[tuple[str, Path]]:
        """(flag, file) of everything that is written on request."""
        single = {"--predictions": self.predictions, "--plot": self.plot, "--report": self.report}
        written = [(flag, path) for flag, path in single.items() if path is not None]
        return [*(("-o", path) for path in self.output), *written]


@dataclass(frozen=True)
class Job:
    """One command with all its options, parsed."""

    command: Literal["jacobians", "select", "fit", "evaluate"]
    choices: tuple[Choice, ...]
    limits: "tuple[Limit, ...]"
    memory: int | None  # bytes
    max_artifact: int  # bytes
    project: ProjectOptions
    compute: ComputeOptions
    selection: SelectionOptions
    posterior: PosteriorOptions
    outputs: OutputOptions

    @property
    def compares_with_full(self) -> bool:
        return self.posterior.full in COMPARED

    @property
    def predicts_with_full(self) -> bool:
        return self.compares_with_full or any(choice.call.is_full for choice in self.choices)

    @property
    def needs_gradients(self) -> bool:
        """Whether some method needs gradients, not only forward passes."""
        return self.compares_with_full or any(choice.call.method.needs_gradients for choice in self.choices)
