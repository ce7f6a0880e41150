"""The full posterior without its Gram matrix: certified variances at the rows of a split, stored and resumed."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ...core.jacobian.rows import Jacobian, n_outputs
from ...core.jacobian.sharded import some_rows
from ...core.omega.precision import Precision
from ...core.posterior.certified.intervals import (
    CertifiedVariances,
    Goal,
    Solutions,
    certified_batches,
    joined_batches,
    rows_at_once,
)
from ...core.posterior.certified.preconditioners import COPIES, cholesky_preconditioner, no_preconditioner
from ...core.posterior.certified.system import System
from ...core.posterior.certified.training_rows import SampledRows
from ...files.artifacts.artifact import Artifact
from ...files.artifacts.layout import by_rows
from ...files.artifacts.row_writer import RowWriter
from ..run import Run
from ..store import Key, Store

MOST_STEPS = 1000  # products with the Gram matrix for one batch of rows: each is two passes over the training rows
# Of the preconditioner: a column costs about as much as a product with one vector, and saves steps of all.
PRECONDITIONER_RANK, PRECONDITIONER_SHARE = 2000, 8
SAMPLED_OUTPUTS = 128  # of the training rows whose variances stand for those of all
KEEP_SECONDS = 60.0  # longest work that a kill may lose, besides one step
TRAINING_SAMPLE = "train-sample"
LABEL = "certified variances: {} rows"


def preconditioner_rank(rows: int, memory: int) -> int:
    return min(PRECONDITIONER_RANK, rows, memory // PRECONDITIONER_SHARE // (COPIES * 8 * rows))


def certified_stem(name: str, tolerance: float) -> str:
    """Name of the artifact with the variances of a split."""
    return f"certified-{name}-{tolerance:g}"


def solutions_stem(name: str, tolerance: float) -> str:
    """Name of the artifact with what is known of an unfinished batch."""
    return f"solutions-{name}-{tolerance:g}"


def certified_bytes(rows: int, C: int) -> int:
    """Of that artifact: two bounds, the covariances, the number of steps."""
    return 8 * rows * (2 * C + C * C + 1)


@dataclass
class StoredSolutions(Solutions):
    """The solutions of the current batch, stored now and then."""

    store: Store
    name: str
    kept: float = field(default_factory=time.monotonic)  # the time when they were last

    def load(self, first_row: int, shape: tuple[int, int]) -> Tensor | None:
        path = self.store.folder.file(self.name)
        if self.store.force or not path.exists():
            return None
        artifact = self.store.open(Key("solutions", self.name))
        # With another --memory, batches have other rows.
        if artifact.meta["first_row"] != first_row or artifact.meta["tensors"]["z"]["shape"] != list(shape):
            return None
        self.store.reporter.note(f"continuing with {self.name}")
        return artifact.tensor("z", shape).to(self.store.device)

    def is_due(self) -> bool:
        return time.monotonic() - self.kept >= KEEP_SECONDS

    def keep(self, first_row: int, z: Tensor) -> None:
        if self.store.fits(self.name, {"z": z}):
            self.store.put(Key("solutions", self.name, facts={"first_row": first_row}), z, lambda own: ({"z": own}, {}))
        self.kept = time.monotonic()


@dataclass(frozen=True)
class Certifier:
    """Intervals of the full posterior's variances, for one prior."""

    run: Run
    omega: Precision

    @cached_property
    def system(self) -> System:
        """I + K, with a partial Cholesky factor of K as preconditioner, as far as there is room."""
        rank = preconditioner_rank(self.omega.n_rows, self.run.memory)
        if rank < 1:
            return System(self.omega, no_preconditioner(self.omega))
        return System(self.omega, cholesky_preconditioner(self.omega, rank))

    @cached_property
    def training_rows(self) -> SampledRows:
        """A random sample of the training rows, the same for every seed."""
        train, root = self.omega.jacobian, self.omega.root
        N, n = len(root), max(2, SAMPLED_OUTPUTS // root.shape[1])
        rows = torch.randperm(N, generator=torch.Generator().manual_seed(0))[:n].sort().values
        found = self.at(TRAINING_SAMPLE, some_rows(train, rows.tolist()))
        return SampledRows(rows.to(root.device), N, root[rows], found, self.system.preconditioner)

    def at(self, name: str, rows: Jacobian, inputs: dict[str, str] | None = None) -> CertifiedVariances:
        """At all rows of a Jacobian, which is known by this name and by the digests of its inputs."""
        run, tolerance = self.run, self.run.job.compute.tolerance
        if not run.store.keeps:
            found = joined_batches([own for _, own in self._batches(name, rows, 0)])
        else:
            key = Key("certified", certified_stem(name, tolerance), inputs or {}, {"tolerance": tolerance}, "full")
            shape = len(rows.outputs), n_outputs(rows)
            step = rows_at_once(self.omega, shape[1])
            shapes = {"low": shape, "high": shape, "covariance": (*shape, shape[1]), "steps": shape[:1]}
            plans = {what: by_rows(torch.float64, own, step) for what, own in shapes.items()}

            def write(writer: RowWriter) -> None:
                for own, batch in self._batches(name, rows, writer.rows_done):
                    steps = batch.low.new_full((len(batch.low),), batch.steps / len(batch.low))
                    tensors = {"low": batch.low, "high": batch.high, "covariance": batch.covariance, "steps": steps}
                    writer.write(own.start, tensors)
                    writer.checkpoint(own.stop)

            def read(artifact: Artifact) -> CertifiedVariances:
                low, high, covariance, steps = (artifact.tensor(what, shapes[what]).to(run.device) for what in shapes)
                return CertifiedVariances(low, high, covariance, tolerance, round(float(steps.sum())))

            found = run.store.get_by_rows(key, plans, write, read)
            run.store.remove(solutions_stem(name, tolerance))
        self._say(name, found)
        return found

    def _batches(self, name: str, rows: Jacobian, first_row: int) -> Iterator[tuple[slice, CertifiedVariances]]:
        label, progress = LABEL.format(name.replace("-", " ")), self.run.reporter.progress
        goal = Goal(self.run.job.compute.tolerance, MOST_STEPS)
        store = self.run.store
        kept = StoredSolutions(store, solutions_stem(name, goal.tolerance)) if store.keeps else None
        return certified_batches(self.system, rows, goal, first_row, progress, label, kept)

    def _say(self, name: str, found: CertifiedVariances) -> None:
        if missed := len(found.missed):
            where = f"at {missed} of {len(found.low)} {name.replace('-', ' ')} rows"
            reached, asked = (f"± {100 * share:.3g} %" for share in (float(found.half_width.max()), found.tolerance))
            self.run.reporter.warn(f"{where} the full posterior's σ is certified to within {reached} only, not {asked}")
