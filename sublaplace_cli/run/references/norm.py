"""`norm`: covariance b·G V⁻¹ Gᵀ, b fitted to the full posterior on left-out training rows. No sub-network is used."""

from ...core.gaussian import Gaussian
from ...core.posterior.rescale import Rescale, fit_scale
from ...core.prediction import Prediction
from . import ReferenceInputs


def predict(inputs: ReferenceInputs) -> Prediction:
    """A calibration replaces the fit to the full posterior."""
    problem, products = inputs.problem, inputs.rows.products
    if problem.run.calibrates:
        return Prediction(inputs.name, None, Gaussian(inputs.f, products), None)
    sigma = problem.full_left_out[:, problem.means].clamp(min=0.0).sqrt().flatten()
    norms = problem.train_products.diagonal(dim1=1, dim2=2)[:, problem.means].flatten()
    root = fit_scale(sigma, norms.sqrt())
    b = 0.0 if root is None else root**2
    return Prediction(inputs.name, None, Gaussian(inputs.f, b * products), None, Rescale(1.0, b))
