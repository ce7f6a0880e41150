"""References that every table shows beside the methods that were asked for, where they cost little."""

import torch

from ...catalog import METHODS, load
from ...core.prediction import Prediction
from ...files.spec.splits import TEST
from ..method_calls import Choice, MethodCall
from ..problem import Problem
from ..run import Run
from . import ReferenceInputs

MOST_ROWS = 4000  # of the full posterior: leaving each of them out takes about as long as fitting it
MOST_NUMBERS = 2 * 10**9  # of the training rows' Jacobian: one more pass over it takes seconds


def beside(problem: Problem) -> dict[Choice, Prediction]:
    """Those that were not asked for, are cheap, and have finite variances: their predictions of the test rows."""
    found = {Choice(call, None): _prediction(problem, call) for call in cheap_calls(problem.run)}
    return {choice: own for choice, own in found.items() if own is not None}


def cheap_calls(run: Run) -> list[MethodCall]:
    """By the sizes of the problem alone: the rows of a table must not depend on the memory of a machine.

    A prior of its own for every fold would need as many full posteriors.
    """
    asked, rows = {choice.call.method for choice in run.choices}, len(run.split("train")) * run.passes.n_outputs
    # Where variances are certified, those of a sample of the training rows are known anyway.
    is_large = not run.full_is_certified and (rows > MOST_ROWS or rows * run.layout.size > MOST_NUMBERS)
    by_fold = hasattr(run.project.spec.posterior.prior_precision, "tune") and run.held_out == "test"
    if run.job.command != "evaluate" or not run.job.compares_with_full or is_large or by_fold or run.samples("train"):
        return []
    return [MethodCall(name, own) for name, own in METHODS.items() if own.beside and own not in asked]


def _prediction(problem: Problem, call: MethodCall) -> Prediction | None:
    """None if it has no number: where a network is certain of a training row, its left-out variance may be none."""
    try:
        found = load(call.method.entry)(ReferenceInputs(call.name, problem, problem.predicted(TEST), None))
    except torch.linalg.LinAlgError:
        return None
    return found if bool(found.outputs.covariance.isfinite().all()) else None
