"""`sublaplace evaluate`: every method at every k against the full posterior, the targets and the oracle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..catalog import load
from ..core.posterior.bounds import Bracket, bracket
from ..core.prediction import Absent, Comparison, FullNumbers, OodSet, Prediction
from ..files.spec.splits import TEST
from ..run.choosing.chosen import Chosen
from ..run.choosing.features import choose
from ..run.input_files import OracleOutputs, oracle_outputs
from ..run.method_calls import Choice
from ..run.posteriors.calibration import TEMPERATURE, HeldOut, at_other_rows, calibrated, rivals
from ..run.posteriors.conformal import conformal_of_all
from ..run.posteriors.cross_fitting import fold_problems, joined_folds
from ..run.posteriors.fitting import paths
from ..run.posteriors.predictions import predict
from ..run.problem import PredictedRows, Problem, open_problem
from ..run.references import ReferenceInputs
from ..run.references.beside import beside
from ..run.references.full import full_prediction
from ..run.rows.test_sets import TestSet
from ..run.run import Run
from .scoring.outcome import NO_OOD, Evaluation, ScoredSet, full_rows, result_of
from .scoring.theorem1 import check_theorem_1

# The parameters or features of each choice, the prediction of the first test rows if it is there already, or None.
Choices = Mapping[Choice, Chosen | Prediction | None]


@dataclass(frozen=True)
class _Compared:
    """A set of test rows with what methods are compared with there."""

    test: TestSet
    rows: PredictedRows
    parts: Sequence[Problem]  # by fold of these rows, if each has a prior of its own
    fulls: Sequence[Prediction]  # of the full posterior: of all rows, then by fold; empty if it is not wanted
    full: Prediction | None  # the one that counts
    known: Comparison


@dataclass(frozen=True)
class _Predicted:
    """Every method at a set of test rows, before a calibration."""

    test: TestSet
    rows: PredictedRows
    methods: tuple[Prediction, ...]
    full: Prediction | None
    known: Comparison
    bounds: Bracket | None  # of the full posterior
    with_one_prior: Mapping[str, Prediction]  # by name; others than `methods` if each fold of the rows has its own


@dataclass(frozen=True)
class _Elsewhere:
    """Every method at a set of out-of-distribution rows, before a calibration."""

    name: str
    rows: PredictedRows
    methods: Mapping[str, Prediction]


def evaluate(run: Run) -> Evaluation:
    """Rows → Ω → select → fit → predict → calibrate → score; fitted once for all sets of test rows."""
    oracles = [(test, oracle_outputs(run, test)) for test in run.tests]  # first: a wrong one fails before the long work
    problem = open_problem(run)
    compared = [_compared(problem, test, oracle) for test, oracle in oracles]  # before the rest: it takes longest
    chosen = _chosen(problem)
    sets = [_predicted(problem, chosen, own) for own in compared]
    validation = _at_validation(problem, chosen, sets[0].known)
    ood = [_elsewhere(problem, chosen, sets[0].known, *each) for each in run.project.spec.data.ood_sets.items()]
    scored = []
    for own in sets:
        # Other sets have the numbers that a stored posterior keeps: those of all rows of the first set together.
        here = own.methods if own is sets[0] else tuple(sets[0].with_one_prior.values())
        held_out = HeldOut.of(problem, here if validation is None else validation, own.test)
        scored.append(_scored(problem, own, held_out, ood))
    result = result_of(problem, scored)
    for row in result.rows:
        if "retained" in row.why and row.value("retained") is not None:
            run.reporter.note(f"{row.name}: retained is {row.value('retained'):.3g}, {row.why['retained']}")
    return Evaluation(result, tuple(scored))


def _chosen(problem: Problem) -> Choices:
    """Every choice in the order asked for, then the references beside them."""
    chosen = choose(problem, problem.run.choices)
    return {choice: chosen.get(choice) for choice in problem.run.choices} | beside(problem)


def _predictions(
    problem: Problem,
    chosen: Choices,
    known: Comparison,
    full: Prediction | None,
    split: str,
) -> tuple[Prediction, ...]:
    """Of every choice at the rows of a split, in their order."""
    rows = problem.predicted(split)
    compact = {choice: own for choice, own in chosen.items() if isinstance(own, Chosen)}
    predictions: dict[Choice, Prediction] = {}
    for path in paths(list(compact.values())):
        made = predict(problem, path, rows, known)
        by_digest = {own.digest: prediction for own, prediction in zip(path, made, strict=True)}
        predictions |= {choice: by_digest[own.digest] for choice, own in compact.items() if own.digest in by_digest}
    for choice, own in chosen.items():
        if isinstance(own, Prediction) and rows.split == problem.predicted(TEST).split:
            predictions[choice] = own
        elif not choice.call.is_compact:
            inputs = ReferenceInputs(choice.call.name, problem, rows, full)
            predictions[choice] = load(choice.call.method.entry)(inputs)
    return tuple(known.about_targets(predictions[choice]) for choice in chosen)


def _compared(problem: Problem, test: TestSet, oracle: OracleOutputs) -> _Compared:
    """A tuned prior may differ by fold: in the rows that it was tuned on, which are those of the first set."""
    run, rows = problem.run, problem.predicted(test.split)
    parts = fold_problems(problem) if test == run.tests[0] else []
    known = Comparison(
        likelihood=problem.hyperparameters.likelihood,
        n_train=len(run.split("train")),
        targets=rows.targets,
        oracle=oracle.f,
        absent=Absent(full="--full none", oracle=oracle.missing, ood=NO_OOD),
    )
    full, fulls = None, list[Prediction]()
    if run.job.predicts_with_full:
        fulls = [full_prediction(own, own.predicted(test.split), known) for own in (problem, *parts)]
        full = known.about_targets(joined_folds(*fulls))
    if full is not None and full.freedom is not None and run.job.compares_with_full:
        ipv, off = known.ipv(full.freedom), 0.0
        if full.std_bounds is not None:
            off = known.ipv(problem.full.freedom.half_width)
        known = replace(known, of_full=FullNumbers(full.std, full.std_bounds, ipv, off))
    return _Compared(test, rows, parts, fulls, full, known)


def _predicted(problem: Problem, chosen: Choices, compared: _Compared) -> _Predicted:
    test, rows, full, known = compared.test, compared.rows, compared.full, compared.known
    each_problem = (problem, *compared.parts)
    whole, *by_fold = (_predictions(own, chosen, known, full, test.split) for own in each_problem)
    methods = tuple(joined_folds(*each) for each in zip(whole, *by_fold, strict=True))
    check_theorem_1(rows, methods, full)
    bounds = _bounds(problem, rows, methods)
    if bounds is not None:
        absent = replace(known.absent, full="--full bracket: it lies between w2_low and w2_high")
        low, high = (each.sqrt()[:, problem.means] for each in (bounds.low, bounds.high))
        known = replace(known, of_full=FullNumbers(std_bounds=(low, high)), absent=absent)
    with_one_prior = {each.name: each for each in (*whole, *compared.fulls[:1])}
    return _Predicted(test, rows, methods, full, known, bounds, with_one_prior)


def _at_validation(problem: Problem, chosen: Choices, known: Comparison) -> tuple[Prediction, ...] | None:
    """Every method at the validation rows, before a calibration; None if no number is fitted to them."""
    run, conformal = problem.run, problem.run.job.posterior.conformal is not None
    needed = conformal or run.calibrates or any(choice.call.name == TEMPERATURE for choice in run.choices)
    if not needed or run.held_out == TEST:
        return None
    needs_full = (conformal and run.job.predicts_with_full) or any(choice.call.is_full for choice in run.choices)
    full = full_prediction(problem, problem.held_out, known) if needs_full else None
    found = _predictions(problem, chosen, known, full, run.held_out)
    return found if full is None else (*found, full)


def _elsewhere(problem: Problem, chosen: Choices, known: Comparison, split: str, name: str) -> _Elsewhere:
    rows = problem.predicted(split)
    full = full_prediction(problem, rows, known) if problem.run.job.predicts_with_full else None
    found = [*_predictions(problem, chosen, known, full, split), *([] if full is None else [full])]
    return _Elsewhere(name, rows, {each.name: each for each in found})


def _bounds(problem: Problem, rows: PredictedRows, methods: Sequence[Prediction]) -> Bracket | None:
    if problem.run.job.posterior.full != "bracket":
        return None
    subnets = [each.outputs.variance for each in methods if each.is_subnet_posterior]
    with problem.run.store.timed("bracket"):
        return bracket(problem.omega, rows.jacobian, rows.products, full_rows(problem), subnets)


def _scored(problem: Problem, own: _Predicted, held_out: HeldOut, ood: Sequence[_Elsewhere]) -> ScoredSet:
    """With the numbers that are fitted to held-out rows."""
    known, n_asked = own.known, len(problem.run.choices)
    fitted = tuple(calibrated(problem, each, held_out) for each in own.methods)
    predictions, others = fitted[:n_asked], fitted[n_asked:]
    simple = rivals(problem, predictions, own.rows, held_out)
    shown = (*(known.about_targets(rival) for rival in simple), *others)
    judged = [*predictions, *shown, *([] if own.full is None else [own.full])]
    if problem.run.job.posterior.conformal is not None:
        known = replace(known, conformal=conformal_of_all(problem, judged, held_out.methods))
    here = {each.outputs: each.comparable for each in judged}
    if own.test == problem.run.tests[0] and problem.hyperparameters.by_fold:
        # Priors that differ by fold would disturb the order of the rows.
        here = at_other_rows(judged, own.with_one_prior, own.rows.f)
    sets = [OodSet(each.name, here, at_other_rows(judged, each.methods, each.rows.f)) for each in ood]
    rows, known = problem.run.split(own.test.split), replace(known, ood=tuple(sets))
    return ScoredSet(own.test, rows, predictions, known, shown, own.full, own.bounds)
