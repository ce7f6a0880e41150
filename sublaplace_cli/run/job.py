"""The options of one command, parsed and checked once: no later code parses an option's text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..catalog import FULL, METHODS, Method
from ..errors import UserError
from ..results.limits import Limit

DEFAULT_K = 1000
FullKind = Literal["exact", "none", "bracket"]
RescaleKind = Literal["none", "scale", "hybrid"]


@dataclass(frozen=True)
class MethodCall:
    """A method under the name that the user typed."""

    name: str
    method: Method
    pattern: str | None = None  # the glob of names:PATTERN
    own_code: bool = False  # package.module:function of the user

    @property
    def selects(self) -> bool:
        return self.method.kind == "selector"

    @property
    def is_full(self) -> bool:
        return self.method is METHODS[FULL]

    def is_nested(self, pool: str) -> bool:
        """Whether the choice for a small k is a prefix of that for a larger one; false if the pool grows with k."""
        return self.method.nested and not (self.method.pooled and pool in ("2k", "paper"))


@dataclass(frozen=True)
class Choice:
    """A method with its k; k is None if the method takes none, for the default, or if `retain` decides."""

    call: MethodCall
    k: int | None
    retain: float | None = None  # the fraction of the full network's ipv to reach (--k auto)

    def for_network(self, n_params: int) -> Choice:
        """The same with the default k filled in; a k above p is refused."""
        if not self.call.method.takes_k or self.retain is not None:
            return replace(self, k=None)
        k = min(DEFAULT_K, n_params) if self.k is None else self.k
        if k > n_params:
            raise UserError(
                f"--k {k} is more than the {n_params} trainable parameters of the model",
                hint=f"choose k between 1 and {n_params}",
            )
        return replace(self, k=k)


@dataclass(frozen=True)
class ProjectOptions:
    """Which spec, checkpoints and run folder, and what the spec may do."""

    spec: Path | None = None
    checkpoints: tuple[str, ...] = ()  # several, or a pattern: a sweep
    run_dir: Path | None = None
    allow_code: tuple[str, ...] = ()
    allow_outside: bool = False


@dataclass(frozen=True)
class ComputeOptions:
    """Device, precision of the passes, and limits; sizes in bytes."""

    device: str = "auto"
    dtype: str = "float32"
    gram_dtype: str = "float64"
    memory: int | None = None
    max_artifact: int = 20 * 2**30


@dataclass(frozen=True)
class SelectionOptions:
    """Options besides method and k that affect the choice of parameters."""

    pool: str = "all"
    score: Literal["weighted", "unweighted"] = "weighted"
    reference: str = "reference"
    seeds: tuple[int, ...] = ()  # several: a sweep
    typed: tuple[str | None, str | None] = (None, None)  # --method and --k as typed: an open prior is tuned for them

    @property
    def seed(self) -> int:
        """The seed of one run."""
        return self.seeds[0] if self.seeds else 0


@dataclass(frozen=True)
class PosteriorOptions:
    """How posteriors are fitted and compared."""

    rescale: RescaleKind | None = None  # None: as the spec says
    full: FullKind = "exact"
    full_rows: int | None = None
    indices: Path | None = None  # a selection from a file instead of a method
    posterior: Path | None = None  # predict with this one alone
    samples: int | None = None


@dataclass(frozen=True)
class RowOptions:
    """What `jacobians` computes."""

    split: str = "all"
    scores_only: bool = False


@dataclass(frozen=True)
class OutputOptions:
    """Files that the command line names, and the format of stdout."""

    format: str = "auto"
    results: tuple[Path, ...] = ()
    predictions: Path | None = None
    plot: Path | None = None
    plot_kind: str | None = None
    report: Path | None = None

    def named(self) -> list[tuple[str, Path]]:
        """(flag, file) of everything that is written on request."""
        single = {"--predictions": self.predictions, "--plot": self.plot, "--report": self.report}
        return [
            *(("-o", path) for path in self.results),
            *((f, path) for f, path in single.items() if path is not None),
        ]


@dataclass(frozen=True)
class GateOptions:
    """Limits from the command line."""

    limits: tuple[Limit, ...] = ()
    baseline: Path | None = None
    significant: bool = False


@dataclass(frozen=True)
class Mode:
    """Whether stored parts are reused, and whether anything is computed."""

    force: bool = False  # recompute everything, overwrite output files
    dry_run: bool = False  # only report what would be done


@dataclass(frozen=True)
class Job:
    """One command with all its options."""

    command: Literal["jacobians", "select", "fit", "evaluate"]
    choices: tuple[Choice, ...] = ()
    project: ProjectOptions = ProjectOptions()
    compute: ComputeOptions = ComputeOptions()
    selection: SelectionOptions = SelectionOptions()
    posterior: PosteriorOptions = PosteriorOptions()
    rows: RowOptions = RowOptions()
    outputs: OutputOptions = OutputOptions()
    gate: GateOptions = GateOptions()
    mode: Mode = Mode()

    @property
    def compares_with_full(self) -> bool:
        return self.posterior.full == "exact"

    @property
    def predicts_with_full(self) -> bool:
        return self.compares_with_full or any(choice.call.is_full for choice in self.choices)

    @property
    def needs_gradients(self) -> bool:
        """Whether some method needs gradients, not only forward passes."""
        return self.compares_with_full or any(choice.call.method.needs_gradients for choice in self.choices)

    def split_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Splits that the command requires, and those that it uses if the spec has them."""
        if self.posterior.posterior is not None:
            return ("test",), ()
        only_rows = self.command == "jacobians" and not self.rows.scores_only
        needs = ["train"] if only_rows else ["train", "reference"]
        if self.command == "evaluate" or self.selection.reference == "test":
            needs.append("test")
        if not only_rows:
            return tuple(needs), ()
        if self.rows.split == "all":
            return (*needs, "reference"), ("test",)
        return (*needs, self.rows.split), ()
