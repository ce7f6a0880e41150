"""`sublaplace select`: which k parameters, by which method."""

from typing import Any

from torch import Tensor

from ..core.network.layout import Layout
from ..run.choosing.selections import select as select_all
from ..run.problem import open_problem
from ..run.run import Run


def select(run: Run) -> dict[str, Any]:
    """Rows → Ω → select."""
    problem = open_problem(run)
    (chosen,) = select_all(problem, run.choices).values()
    assert chosen.indices is not None, "other methods were refused"
    counts = layer_counts(run.layout, chosen.indices)
    values = {
        "n_params": run.layout.size,
        "method": chosen.method,
        "k": chosen.k,
        "layers": {name: count for name, count in counts.items() if count},
    }
    return problem.with_tuning(values)


def layer_counts(layout: Layout, indices: Tensor) -> dict[str, int]:
    """How many of the chosen parameters are in each tensor of the network."""
    spans = {parameter.name: parameter.span for parameter in layout.parameters}
    return {name: int(((indices >= span.start) & (indices < span.stop)).sum()) for name, span in spans.items()}
