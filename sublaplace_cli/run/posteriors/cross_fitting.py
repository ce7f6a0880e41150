"""Priors that were tuned on the test rows: each part of these is predicted with a prior that has not seen it."""

from dataclasses import replace

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
    covariance = whole.outputs.covariance.clone()
    fold = fold_numbers(len(covariance), len(by_fold)).to(covariance.device)
    for number, own in enumerate(by_fold):
        covariance[fold == number] = own.outputs.covariance[fold == number]
    return replace(whole, outputs=Gaussian(whole.outputs.mean, covariance))
