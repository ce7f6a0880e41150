"""The result of a command as frozen records; `as_dict` gives the JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..plain_text import visible_json
from .differences import Difference
from .metric_table import ROW_KEYS

if TYPE_CHECKING:
    from .gate import Gate

SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """The metrics of one method at one k; in a sweep also those of one run, or the mean over the runs."""

    method: str
    k: int | None
    values: Mapping[str, float | None]  # metrics and their standard errors NAME_se
    why: Mapping[str, str] = field(default_factory=dict)  # reasons for values that are None
    checkpoint: str | None = None  # of a run of a sweep
    seed: int | None = None
    n: int | None = None  # of a mean: the number of runs
    ks: tuple[int | None, ...] | None = None  # of a mean over runs that differ in k
    set: str | None = None  # of test rows, if there are several
    half_widths: Mapping[str, float] = field(default_factory=dict)  # of metrics that are certified to an interval

    def value(self, metric: str) -> float | None:
        return self.values.get(metric)

    def half_width(self, metric: str) -> float:
        """How far the value may be off, where the full posterior is certified to an interval."""
        return self.half_widths.get(metric, 0.0)

    def error(self, metric: str) -> float | None:
        return self.values.get(f"{metric}_se")

    @property
    def choice(self) -> str:
        """“gradient (k = 200)”."""
        return self.method if self.k is None else f"{self.method} (k = {self.k})"

    @property
    def place(self) -> str:
        """The choice with the set of test rows, as limits name it: “shifted/gradient (k = 200)”."""
        return self.choice if self.set is None else f"{self.set}/{self.choice}"

    @property
    def name(self) -> str:
        """The same, in a sweep with checkpoint and seed."""
        seed = f", seed {self.seed}" if self.seed else ""
        return self.place if self.checkpoint is None else f"{self.checkpoint}{seed}: {self.place}"

    @property
    def run(self) -> dict[str, Any]:
        """Checkpoint and seed of a run in a sweep; otherwise empty."""
        return {} if self.checkpoint is None else {"checkpoint": self.checkpoint, "seed": self.seed}

    @property
    def in_set(self) -> dict[str, Any]:
        """The set of test rows; empty if there is one only."""
        return {} if self.set is None else {"set": self.set}

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON: metrics in the order of the table, then the other standard errors by name."""
        label = {**self.run, **self.in_set, "method": self.method, "k": self.k}
        if self.n is not None:
            ks = {} if self.ks is None else {"ks": list(self.ks)}
            return {**label, "n": self.n, **ks, **self.values, **self._widths, "why": dict(self.why)}
        others = sorted(set(self.values).difference(ROW_KEYS))
        values = {key: self.values[key] for key in (*ROW_KEYS, *others) if key in self.values}
        return {**label, **values, **self._widths, "why": dict(sorted(self.why.items()))}

    @property
    def _widths(self) -> dict[str, Any]:
        return {"half_widths": dict(self.half_widths)} if self.half_widths else {}


@dataclass(frozen=True)
class Setup:
    """What was evaluated. In a sweep, values that differ between the runs are None."""

    task: str
    n_train: int
    n_test: int
    n_params: int
    n_outputs: int
    noise_variance: float | None
    prior_precision: Any  # a number, or numbers by glob
    device: str
    workers: int


