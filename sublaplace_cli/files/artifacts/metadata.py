"""What all artifacts must hold, in their metadata and tensors: the base of the schema of each kind."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator

from ...catalog import TASKS
from ..spec.models import WrapSpec
from ..spec.preparing import StandardiseSpec
from .tensor_rules import TensorRule

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Size = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**63)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1)]
Rules = Mapping[str, TensorRule]


class Checked(BaseModel):
    """Metadata with strict types and finite numbers."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="ignore")


class TensorEntry(Checked):
    """One tensor as the metadata describe it."""

    dtype: Literal["F32", "F64", "I64"]
    shape: Annotated[list[Size], Field(min_length=1)]
    rows_per_piece: Count
    sha256: list[Sha256]

    @model_validator(mode="after")
    def _one_checksum_per_piece(self) -> Self:
        expected = max(1, -(-self.shape[0] // self.rows_per_piece))
        if len(self.sha256) != expected:
            raise ValueError(f"expected {expected} checksums, got {len(self.sha256)}")
        return self


class RowProgress(Checked):
    """The record of an unfinished file of rows."""

    identity: str
    rows_done: Size
    digests: dict[str, list[Sha256]]
    running: dict[str, Sha256]


class Metadata(Checked):
    """Common to artifacts of every kind."""

    tensors: dict[str, TensorEntry]
    rules: ClassVar[Rules] = {}

    def tensor_rules(self) -> Rules:
        """The tensors that it must have."""
        return self.rules

    def known_axes(self) -> dict[str, int]:
        """Lengths of axes that the metadata determine."""
        return {}

    @model_validator(mode="after")
    def _tensors_obey(self) -> Self:
        lengths = self.known_axes()
        for name, rule in self.tensor_rules().items():
            entry = self.tensors.get(name)
            if entry is None:
                raise ValueError(f"it holds no tensor '{name}'")
            if entry.dtype != rule.dtype:
                raise ValueError(f"'{name}' has the type {entry.dtype}, expected {rule.dtype}")
            expected = [lengths.get(axis, length) for axis, length in zip(rule.axes, entry.shape, strict=False)]
            lengths |= zip(rule.axes, expected, strict=False)
            expected = [lengths.get(axis, 1) for axis in rule.axes]  # an axis may occur twice in one tensor
            if entry.shape != expected or 0 in expected:
                shape = ", ".join(rule.axes)
                raise ValueError(f"'{name}' has shape {tuple(entry.shape)}, expected ({shape}) = {tuple(expected)}")
        return self


class ModelFacts(Checked):
    wrap: WrapSpec | None = None


class DataFacts(Checked):
    standardise: StandardiseSpec = StandardiseSpec()
    transforms: list[dict[str, Any]] = Field(default_factory=list)


class SpecFacts(Checked):
    """The part of the spec that is read from an artifact."""

    task: Literal[tuple(TASKS)]  # type: ignore[valid-type]
    outputs: str | None = None
    model: ModelFacts
    data: DataFacts


class RangeData(Checked):
    shape: list[Size]
    low: float
    high: float


class ProbeData(Checked):
    """What the network computed at made-up rows."""

    ranges: Annotated[list[RangeData], Field(min_length=1)]
    outputs: list[float]
    gradients: list[float]


class RunMetadata(Metadata):
    """Common to the artifacts of a run folder."""

    fingerprint: str
    inputs: dict[str, str]
    spec: SpecFacts
    weights_sha256: str
    probe: ProbeData | None = None  # of a network that is built by code; not in files of early versions
    function_sha256: Sha256 | None = None  # of the files of a network that gives no such numbers
    data_sha256: str
    texts_sha256: Sha256 | None = None  # of how texts became tokens
    parameters: list[Annotated[tuple[str, list[Size], Size], Strict(False)]]

    @property
    def n_params(self) -> int:
        return sum(math.prod(shape) for _, shape, _ in self.parameters)

    @model_validator(mode="after")
    def _indices_fit(self) -> Self:
        if "indices" in self.tensors and self.tensors["indices"].shape[0] > self.n_params:
            raise ValueError(f"'indices' has more entries than the network has parameters ({self.n_params})")
        return self
