"""Methods without a sub-network, one file each: `predict(inputs) -> Prediction`, and `check(run)` where needed.

To add one: write such a file and add one line to `catalog.METHODS`.
"""

from dataclasses import dataclass

from torch import Tensor

from ...core.prediction import Prediction
from ..problem import Problem


@dataclass(frozen=True)
class ReferenceInputs:
    """What a reference may use."""

    name: str  # of the method
    problem: Problem
    f: Tensor  # outputs of the network at the test rows (M, C)
    full: Prediction | None  # of the full posterior, if it was requested
