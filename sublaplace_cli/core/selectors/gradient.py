"""Gradient-Laplace, Algorithm 1: the k largest (Hessian-weighted) mean squared gradients."""

from . import Selection, SelectionProblem, largest


def gradient(problem: SelectionProblem, k: int) -> Selection:
    """The k largest score_j / v_j; with equal priors these are the k largest scores."""
    indices = largest(problem.score / problem.prior, k)
    return Selection(indices, problem.score[indices])
