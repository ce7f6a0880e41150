"""`sublaplace evaluate`: every method at every k against the full posterior, the targets and the oracle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..catalog import load
from ..core.gaussian import Gaussian
from ..core.posterior.bounds import Bracket, bracket, require_not_larger
from ..core.prediction import Absent, Comparison, OodSet, Prediction
from ..files.artifacts.run_folder import file_stem
from ..results.result import References, Result
from ..run.input_files import oracle_outputs
from ..run.job import Choice
from ..run.posteriors.calibration import TEMPERATURE, at_other_rows, calibrated, rivals
from ..run.posteriors.conformal import conformal_details, conformal_of_all
from ..run.posteriors.cross_fitting import fold_problems, joined_folds
from ..run.posteriors.fitting import paths, variant
from ..run.posteriors.predictions import predict
from ..run.problem import Problem, open_problem
from ..run.references import ReferenceInputs
from ..run.references.full import full_prediction
from ..run.run import Run
from ..run.selections import Chosen, select
from .scoring.measuring import measured_row, setup_of
from .scoring.ood import by_set
from .scoring.review import review
from .scoring.sanity import sanity
from .scoring.verdict import verdict

DEFAULT_FULL_ROWS = 4000
NO_OOD = "no split ood in the spec"


@dataclass(frozen=True)
class Evaluation:
    """The result, and the predictions behind each of its rows."""

    result: Result
    predictions: tuple[Prediction, ...]
    known: Comparison
    rivals: tuple[Prediction, ...] = ()  # shown beside them


def evaluate(run: Run) -> Evaluation:
    """Rows → Ω → select → fit → predict → calibrate → score."""
    oracle = oracle_outputs(run)  # first: a wrong oracle must fail before the long work
    problem = open_problem(run)
    test = problem.predicted("test")
    known = Comparison(
        likelihood=problem.hyperparameters.likelihood,
        n_train=len(run.split("train")),
        targets=test.targets,
        oracle=oracle,
        std_full=None,
        absent=Absent(full="--full none", oracle="no oracle in the spec", ood=NO_OOD),
    )
    parts = fold_problems(problem)
    full = None
    if run.job.predicts_with_full:
        each = [full_prediction(own, own.predicted("test"), known) for own in (problem, *parts)]
        full = known.about_targets(joined_folds(*each))
    if full is not None and full.freedom is not None and run.job.compares_with_full:
        known = replace(known, std_full=full.std, full_ipv=known.ipv(full.freedom))
    subnets = [choice for choice in run.choices if choice.call.selects]
    chosen = select(problem, subnets) if subnets else {}
    whole, *by_fold = (_predictions(own, chosen, known, full) for own in (problem, *parts))
    plain = tuple(joined_folds(*each) for each in zip(whole, *by_fold, strict=True))
    _check_theorem_1(problem, plain, full)
    bounds = _bounds(problem, plain)
    if bounds is not None:
        absent = replace(known.absent, full="--full bracket: it lies between w2_low and w2_high")
        low, high = (each.sqrt()[:, problem.means] for each in (bounds.low, bounds.high))
        known = replace(known, std_bounds=(low, high), absent=absent)
    there = _held_out(problem, plain, chosen, known, full)
    predictions = tuple(calibrated(problem, own, there[own.name]) for own in plain)
    shown = [known.about_targets(rival) for rival in rivals(problem, predictions)]
    judged = [*predictions, *shown, *([] if full is None else [full])]
    if run.job.posterior.conformal is not None:
        known = replace(known, conformal=conformal_of_all(problem, judged, there))
    known = replace(known, ood=_ood_sets(problem, chosen, known, judged))
    result = _result(problem, predictions, shown, known, full, bounds)
    result = replace(result, details={**sanity(problem), **result.details})
    for row in result.rows:
        if "retained" in row.why and row.value("retained") is not None:
            run.reporter.note(f"{row.name}: retained is {row.value('retained'):.3g}, {row.why['retained']}")
    return Evaluation(result, predictions, known, tuple(shown))


def _predictions(
    problem: Problem,
    chosen: Mapping[Choice, Chosen],
    known: Comparison,
    full: Prediction | None,
    split: str = "test",
) -> tuple[Prediction, ...]:
    """Of every choice at the rows of a split, in the order asked for."""
    rows = problem.predicted(split)
    predictions: dict[Choice, Prediction] = {}
    for path in paths(list(chosen.values())):
        made = predict(problem, path, rows, known)
        by_digest = {own.digest: prediction for own, prediction in zip(path, made, strict=True)}
        predictions |= {choice: by_digest[own.digest] for choice, own in chosen.items() if own.digest in by_digest}
    for choice in problem.run.choices:
        if not choice.call.selects:
            inputs = ReferenceInputs(choice.call.name, problem, rows, full)
            predictions[choice] = load(choice.call.method.entry)(inputs)
    return tuple(known.about_targets(predictions[choice]) for choice in problem.run.choices)


def _held_out(
    problem: Problem,
    plain: tuple[Prediction, ...],
    chosen: Mapping[Choice, Chosen],
    known: Comparison,
    full: Prediction | None,
) -> dict[str, Prediction]:
    """Every method at the held-out rows, by name, before a calibration; at the test rows if no others are needed."""
    run, conformal = problem.run, problem.run.job.posterior.conformal is not None
    needed = conformal or run.calibrates or any(prediction.method == TEMPERATURE for prediction in plain)
    if not needed or run.held_out == "test":
        return {prediction.name: prediction for prediction in plain}
    needs_full = (conformal and full is not None) or any(choice.call.is_full for choice in run.choices)
    full_there = full_prediction(problem, problem.held_out, known) if needs_full else None
    found = _predictions(problem, chosen, known, full_there, run.held_out)
    return {each.name: each for each in (*found, full_there) if each is not None}


def _ood_sets(
    problem: Problem, chosen: Mapping[Choice, Chosen], known: Comparison, judged: Sequence[Prediction]
) -> tuple[OodSet, ...]:
    """Every prediction at the rows of each set."""
    sets = problem.run.project.spec.data.ood_sets
    test = {each.outputs: each.comparable for each in judged}
    if sets and problem.hyperparameters.by_fold:  # priors that differ by fold would disturb the order of the rows
        test = _common(problem, chosen, known, judged, "test")
    return tuple(OodSet(name, test, _common(problem, chosen, known, judged, split)) for split, name in sets.items())


def _common(
    problem: Problem, chosen: Mapping[Choice, Chosen], known: Comparison, judged: Sequence[Prediction], split: str
) -> dict[Gaussian, Gaussian]:
    """Each prediction at the rows of a split, with one prior and one factor for all rows."""
    rows = problem.predicted(split)
    full = full_prediction(problem, rows, known) if problem.run.job.predicts_with_full else None
    found = [*_predictions(problem, chosen, known, full, split), *([] if full is None else [full])]
    return at_other_rows(judged, {each.name: each for each in found}, rows.f)


def full_rows(run: Run) -> int:
    """Training rows of each full posterior that is an upper bound."""
    return min(run.job.posterior.full_rows or DEFAULT_FULL_ROWS, len(run.split("train")))


def _bounds(problem: Problem, predictions: Sequence[Prediction]) -> Bracket | None:
    if problem.run.job.posterior.full != "bracket":
        return None
    subnets = [prediction.outputs.variance for prediction in predictions if prediction.is_subnet_posterior]
    test, products = problem.predicted("test").jacobian, problem.predicted("test").products
    with problem.run.store.timed("bracket"):
        return bracket(problem.omega, test, products, full_rows(problem.run), subnets)


def _check_theorem_1(problem: Problem, predictions: Sequence[Prediction], full: Prediction | None) -> None:
    """Every sub-network against the full posterior, and against those that contain it."""
    subnets = [prediction for prediction in predictions if prediction.is_subnet_posterior]
    products = problem.predicted("test").products if subnets else torch.empty(0)
    for small in subnets:
        variance = small.outputs.variance
        if full is not None:
            require_not_larger(variance, full.outputs.variance, products, small.name, "the full posterior")
        for large in subnets:
            if _contains(large, small):
                require_not_larger(variance, large.outputs.variance, products, small.name, large.name)


def _contains(large: Prediction, small: Prediction) -> bool:
    if large.indices is None or small.indices is None or len(large.indices) <= len(small.indices):
        return False
    # Subsets of different methods are nested only by accident: not worth the check.
    return large.method == small.method and bool(torch.isin(small.indices, large.indices).all())


def _result(
    problem: Problem,
    predictions: Sequence[Prediction],
    shown: Sequence[Prediction],
    known: Comparison,
    full: Prediction | None,
    bounds: Bracket | None,
) -> Result:
    run, settled = problem.run, problem.hyperparameters
    details: dict[str, Any] = {} if settled.tuned is None else {"tuned": settled.tuned}
    if fitted := [each for each in (*predictions, *shown) if each.calibration is not None]:
        details["calibration"] = _calibration(run, fitted)
    listed = {each.name: each for each in (*predictions, *shown)}
    if full is not None:
        listed.setdefault(full.name, full)
    details |= conformal_details(run.job.posterior, known, list(listed.values()))
    # A full posterior that is there for w2 alone is judged as it is; not if the others are calibrated.
    is_other = full is not None and not run.calibrates and full.name not in {own.name for own in predictions}
    judged_too = [full] if full is not None and is_other else []
    if judged := verdict([*predictions, *judged_too], shown, known):
        details["verdict"] = judged
    details |= review(run, predictions[0], known)
    unlisted = [] if full is None or any(each.name == full.name for each in predictions) else [full]
    details |= by_set([*predictions, *shown, *unlisted], known)
    if bounds is not None:
        details = {**details, "bracket": {"rows": full_rows(run), "sets": bounds.n_sets}}
    return Result(
        setup=setup_of(run, known.n_train, settled.noise_variance, settled.prior_precision),
        provenance=run.provenance,
        references=References(
            measured_row(full, known) if full is not None and known.std_full is not None else None,
            tuple(measured_row(prediction, known) for prediction in shown),
        ),
        rows=tuple(measured_row(prediction, known) for prediction in predictions),
        details=details,
        artifacts=_artifacts(run, [*predictions, *([full] if full is not None else [])]),
    )


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
    return {"split": run.held_out, "rows": len(run.split(run.held_out)), "folds": folds, "factors": fitted}


def _artifacts(run: Run, predictions: Sequence[Prediction]) -> dict[str, str]:
    """Artifacts in the folder that the result depends on, whether or not this command made them."""
    splits = ("train", "test", run.job.selection.reference, *run.project.spec.data.ood_sets)
    names = ["scores", *(f"jacobians-{run.stored_as(name)}" for name in splits)]
    for prediction in predictions:
        if prediction.k is not None:
            kinds = ("indices", "posterior", "predictions")
            indices, *rest = (file_stem(kind, prediction.method, prediction.k) for kind in kinds)
            is_subnet = prediction.indices is not None
            rescales = (run.rescale, run.fitted_rescale) if is_subnet else ("none", "none")
            names += [indices, *(variant(name, rescale) for name, rescale in zip(rest, rescales, strict=True))]
    return run.store.existing(names)
