"""How the metrics of a method change from one set of test rows to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CLEAR = 2.0  # standard errors from which on a difference counts


@dataclass(frozen=True)
class Difference:
    """A mean over the rows of a set of test rows, minus that of the same method over the rows of the first set."""

    set: str
    reference: str  # the first set
    method: str
    k: int | None
    metric: str
    difference: float
    standard_error: float | None
    paired: bool  # whether it is that of the differences by row; otherwise the rows of the sets are independent

    @property
    def is_clear(self) -> bool:
        return self.standard_error is not None and abs(self.difference) > CLEAR * self.standard_error


def difference_details(differences: Sequence[Difference]) -> dict[str, Any]:
    """For the details of a result; empty if there is one set only."""
    return {"differences": [dict(vars(each)) for each in differences]} if differences else {}
