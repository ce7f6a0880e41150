"""What an artifact must hold, by kind. It is checked when one is opened: anybody can redo a checksum.

Metadata are pydantic models; keys that are not read are ignored. Tensors have rules: type, axes, and the range of their
numbers. Axes of the same name have the same length.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from ...catalog import FULL, LINKS, METHODS, OUTPUTS, RESCALES, TASKS
from ..spec.models import WrapSpec
from ..spec.part import described
from ..spec.preparing import StandardiseSpec
from .tensor_rules import TensorRule, negative, no_factor, not_positive

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Size = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**63)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1)]
LONGEST_FIELD = 80


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
    rules: ClassVar[Mapping[str, TensorRule]] = {}

    def tensor_rules(self) -> Mapping[str, TensorRule]:
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


class JacobianData(RunMetadata):
    stored: bool

    def tensor_rules(self) -> Mapping[str, TensorRule]:
        rows = {"outputs": TensorRule("F64", ("rows", "outputs")), "rows": TensorRule("I64", ("rows",))}
        blocks = [name for name in self.tensors if name.startswith("J/")]
        return rows | {name: self._block_rule(name) for name in blocks}

    def _block_rule(self, name: str) -> TensorRule:
        entry = self.tensors[name]
        return TensorRule(entry.dtype, ("rows", *(f"{name}, axis {i}" for i in range(1, len(entry.shape)))))


class ScoreData(RunMetadata):
    rules = {"score": TensorRule("F64", ("p",), negative), "diagonal": TensorRule("F64", ("p",), not_positive)}

    def known_axes(self) -> dict[str, int]:
        return {"p": self.n_params}


class IndexData(RunMetadata):
    method: Name
    rules = {"indices": TensorRule("I64", ("k",)), "scores": TensorRule("F64", ("k",))}

    @model_validator(mode="after")
    def _can_be_selected(self) -> Self:
        known = METHODS.get(self.method)
        if known is not None and known.kind != "selector":
            raise ValueError(f"its method is '{self.method}', which selects no parameters")
        return self


class PathData(IndexData):
    rules = {**IndexData.rules, "retained": TensorRule("F64", ("k",))}


class FullPosteriorData(RunMetadata):
    method: Name
    freedom: float
    condition: NotNegative
    noise_variance: Positive | None
    prior_precision: Positive | list[Annotated[tuple[str, Positive], Strict(False)]]
    rules = {"factor": TensorRule("F64", ("side", "side"), no_factor)}

    @model_validator(mode="after")
    def _noise_belongs_to_the_task(self) -> Self:
        task, outputs = self.spec.task, self.spec.outputs
        known = TASKS[task] if outputs is None else OUTPUTS.get((task, outputs))
        if known is None or known.one_noise != (self.noise_variance is not None):
            named = task if outputs is None else f"{task}, its outputs are {described(outputs)}"
            raise ValueError(f"its noise_variance is {self.noise_variance}, but its task is {named}")
        return self


class Serving(Checked):
    network_sha256: Sha256
    row_shapes: Annotated[list[list[Size]], Field(min_length=1)]
    integers_as_floats: bool


class SubnetPosteriorData(FullPosteriorData):
    form: Literal["primal", "dual"]
    rescale: NotNegative | None
    remainder: NotNegative
    rescaling: Annotated[str, Field(pattern=f"^({'|'.join(RESCALES)})$")]
    link: Annotated[str, Field(pattern=f"^({'|'.join(LINKS)})$")] | None
    noise_factor: Positive
    n_train: Count
    row_outputs: Count | None = None  # rows of A per training row; not in files of early versions: all outputs
    scale_shapes: dict[Literal["input", "target"], list[Size]]
    serving: Serving | None = None  # not in files of early versions
    classes: Annotated[list[Name], Field(min_length=2)] | None = None  # labels by class number, if they are texts
    columns: list[str] | None = None  # names of the input columns in order, where they have names
    rest: Annotated[list[str], Field(min_length=1)] | None = None  # the input columns that the spec calls so

    def tensor_rules(self) -> Mapping[str, TensorRule]:
        side = "k" if self.form == "primal" else "side"
        rules = {"indices": TensorRule("I64", ("k",)), "prior": TensorRule("F64", ("k",), not_positive)}
        rules["factor"] = TensorRule("F64", (side, side), no_factor)
        if self.form == "dual":
            rules["columns"] = TensorRule("F64", ("k", side))
        for name in self.scale_shapes:
            rules[f"{name}_mean"] = TensorRule("F64", (name,))
            rules[f"{name}_std"] = TensorRule("F64", (name,), not_positive)
        return rules

    def known_axes(self) -> dict[str, int]:
        return {name: math.prod(shape) for name, shape in self.scale_shapes.items()}

    @model_validator(mode="after")
    def _scales_are_those_of_the_spec(self) -> Self:
        for name, mode in self.spec.data.standardise:
            if (mode == "none") == (name in self.scale_shapes):
                held = "holds" if name in self.scale_shapes else "holds no"
                raise ValueError(f"it {held} mean and std for its {name}, unlike its spec (data.standardise.{name})")
        return self


class PredictionData(RunMetadata):
    method: Name
    k: Count | None
    freedom: float | None
    rescale: NotNegative | None
    remainder: NotNegative
    rules = {
        "mean": TensorRule("F64", ("rows", "outputs")),
        "std": TensorRule("F64", ("rows", "outputs"), negative),
        "covariance": TensorRule("F64", ("rows", "outputs", "outputs"), lambda c: negative(c.diagonal(0, 1, 2))),
    }


class TunedData(RunMetadata):
    rules = {"alphas": TensorRule("F64", ("precisions",), not_positive), "others": TensorRule("F64", ("numbers",))}
    by_fold: list[Positive]

    def known_axes(self) -> dict[str, int]:
        return {"numbers": 4}


SCHEMAS: dict[str, type[Metadata]] = {
    "jacobians": JacobianData,
    "scores": ScoreData,
    "indices": IndexData,
    "path": PathData,
    "posterior": SubnetPosteriorData,
    "predictions": PredictionData,
    "hyperparameters": TunedData,
}


def check_metadata(kind: str, meta: Mapping[str, Any]) -> Mapping[str, TensorRule]:
    """The rules of its tensors; a ValueError that names the first wrong field."""
    is_full = kind == "posterior" and meta.get("method") == FULL
    schema = FullPosteriorData if is_full else SCHEMAS.get(kind, Metadata)
    try:
        return schema.model_validate(meta).tensor_rules()
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from None


def _first_problem(error: ValidationError) -> str:
    found = error.errors(include_url=False)[0]
    field = ".".join(map(str, found["loc"]))[:LONGEST_FIELD]
    if found["type"] == "missing":
        return f"its metadata have no '{field}'"
    message = found["msg"].removeprefix("Value error, ")
    is_our_own = "error" in found.get("ctx", {})
    return message if is_our_own or not field else f"{field}: {message}, got {described(found['input'])}"
