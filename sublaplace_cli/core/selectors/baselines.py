"""What people did before, and what every comparison needs beside it."""

from __future__ import annotations

import torch

from ...errors import UserError, suggestion
from ..network.layout import Layout, Parameter
from . import Selection, SelectionProblem, largest, smallest


def subnet_diagonal(problem: SelectionProblem, k: int) -> Selection:
    """The k smallest of diag(Ω)."""
    diagonal = problem.data_diagonal + problem.prior
    indices = smallest(diagonal, k)
    return Selection(indices, diagonal[indices])


def last_k(problem: SelectionProblem, k: int) -> Selection:
    """The trailing k of the flat vector, last first, so that a smaller k is a prefix."""
    p = problem.layout.size
    indices = torch.arange(p - 1, p - 1 - k, -1, device=problem.score.device)
    return Selection(indices, problem.score[indices])


def random(problem: SelectionProblem, k: int) -> Selection:
    """A seeded uniform choice, drawn on the CPU so that every device gets the same one."""
    generator = torch.Generator().manual_seed(problem.seed)
    indices = torch.randperm(problem.layout.size, generator=generator)[:k].to(problem.score.device)
    return Selection(indices, problem.score[indices])


def magnitude(problem: SelectionProblem, k: int) -> Selection:
    """The k largest |θ|."""
    sizes = problem.theta.abs()
    indices = largest(sizes, k)
    return Selection(indices, sizes[indices])


def neural_linear(problem: SelectionProblem, _k: int) -> Selection:
    """All parameters of the last linear layer that runs."""
    require_last_linear(problem.last_linear)
    parameters = [q for q in problem.layout.parameters if q.name in problem.last_linear]
    return _whole(problem, problem.layout.indices(parameters))


def require_last_linear(names: tuple[str, ...]) -> None:
    """neural-linear needs a layer to take."""
    if not names:
        raise UserError(
            "neural-linear found no trainable nn.Linear layer that runs in this model",
            hint="name the parameters yourself: --method 'names:PATTERN'",
        )


def by_name(problem: SelectionProblem, pattern: str) -> Selection:
    """All parameters whose name matches the glob."""
    return _whole(problem, problem.layout.indices(require_match(problem.layout, pattern)))


def require_match(layout: Layout, pattern: str) -> list[Parameter]:
    """The parameters that a glob means, at least one."""
    parameters = layout.matching(pattern)
    if not parameters:
        names = [q.name for q in layout.parameters]
        raise UserError(f"no trainable parameter matches 'names:{pattern}'", hint=suggestion(pattern, names))
    return parameters


def _whole(problem: SelectionProblem, indices: torch.Tensor) -> Selection:
    indices = indices.to(problem.score.device)
    return Selection(indices, problem.score[indices])
