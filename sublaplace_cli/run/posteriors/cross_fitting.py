"""Priors that were tuned on the test rows: each part of these is predicted with a prior that has not seen it."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from ...core.gaussian import Gaussian
from ...core.prediction import Prediction
from ...core.tuning.calibration import fold_numbers
from ..problem import Problem
from ..store import ScratchStore


def fold_problems(problem: Problem) -> list[Problem]:
    """The problem with the hyperparameters of each fold; empty if they are the same for all rows.

    What they compute is not stored: artifacts hold the numbers of the common prior.
    """
    run = replace(problem.run, store=ScratchStore(problem.run.store))
    return [Problem(run, problem.rows, settled) for settled in problem.hyperparameters.by_fold]


def joined_folds(whole: Prediction, *by_fold: Prediction) -> Prediction:
    """The prediction with, in the rows of each fold, the covariances of that fold's prior."""
    if not by_fold:
        return whole
    own, mean = whole.outputs, whole.outputs.mean
    fold = fold_numbers(len(mean), len(by_fold)).to(mean.device)

    def joined(of: Callable[[Gaussian], Tensor]) -> Tensor:
        values = of(own).clone()
        for number, each in enumerate(by_fold):
            values[fold == number] = of(each.outputs)[fold == number]
        return values

    bounds = None
    if own.variance_bounds is not None:
        bounds = joined(lambda each: each.least_variance), joined(lambda each: each.most_variance)
    covariance = joined(lambda each: each.covariance)
    return replace(whole, outputs=Gaussian(mean, covariance, variance_bounds=bounds))
