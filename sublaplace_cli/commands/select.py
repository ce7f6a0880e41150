"""`sublaplace select`: which k parameters, by which method."""

from typing import Any

from ..core.network.layout import Layout
from ..errors import UserError
from ..run.job import MethodCall
from ..run.problem import Rows, open_problem
from ..run.run import Run
from ..run.selections import Chosen
from ..run.selections import select as select_all


def select(run: Run) -> dict[str, Any]:
    """Rows → Ω → select."""
    (choice,) = run.choices
    rows = Rows(run)
    problem = open_problem(run, rows, rows.noise_outputs())
    chosen = select_all(problem, problem.scores, [choice])[choice]
    values = {
        "n_params": run.layout.size,
        "method": chosen.method,
        "k": chosen.k,
        "layers": _layer_counts(run.layout, chosen),
    }
    return problem.with_tuning(values)


def require_selector(call: MethodCall, command: str) -> None:
    """Refuse references, which choose no parameters."""
    if not call.selects:
        raise UserError(
            f"{command} needs a method that chooses parameters; '{call.name}' is a reference for evaluate",
            hint="use it with: sublaplace evaluate --method " + call.name,
        )


def _layer_counts(layout: Layout, chosen: Chosen) -> dict[str, int]:
    """How many of the chosen parameters are in each tensor."""
    counts = {}
    for parameter in layout.parameters:
        span = parameter.span
        inside = int(((chosen.indices >= span.start) & (chosen.indices < span.stop)).sum())
        if inside:
            counts[parameter.name] = inside
    return counts
