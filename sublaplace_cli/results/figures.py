"""What pictures are drawn from, as frozen records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """One line or point cloud of a picture."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class CalibrationLine(Series):
    """A line of points within ± one standard error, and how many rows lie in equal parts of 0 to 1."""

    low: Sequence[float]
    high: Sequence[float]
    counts: Sequence[int]


@dataclass(frozen=True)
class LayerShare:
    """How many of a layer's parameters each sub-network holds."""

    name: str
    size: int
    chosen: Mapping[str, int]  # by label of the sub-network


@dataclass(frozen=True)
class OodScore:
    """A score of one method at the test rows and at each set of out-of-distribution rows."""

    method: str
    score: str  # label of its axis
    values: Mapping[str, Sequence[float]]  # by set of rows, the test rows first; empty if the method has no such score
    auroc: Mapping[str, float]  # by set


@dataclass(frozen=True)
class Figures:
    """Data of the pictures, in addition to the rows of the result."""

    calibration_axes: tuple[str, str, str]  # labels of x, of y, and of the counts
    calibration: Sequence[CalibrationLine]
    risk_label: str  # of the y-axis of `risk_coverage`
    risk_coverage: Sequence[Series]  # share of the rows that are kept, and their mean risk
    scatter: Sequence[Series]  # σ_full and σ
    layers: Sequence[LayerShare]
    missing: Mapping[str, str]  # why a picture cannot be drawn, by its kind
    ood: Sequence[OodScore] = ()
    calibration_left_out: int = 0  # lines that would make the picture too full
    test_set: str | None = None  # that they are about, if there are several: the first one

    @property
    def of_set(self) -> str:
        """“ of clean”, after “test rows” in a title."""
        return "" if self.test_set is None else f" of {self.test_set}"
