"""`full`: full linearized Laplace, which all other methods are compared with."""

from dataclasses import replace

from ...catalog import FULL
from ...core.gaussian import Gaussian
from ...core.prediction import Comparison, FullNumbers, Prediction
from ..posteriors.predictions import content_of, prediction_key, read_prediction
from ..problem import PredictedRows, Problem
from ..rows.test_sets import TestSet
from ..store import Content
from . import ReferenceInputs


def predict(inputs: ReferenceInputs) -> Prediction:
    assert inputs.full is not None, "it was computed first"
    return inputs.full


def full_prediction(problem: Problem, rows: PredictedRows, known: Comparison) -> Prediction:
    """The full posterior at these rows; at the test rows stored at once, because it often takes the longest."""
    run, p, f = problem.run, problem.run.layout.size, rows.jacobian.outputs
    if run.full_is_certified:
        own = rows.test or TestSet(rows.split)
        found = problem.full.certifier.at(rows.split, rows.jacobian, dict(own.inputs))
        outputs = Gaussian(f, found.covariance, variance_bounds=(found.low, found.high))
        return Prediction(FULL, p, outputs, problem.full.freedom.value)

    def make() -> Prediction:
        covariance = problem.full.exact_for(rows.jacobian).covariance(rows.jacobian, rows.products)
        return Prediction(FULL, p, Gaussian(f, covariance), problem.full.exact.freedom)

    def write(made: Prediction) -> Content:
        std_full = known.about_targets(made).std if run.job.compares_with_full else None
        return content_of(made, replace(known, of_full=FullNumbers(std_full)))

    if rows.test is None:
        return make()
    key = prediction_key(rows, FULL, p, step="full")
    return run.store.get(key, make, lambda artifact: read_prediction(run, artifact, f), write).value
