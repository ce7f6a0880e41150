"""The k smallest entries of diag(Ω), as earlier sub-network methods choose."""

from . import Selection, SelectionProblem, smallest


def subnet_diagonal(problem: SelectionProblem, k: int) -> Selection:
    """The k smallest of diag(Ω)."""
    diagonal = problem.data_diagonal + problem.prior
    indices = smallest(diagonal, k)
    return Selection(indices, diagonal[indices])
