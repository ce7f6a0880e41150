"""Theorem 1: no sub-network has a larger variance than one that contains it, or than the full posterior."""

from collections.abc import Sequence

import torch

from ...core.kernels.arithmetic import Arithmetic
from ...core.omega.gram_float32 import allowed_error
from ...core.posterior.bounds import require_not_larger
from ...core.prediction import Prediction
from ...run.problem import PredictedRows


def check_theorem_1(rows: PredictedRows, predictions: Sequence[Prediction], full: Prediction | None) -> None:
    """Every sub-network against the full posterior, and against those that contain it."""
    subnets = [prediction for prediction in predictions if prediction.is_subnet_posterior]
    products = rows.products if subnets else torch.empty(0)
    allowed = allowed_error(Arithmetic.named(rows.run.job.compute.gram_dtype))
    for small in subnets:
        variance = small.outputs.variance
        if full is not None:
            most = full.outputs.most_variance
            require_not_larger(variance, most, products, small.name, "the full posterior", allowed)
        for large in subnets:
            if _contains(large, small):
                require_not_larger(variance, large.outputs.variance, products, small.name, large.name)


def _contains(large: Prediction, small: Prediction) -> bool:
    if large.indices is None or small.indices is None or len(large.indices) <= len(small.indices):
        return False
    # Subsets of different methods are nested only by accident: not worth the check.
    return large.method == small.method and bool(torch.isin(small.indices, large.indices).all())
