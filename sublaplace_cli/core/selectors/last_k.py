"""The last k entries of the flat parameter vector."""

import torch

from . import Selection, SelectionProblem


def last_k(problem: SelectionProblem, k: int) -> Selection:
    """The last k of the flat vector, last first, so that the choice for a smaller k is a prefix."""
    p = problem.layout.size
    indices = torch.arange(p - 1, p - 1 - k, -1, device=problem.score.device)
    return Selection(indices, problem.score[indices])
