"""From the predictions of all sets of test rows to the result."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.posterior.bounds import Bracket
from ...core.posterior.certified.intervals import half_width
from ...core.prediction import Comparison, Prediction
from ...files.artifacts.run_folder import file_stem
from ...files.data.datasets import Split
from ...files.spec.splits import TEST
from ...results.differences import Difference, difference_details
from ...results.result import Result
from ...run.output_files import Line, prediction_lines
from ...run.posteriors.conformal import conformal_details
from ...run.posteriors.fitting import variant
from ...run.problem import Problem
from ...run.references import norm
from ...run.rows.splits import Splits
from ...run.rows.test_sets import TestSet
from ...run.run import Run
from .blocks import Compared, blocks_of
from .measuring import setup_of
from .ood import by_set
from .review import review
from .sanity import sanity
from .shift import with_shift
from .verdict import verdict

DEFAULT_FULL_ROWS = 4000
NO_OOD = "no split ood in the spec"


@dataclass(frozen=True)
class ScoredSet:
    """The predictions of a set of test rows, with what they are compared with."""

    test: TestSet
    rows: Split
    predictions: tuple[Prediction, ...]  # that were asked for
    known: Comparison
    rivals: tuple[Prediction, ...] = ()  # shown beside them
    full: Prediction | None = None
    bounds: Bracket | None = None

    def lines(self, label: Line) -> Iterator[Line]:
        """Of a file of predictions."""
        for prediction in self.predictions:
            yield from prediction_lines(self.rows, prediction, self.known, label)


@dataclass(frozen=True)
class Evaluation:
    """The result, and the predictions behind each of its rows."""

    result: Result
    sets: tuple[ScoredSet, ...]  # of test rows, the first one is the reference

    @property
    def first(self) -> ScoredSet:
        return self.sets[0]

    def label_of(self, own: ScoredSet) -> Line:
        """What tells the lines of this set from those of others; empty if there is one only."""
        return {"set": own.test.name} if len(self.sets) > 1 else {}


def result_of(problem: Problem, sets: Sequence[ScoredSet]) -> Result:
    """Rows of every set; what a result says besides them is about the first one."""
    run, settled, first = problem.run, problem.hyperparameters, sets[0]
    predictions, shown, known, full = first.predictions, first.rivals, first.known, first.full
    details: dict[str, Any] = {**run.class_details, **sanity(problem)} | (
        {} if settled.tuned is None else {"tuned": settled.tuned}
    )
    if fitted := [each for each in (*predictions, *shown) if each.calibration is not None]:
        details["calibration"] = _calibration(run, fitted)
    listed = {each.name: each for each in (*predictions, *shown)}
    if full is not None:
        listed.setdefault(full.name, full)
    details |= conformal_details(run.job.posterior, known, list(listed.values()))
    # A full posterior that is there for w2 alone is judged as it is; not if the others are calibrated.
    is_other = full is not None and not run.calibrates and full.name not in {own.name for own in predictions}
    judged_too = [full] if full is not None and is_other else []
    blocks = blocks_of([compared(own) for own in sets])
    has_learnt = details.get("sanity", {}).get("better", True)
    judged = verdict(predictions, [*judged_too, *shown], known, run.layout.size, has_learnt)
    if judged := with_shift(judged, blocks):
        details["verdict"] = judged
    details |= review(run, predictions[0], known)
    if full is not None and full.outputs.variance_bounds is not None:
        widest = float(half_width(*full.outputs.variance_bounds).max())
        details["certified"] = {"tolerance": run.job.compute.tolerance, "widest": widest}
    unlisted = [] if full is None or any(each.name == full.name for each in predictions) else [full]
    details |= by_set([*predictions, *shown, *unlisted], known)
    if first.bounds is not None:
        details["bracket"] = {"rows": full_rows(problem), "sets": first.bounds.n_sets}
    return Result(
        setup=setup_of(run, known.n_train, settled.noise_variance, settled.prior_precision),
        provenance=run.provenance,
        references=blocks.references,
        rows=blocks.rows,
        details=details | set_details(run.splits, blocks.differences),
        artifacts=_artifacts(run, [*predictions, *shown, *([full] if full is not None else [])]),
    )


def full_rows(problem: Problem) -> int:
    """Training rows of each full posterior that is an upper bound."""
    run = problem.run
    return min(run.job.posterior.full_rows or DEFAULT_FULL_ROWS, len(run.split("train")))


def set_details(splits: Splits, differences: Sequence[Difference]) -> dict[str, Any]:
    """The names of the sets of test rows, if they have names, with their sizes; and how they differ."""
    named = [{"name": own.name, "rows": len(splits.of(own.split))} for own in splits.tests if own.name is not None]
    return ({"test_sets": named} if named else {}) | difference_details(differences)


def compared(own: ScoredSet) -> Compared:
    """The part of it that rows are measured from."""
    is_compared = own.full is not None and own.known.std_full is not None
    return Compared(own.test.name, own.predictions, own.rivals, own.full if is_compared else None, own.known)


def _calibration(run: Run, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Which rows the factors were fitted to, and each of them."""
    folds = run.job.posterior.folds if run.held_out == "test" else None
    fitted = [
        {"method": each.method, "k": each.k, "factor": each.calibration.factor.value}
        | ({"noise_factor": each.calibration.factor.noise} if run.calibrates_noise else {})
        | ({"by_fold": list(each.calibration.by_fold)} if each.calibration.by_fold else {})
        for each in predictions
        if each.calibration is not None
    ]
    of_set = {"set": run.tests[0].name} if run.held_out == TEST and run.tests[0].name is not None else {}
    return {"split": run.held_out, **of_set, "rows": len(run.split(run.held_out)), "folds": folds, "factors": fitted}


def _artifacts(run: Run, predictions: Sequence[Prediction]) -> dict[str, str]:
    """Artifacts in the folder that the result depends on, whether or not this command made them."""
    splits = ("train", run.job.selection.reference, *(own.split for own in run.tests), *run.project.spec.data.ood_sets)
    names = ["scores", *(f"jacobians-{run.stored_as(name)}" for name in splits)]
    for prediction in predictions:
        predicted = None
        if prediction.k is None and not run.calibrates:
            predicted = norm.stem(prediction.method)
        if prediction.k is not None:
            kinds = ("indices", "posterior", "predictions")
            indices, *rest = (file_stem(kind, prediction.method, prediction.k) for kind in kinds)
            is_compact = prediction.features is not None
            rescales = (run.rescale, run.fitted_rescale) if is_compact else ("none", "none")
            posterior, predicted = (variant(name, rescale) for name, rescale in zip(rest, rescales, strict=True))
            names += [indices, posterior]
        names += [] if predicted is None else [own.stem(predicted) for own in run.tests]
    return run.store.existing(names)