@dataclass(frozen=True)
class References:
    """Rows that every method is compared with; only limits that name one apply to them."""

    full: Row | None = None  # the full posterior; at the first set of test rows, if there are several
    rivals: tuple[Row, ...] = ()  # predictions without a posterior; of every set, with the full posterior of the others

    def besides(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """These rows, and the references that are not among them."""
        shown, own = {row.place for row in rows}, (*self.rivals, *(() if self.full is None else (self.full,)))
        return (*rows, *(row for row in own if row.place not in shown))


@dataclass(frozen=True)
class Result:
    """The result of `evaluate` on one network."""

    setup: Setup
    provenance: Mapping[str, Any]
    references: References
    rows: tuple[Row, ...]
    gate: "Gate | None" = None
    details: Mapping[str, Any] = field(default_factory=dict)  # "tuned", "calibration", "conformal", …, if present
    artifacts: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] | None = None  # None: not part of the JSON

    @property
    def full(self) -> Row | None:
        return self.references.full

    @property
    def test_sets(self) -> Mapping[str, int]:
        """The number of rows of each set of test rows that has a name."""
        return {own["name"]: own["rows"] for own in self.details.get("test_sets", ())}

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Of the other sets of test rows to the first one."""
        return tuple(Difference(**each) for each in self.details.get("differences", ()))

    @property
    def compared_rows(self) -> tuple[Row, ...]:
        return self.rows  # with those of a baseline

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """Those of the methods and of all references, in every run."""
        return self.references.besides(self.rows)

    @property
    def bracket(self) -> Any:
        """How the bounds of the full posterior were computed; None without bounds."""
        return self.details.get("bracket")

    @property
    def certified(self) -> float | None:
        """The widest half-width of the full posterior's σ as a share of it, where it is certified to an interval."""
        return self.details.get("certified", {}).get("widest")

    @property
    def conformal_level(self) -> float:
        """0 if none was asked for."""
        return (self.provenance.get("conformal") or {}).get("level", 0.0)

    @property
    def verdict(self) -> Sequence[str]:
        """Whether a posterior helps, in sentences."""
        return self.details.get("verdict", {}).get("text", ())

    def without_verdict(self) -> Self:
        return replace(self, details={name: value for name, value in self.details.items() if name != "verdict"})

    @property
    def review(self) -> Mapping[str, Any] | None:
        """The test rows to look at first, if they were asked for."""
        return self.details.get("review")

    def reproducible(self) -> Self:
        """The part that is the same for the same inputs: no times, no folders."""
        names = {stem: Path(path).name for stem, path in self.artifacts.items()}
        return replace(self, artifacts=names, seconds=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            **vars(self.setup),
            "provenance": dict(self.provenance),
            "full": None if self.full is None else self.full.as_dict(),
            "rows": [row.as_dict() for row in self.rows],
            "references": [row.as_dict() for row in self.references.rivals],
            **self._over_runs(),
            "gate": None if self.gate is None else self.gate.as_dict(),
            **self.details,
            "artifacts": dict(self.artifacts),
            **({} if self.seconds is None else {"seconds": dict(self.seconds)}),
        }

    def _over_runs(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class SweepMember:
    """One run of a sweep."""

    checkpoint: str
    seed: int
    result: Result

    def as_dict(self) -> dict[str, Any]:
        result = self.result
        return {
            "checkpoint": self.checkpoint,
            "seed": self.seed,
            "weights_sha256": result.provenance["weights_sha256"],
            "fingerprint": result.provenance["fingerprint"],
            "noise_variance": result.setup.noise_variance,
            "prior_precision": result.setup.prior_precision,
            "full": None if result.full is None else result.full.as_dict(),
            **result.details,
            "artifacts": dict(result.artifacts),
        }


@dataclass(frozen=True)
class SweepResult(Result):
    """The result over several checkpoints or seeds: `rows` are those of all runs, `full` is the mean."""

    mean: tuple[Row, ...] = ()
    members: tuple[SweepMember, ...] = ()

    @property
    def compared_rows(self) -> tuple[Row, ...]:
        return self.mean

    @property
    def all_rows(self) -> tuple[Row, ...]:
        each = ((own, own.result.all_rows) for own in self.members)
        return tuple(replace(row, checkpoint=own.checkpoint, seed=own.seed) for own, rows in each for row in rows)

    @property
    def certified(self) -> float | None:
        found = [own.result.certified for own in self.members if own.result.certified is not None]
        return max(found, default=None)

    @property
    def bracket(self) -> list[Any]:
        return [member.result.bracket for member in self.members]

    def _over_runs(self) -> dict[str, Any]:
        checkpoints = [member.as_dict() for member in self.members]
        return {"mean": [row.as_dict() for row in self.mean], "checkpoints": checkpoints}


@dataclass(frozen=True)
class Listing:
    """The flat result of `jacobians`, `select`, `fit` or a dry run: names and values."""

    values: Mapping[str, Any]
    gate = None  # nothing is judged

    def as_dict(self) -> dict[str, Any]:
        return dict(self.values)


Answer = Result | Listing


def json_text(answer: Answer) -> str:
    """Strict JSON: no NaN, no Infinity."""
    return visible_json(json.dumps(answer.as_dict(), indent=1, allow_nan=False, ensure_ascii=False))
