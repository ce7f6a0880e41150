"""All parameters whose name matches a glob."""

from ...errors import UserError, suggestion
from ..network.layout import Layout, Parameter
from . import Selection, SelectionProblem, SelectorFacts, all_of


def check(facts: SelectorFacts, _k: int | None) -> None:
    """The glob must match at least one parameter."""
    assert facts.pattern is not None, "the caller chose this method by its pattern"
    _matching(facts.layout, facts.pattern)


def by_name(problem: SelectionProblem, pattern: str) -> Selection:
    """All parameters whose name matches the glob."""
    return all_of(problem, _matching(problem.layout, pattern))


def _matching(layout: Layout, pattern: str) -> list[Parameter]:
    parameters = layout.matching(pattern)
    if not parameters:
        names = [parameter.name for parameter in layout.parameters]
        raise UserError(f"no trainable parameter matches '{pattern}'", hint=suggestion(pattern, names))
    return parameters
