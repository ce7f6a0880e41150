"""`full`: full linearized Laplace, which all other methods are compared with."""

from dataclasses import replace

from torch import Tensor

from ...catalog import FULL
from ...core.posterior.full import FullPosterior
from ...core.prediction import Comparison, Prediction
from ..predictions import content_of, prediction_key, read_prediction
from ..problem import Problem
from ..store import Content
from . import ReferenceInputs


def predict(inputs: ReferenceInputs) -> Prediction:
    assert inputs.full is not None, "it was computed first"
    return inputs.full


def full_prediction(problem: Problem, known: Comparison) -> Prediction:
    """The full posterior at the test rows; stored at once, because it often takes the longest."""
    run, f = problem.run, problem.rows.test.jacobian.outputs

    def write(made: Prediction) -> Content:
        return content_of(made, replace(known, std_full=made.std if run.job.compares_with_full else None))

    return run.store.get(
        prediction_key(run, FULL, run.layout.size, step="full"),
        lambda: _prediction(problem, problem.full, problem.test_norms),
        lambda artifact: read_prediction(run, artifact, f),
        write,
    ).value


def _prediction(problem: Problem, full: FullPosterior, norms: Tensor) -> Prediction:
    test = problem.rows.test.jacobian
    variance = full.variance(test, norms)
    return Prediction(FULL, problem.run.layout.size, test.outputs, variance, full.freedom)
