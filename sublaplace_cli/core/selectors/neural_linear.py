"""All parameters of the last linear layer that runs."""

from ...errors import Reason, UserError
from . import Selection, SelectionProblem, SelectorFacts, all_of


def check(facts: SelectorFacts | SelectionProblem, _k: int | None) -> None:
    """There must be such a layer."""
    if not facts.last_linear:
        problem = "neural-linear found no trainable nn.Linear layer that runs in this model"
        raise UserError(problem, reason=Reason.NO_LINEAR_LAYER)


def neural_linear(problem: SelectionProblem, k: int | None) -> Selection:
    """All parameters of the last linear layer that runs; k is ignored."""
    check(problem, k)
    return all_of(problem, [part for part in problem.layout.parameters if part.name in problem.last_linear])
