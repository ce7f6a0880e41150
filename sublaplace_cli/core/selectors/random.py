"""A seeded uniform choice."""

import torch

from . import Selection, SelectionProblem


def random(problem: SelectionProblem, k: int) -> Selection:
    """A seeded uniform choice, drawn on the CPU so that every device gets the same one."""
    generator = torch.Generator().manual_seed(problem.seed)
    indices = torch.randperm(problem.layout.size, generator=generator)[:k].to(problem.score.device)
    return Selection(indices, problem.score[indices])
