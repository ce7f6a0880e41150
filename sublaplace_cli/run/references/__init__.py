"""Methods without a sub-network, one file each: `predict(inputs) -> Prediction`, and `check(run)` where needed.

To add one: write such a file and add one line to `catalog.METHODS`.
"""

from dataclasses import dataclass

from torch import Tensor

from ...core.prediction import Prediction
from ..problem import PredictedRows, Problem


@dataclass(frozen=True)
class ReferenceInputs:
    """What a reference may use."""

    name: str  # of the method
    problem: Problem
    rows: PredictedRows
    full: Prediction | None  # of the full posterior at these rows, if it was requested

    @property
    def f(self) -> Tensor:
        """Outputs of the network at the rows (M, C)."""
        return self.rows.f
