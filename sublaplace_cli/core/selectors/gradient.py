"""Gradient-Laplace, Algorithm 1: the k largest (Hessian-weighted) mean squared gradients."""

from __future__ import annotations

from . import Selection, SelectionProblem, largest


def gradient(problem: SelectionProblem, k: int) -> Selection:
    """Rank score_j / v_j: where all priors are equal, just the score."""
    indices = largest(problem.score / problem.prior, k)
    return Selection(indices, problem.score[indices])
