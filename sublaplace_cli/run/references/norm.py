"""`norm`: covariance b·G V⁻¹ Gᵀ, b fitted to the full posterior on left-out training rows. No sub-network is used."""

from ...core.gaussian import Gaussian
from ...core.posterior.rescale import Rescale, fit_scale
from ...core.prediction import Prediction
from ..rows.sampled import require_all_outputs
from ..run import Run
from . import ReferenceInputs


def check(run: Run) -> None:
    """Left-out variances are those of all outputs."""
    require_all_outputs(run.passes, "--method norm")


def predict(inputs: ReferenceInputs) -> Prediction:
    problem = inputs.problem
    sigma = problem.full_left_out.clamp(min=0.0).sqrt().flatten()
    norms = problem.train_products.diagonal(dim1=1, dim2=2).flatten()
    root = fit_scale(sigma, norms.sqrt())
    b = 0.0 if root is None else root**2
    return Prediction(inputs.name, None, Gaussian(inputs.f, b * problem.test_products), None, Rescale(1.0, b))
