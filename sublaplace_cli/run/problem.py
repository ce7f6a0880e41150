"""The input of every method: the rows of a run, Ω of the training rows, and quantities derived from them.

The rows of a split are opened, and the scores and the full posterior computed, when they are first needed: a stored
result may make them unnecessary.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from ..core.features.held import HeldFeatures
from ..core.features.views import View, view_of
from ..core.jacobian.rows import Jacobian
from ..core.kernels.arithmetic import Arithmetic
from ..core.omega.precision import Precision
from ..core.omega.row_sums import SquaresBeside, own_products, squared_gradients
from ..core.tuning.calibration import Calibrator
from ..files.artifacts.artifact import Artifact
from ..files.spec.splits import TEST
from .choosing.chosen import Chosen
from .full.full_of_run import FullOfRun
from .hyperparameters import Hyperparameters, OpenHyperparameters, noise_is_from_train, settled_by_spec
from .rows.row_shards import SplitRows
from .rows.row_storage import open_rows
from .rows.test_sets import TestSet
from .run import Run
from .store import Content, Key, Stored


@dataclass(frozen=True)
class Rows:
    """The rows of a run, each split opened once."""

    run: Run
    _opened: dict[str, SplitRows] = field(default_factory=dict)  # by the name under which they are stored

    @property
    def train(self) -> SplitRows:
        return self.of("train")

    def train_outputs(self) -> Tensor:
        """f of the training rows (N, C), for which no gradient is computed."""
        stored = self.run.stored_as("train")
        is_there = stored in self._opened or self.run.store.existing([f"jacobians-{stored}"])
        return self.train.jacobian.outputs if is_there else self.run.outputs("train")

    @property
    def scored(self) -> SplitRows:
        """The rows that scores are taken over."""
        return self.of(self.run.job.selection.reference)

    def of(self, name: str) -> SplitRows:
        """The rows of a split by any of its names; those of Ω and the scores may be sampled, predicted ones are not."""
        stored = self.run.stored_as(name)
        if stored not in self._opened:
            self._opened[stored] = open_rows(self.run.store, self.run.row_storage(stored))
        return self._opened[stored]


@dataclass(frozen=True)
class PredictedRows:
    """The rows of a split that methods predict: the test rows, or others that they are judged on."""

    run: Run
    rows: Rows
    split: str
    prior: Tensor  # v (p,)

    @property
    def test(self) -> TestSet | None:
        """The set of test rows that they are, if they are one: only predictions of those are stored."""
        return self.run.test_of(self.split)

    @property
    def jacobian(self) -> Jacobian:
        rows = self.rows.of(self.split)
        assert not rows.is_sampled, "predictions are of all outputs: what needs them at training rows was refused"
        return rows.jacobian

    @cached_property
    def f(self) -> Tensor:
        """Outputs of the network (M, C); by plain passes if no method needs gradients here."""
        for_temperature_alone = self.split == "validation" and not self.run.needs_held_out_rows
        needs_gradients = self.run.job.needs_gradients and not for_temperature_alone
        return self.jacobian.outputs if needs_gradients else self.run.outputs(self.split)

    @property
    def targets(self) -> Tensor | None:
        return self.run.targets(self.split)

    @cached_property
    def products(self) -> Tensor:
        """G V⁻¹ Gᵀ of each row (M, C, C): on the diagonal, ‖g‖² in the metric V⁻¹."""
        with self.run.store.timed("predict"):
            return own_products(self.jacobian, self.prior, self.run.memory)


@dataclass(frozen=True)
class Scores:
    """Squared gradients (p,): over the reference rows, and diag(Ω) − V of the training rows."""

    score: Tensor
    data_diagonal: Tensor


@dataclass(frozen=True)
class Problem:
    """Ω of the training rows, with the derived quantities that several methods need."""

    run: Run
    rows: Rows
    hyperparameters: Hyperparameters
    _predicted: dict[str, PredictedRows] = field(default_factory=dict)
    _views: dict[str, View] = field(default_factory=dict)  # by the digest of what they show

    @cached_property
    def _held_features(self) -> HeldFeatures:
        return HeldFeatures(self.hyperparameters.prior, self.run.memory, self.run.reporter.progress)

    @cached_property
    def omega(self) -> Precision:
        run, train, settled = self.run, self.rows.train.jacobian, self.hyperparameters
        arithmetic = Arithmetic.named(run.job.compute.gram_dtype)
        root = self.rows.train.root(settled.likelihood)
        return Precision(train, root, settled.prior, run.memory, run.reporter.progress, arithmetic)

    @cached_property
    def scores(self) -> Stored[Scores]:
        """The scores, stored as the score and diag(Ω)."""
        run, prior = self.run, self.hyperparameters.prior
        facts = {"score": run.job.selection.score, "reference": run.stored_as(run.job.selection.reference)}

        def read(artifact: Artifact) -> Scores:
            shape = (run.layout.size,)
            score, diagonal = (artifact.tensor(name, shape).to(run.device) for name in ("score", "diagonal"))
            return Scores(score, diagonal - prior)

        def write(scores: Scores) -> Content:
            return {"score": scores.score, "diagonal": scores.data_diagonal + prior}, {}

        def make() -> Scores:
            made = self.compute_scores()
            # With the rounding of diag(Ω), which is stored: a later run that reads it computes the same.
            return Scores(made.score, (made.data_diagonal + prior).sub_(prior))

        return run.store.get(Key("scores", "scores", {}, facts, "scores"), make, read, write)

    def compute_scores(self) -> Scores:
        """The score that methods rank by, and diag(Ω) − V; nothing is stored."""
        run, rows = self.run, self.rows
        data_diagonal = self._squares(rows.train, weighted=True)
        if run.job.selection.score == "unweighted":  # exactly Algorithm 1: a mean, without the output Hessian
            mean = self._squares(rows.scored, weighted=False) / len(rows.scored.jacobian.outputs)
            return Scores(mean, data_diagonal)
        scored_train = rows.scored is rows.train
        return Scores(data_diagonal if scored_train else self._squares(rows.scored, weighted=True), data_diagonal)

    def _squares(self, rows: SplitRows, *, weighted: bool) -> Tensor:
        """Σₙ diag(JₙᵀHₙJₙ) over a split; H = I where unweighted."""
        sums = rows.square_sums
        if sums is not None:
            total = sums.weighted if weighted else sums.unweighted
        elif weighted and rows is self.rows.train:
            total = self._squares_of_train.squared_gradients(rows.jacobian, self.run.memory)
        else:
            root = rows.root(self.run.unit_likelihood) if weighted else None
            total = squared_gradients(rows.jacobian, root, self.run.memory)
        noise_variance = self.hyperparameters.noise_variance
        return total / noise_variance if weighted and noise_variance else total

    @cached_property
    def _squares_of_train(self) -> SquaresBeside:
        return SquaresBeside(self.rows.train.root(self.run.unit_likelihood))

    @cached_property
    def full(self) -> FullOfRun:
        has_scores = "scores" in self.run.store.existing(["scores"]) and not self.run.store.force
        needs_scores = any(choice.call.chooses for choice in self.run.choices) and not has_scores
        squares = self._squares_of_train if needs_scores else None
        return FullOfRun(self.run, self.omega, self.hyperparameters, squares)

    @property
    def means(self) -> slice:
        """The outputs that predict the targets, which a rescaling is fitted for."""
        return self.hyperparameters.likelihood.means(self.run.passes.n_outputs)

    def predicted(self, split: str) -> PredictedRows:
        if split == TEST and self.run.tests:
            split = self.run.tests[0].split
        if split not in self._predicted:
            self._predicted[split] = PredictedRows(self.run, self.rows, split, self.hyperparameters.prior)
        return self._predicted[split]

    def view(self, chosen: Chosen) -> View:
        """How a posterior sees the rows, with this prior. Features of all views so far are made in one pass."""
        if chosen.digest not in self._views:
            prior, run = self.hyperparameters.prior, self.run
            self._views[chosen.digest] = view_of(chosen.features, run.layout, prior, run.memory, self._held_features)
        return self._views[chosen.digest]

    @property
    def held_out(self) -> PredictedRows:
        """The rows whose targets a calibration is fitted to."""
        return self.predicted(self.run.held_out)

    @cached_property
    def calibrator(self) -> Calibrator:
        """Of the held-out rows; the factors for other rows are those of all of them together."""
        targets, run = self.run.targets(self.run.held_out), self.run
        assert targets is not None, "they were checked before"
        n_folds = run.job.posterior.folds if run.held_out == "test" else None
        return Calibrator(self.hyperparameters.likelihood, targets, n_folds, run.calibrates_noise)

    @property
    def other_reference(self) -> Jacobian | None:
        """The reference rows, if they are not the training rows."""
        return None if self.rows.scored is self.rows.train else self.rows.scored.jacobian

    def with_tuning(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values of a result, with details of the tuning if there was any."""
        tuned = self.hyperparameters.tuned
        return values if tuned is None else {**values, "tuned": tuned}


def open_problem(run: Run) -> Problem:
    """The problem of a run, with its hyperparameters settled."""
    from .tuning import tune  # it selects a sub-network, which starts from a problem

    rows, open_parts, f = Rows(run), OpenHyperparameters.of(run), None
    if run.unit_likelihood.noise_variance is not None and noise_is_from_train(run.project.spec.posterior):
        f = rows.train.jacobian.outputs if run.job.needs_gradients else run.outputs("train")
    settled = settled_by_spec(run, f) if open_parts.is_settled else tune(run, rows, open_parts)
    return Problem(run, rows, settled)
