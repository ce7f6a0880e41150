"""`sublaplace evaluate`: every method at every k against the full posterior, the targets and the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..catalog import load
from ..core.posterior.bounds import Bracket, bracket, require_not_larger
from ..core.prediction import Absent, Comparison, Prediction
from ..files.artifacts.run_folder import file_stem
from ..results.result import Result
from ..run.input_files import oracle_outputs
from ..run.job import Choice
from ..run.posteriors import paths, predict, variant
from ..run.problem import Problem, open_problem
from ..run.references import ReferenceInputs
from ..run.references.full import full_prediction
from ..run.run import Run
from ..run.selections import select
from .measuring import measured_row, setup_of

DEFAULT_FULL_ROWS = 4000


@dataclass(frozen=True)
class Evaluation:
    """The result, and the predictions behind each of its rows."""

    result: Result
    predictions: tuple[Prediction, ...]
    known: Comparison


def evaluate(run: Run) -> Evaluation:
    """Rows → Ω → select → fit → predict → score."""
    oracle = oracle_outputs(run)  # first: a wrong oracle must fail before the long work
    problem = open_problem(run)
    f = problem.rows.test.jacobian.outputs if run.job.needs_gradients else run.outputs("test")
    known = Comparison(
        likelihood=problem.hyperparameters.likelihood,
        n_train=len(run.split("train")),
        targets=run.targets("test"),
        oracle=oracle,
        std_full=None,
        absent=Absent(full="--full none", oracle="no oracle in the spec"),
    )
    full = known.about_targets(full_prediction(problem, known)) if run.job.predicts_with_full else None
    if full is not None and full.freedom is not None and run.job.compares_with_full:
        known = replace(known, std_full=full.std, full_ipv=known.ipv(full.freedom))
    subnets = [choice for choice in run.choices if choice.call.selects]
    predictions: dict[Choice, Prediction] = {}
    chosen = select(problem, subnets) if subnets else {}
    for path in paths(list(chosen.values())):
        made = predict(problem, path, known)
        by_digest = {own.digest: prediction for own, prediction in zip(path, made, strict=True)}
        predictions |= {choice: by_digest[own.digest] for choice, own in chosen.items() if own.digest in by_digest}
    for choice in run.choices:
        if not choice.call.selects:
            inputs = ReferenceInputs(choice.call.name, problem, f, full)
            predictions[choice] = load(choice.call.method.entry)(inputs)
    ordered = tuple(known.about_targets(predictions[choice]) for choice in run.choices)
    _check_theorem_1(problem, ordered, full)
    bounds = _bounds(problem, ordered)
    if bounds is not None:
        absent = replace(known.absent, full="--full bracket: it lies between w2_low and w2_high")
        low, high = (each.sqrt()[:, known.likelihood.means(f.shape[1])] for each in (bounds.low, bounds.high))
        known = replace(known, std_bounds=(low, high), absent=absent)
    return Evaluation(_result(problem, ordered, known, full, bounds), ordered, known)


def full_rows(run: Run) -> int:
    """Training rows of each full posterior that is an upper bound."""
    return min(run.job.posterior.full_rows or DEFAULT_FULL_ROWS, len(run.split("train")))


def _bounds(problem: Problem, predictions: Sequence[Prediction]) -> Bracket | None:
    if problem.run.job.posterior.full != "bracket":
        return None
    subnets = [prediction.outputs.variance for prediction in predictions if prediction.is_subnet_posterior]
    test, products = problem.rows.test.jacobian, problem.test_products
    with problem.run.store.timed("bracket"):
        return bracket(problem.omega, test, products, full_rows(problem.run), subnets)


def _check_theorem_1(problem: Problem, predictions: Sequence[Prediction], full: Prediction | None) -> None:
    """Every sub-network against the full posterior, and against those that contain it."""
    subnets = [prediction for prediction in predictions if prediction.is_subnet_posterior]
    for small in subnets:
        variance, products = small.outputs.variance, problem.test_products
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
    known: Comparison,
    full: Prediction | None,
    bounds: Bracket | None,
) -> Result:
    run, settled = problem.run, problem.hyperparameters
    details = {} if settled.tuned is None else {"tuned": settled.tuned}
    if bounds is not None:
        details = {**details, "bracket": {"rows": full_rows(run), "sets": bounds.n_sets}}
    return Result(
        setup=setup_of(run, known.n_train, settled.noise_variance, settled.prior_precision),
        provenance=run.provenance,
        full=measured_row(full, known) if full is not None and known.std_full is not None else None,
        rows=tuple(measured_row(prediction, known) for prediction in predictions),
        details=details,
        artifacts=_artifacts(run, [*predictions, *([full] if full is not None else [])]),
    )


def _artifacts(run: Run, predictions: Sequence[Prediction]) -> dict[str, str]:
    """Artifacts in the folder that the result depends on, whether or not this command made them."""
    reference = run.splits.origins[run.job.selection.reference]
    names = ["scores", *(f"jacobians-{name}" for name in ("train", "test", reference))]
    for prediction in predictions:
        if prediction.k is not None:
            kinds = ("indices", "posterior", "predictions")
            indices, *rest = (file_stem(kind, prediction.method, prediction.k) for kind in kinds)
            is_subnet = prediction.indices is not None
            names += [indices, *(variant(name, run.rescale if is_subnet else "none") for name in rest)]
    return run.store.existing(names)
