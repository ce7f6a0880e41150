"""`constant`: one variance for all rows and outputs, fitted to the full posterior on left-out training rows."""

import torch

from ...core.gaussian import Gaussian, diagonal_covariance
from ...core.posterior.rescale import fit_scale
from ...core.prediction import Prediction
from ..rows.sampled import require_all_outputs
from ..run import Run
from . import ReferenceInputs


def check(run: Run) -> None:
    """Left-out variances are those of all outputs."""
    require_all_outputs(run.passes, "--method constant")


def predict(inputs: ReferenceInputs) -> Prediction:
    sigma = inputs.problem.full_left_out.clamp(min=0.0).sqrt().flatten()
    variance = (fit_scale(sigma, sigma.new_ones(sigma.shape)) or 0.0) ** 2
    covariance = diagonal_covariance(torch.full_like(inputs.f, variance))
    return Prediction(inputs.name, None, Gaussian(inputs.f, covariance), None)
