"""The k largest parameters by absolute value."""

from . import Selection, SelectionProblem, largest


def magnitude(problem: SelectionProblem, k: int) -> Selection:
    """The k largest |θ|."""
    sizes = problem.theta.abs()
    indices = largest(sizes, k)
    return Selection(indices, sizes[indices])
