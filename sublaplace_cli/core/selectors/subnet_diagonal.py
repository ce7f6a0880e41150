"""The k smallest entries of diag(Ω), the choice of earlier sub-network methods."""

from . import Selection, SelectionProblem, smallest


def subnet_diagonal(problem: SelectionProblem, k: int) -> Selection:
    """The k smallest of diag(Ω)."""
    diagonal = problem.data_diagonal + problem.prior
    indices = smallest(diagonal, k)
    return Selection(indices, diagonal[indices])
