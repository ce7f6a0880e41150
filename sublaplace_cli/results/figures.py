"""Numbers that pictures are drawn from: calibration, σ against σ_full, and the layers of each sub-network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """One line or point cloud of a picture."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class LayerShare:
    """How many of a layer's parameters each sub-network holds."""

    name: str
    size: int
    chosen: Mapping[str, int]  # by label of the sub-network


@dataclass(frozen=True)
class Figures:
    """Data of the pictures, in addition to the rows of the result."""

    calibration_axes: tuple[str, str]  # labels of x and y
    calibration: Sequence[Series]
    scatter: Sequence[Series]  # σ_full and σ
    layers: Sequence[LayerShare]
    missing: Mapping[str, str]  # why a picture cannot be drawn, by its kind
