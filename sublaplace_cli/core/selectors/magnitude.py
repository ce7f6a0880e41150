"""The k largest parameters by absolute value."""

from ...errors import UserError
from . import Selection, SelectionProblem, largest


def magnitude(problem: SelectionProblem, k: int) -> Selection:
    """The k largest |θ|."""
    if not bool(problem.theta.isfinite().all()):
        raise UserError("magnitude needs the parameters of a network; they are not known or not finite")
    sizes = problem.theta.abs()
    indices = largest(sizes, k)
    return Selection(indices, sizes[indices])
