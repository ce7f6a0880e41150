"""`diagonal`: diagonal Laplace."""

from ...core.gaussian import Gaussian
from ...core.posterior.diagonal import DiagonalPosterior
from ...core.prediction import Prediction
from . import ReferenceInputs


def predict(inputs: ReferenceInputs) -> Prediction:
    problem, run = inputs.problem, inputs.problem.run
    data_diagonal = problem.scores.value.data_diagonal
    posterior = DiagonalPosterior(problem.hyperparameters.prior, data_diagonal, run.memory)
    with run.store.timed("predict"):
        covariance = posterior.covariance(inputs.rows.jacobian)
    return Prediction(inputs.name, None, Gaussian(inputs.f, covariance), posterior.freedom)
