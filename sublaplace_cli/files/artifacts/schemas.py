"""What an artifact must hold, by kind. It is checked when one is opened: anybody can redo a checksum.

Metadata are pydantic models; keys that are not read are ignored. Tensors have rules: type, axes, and the range of their
numbers. Axes of the same name have the same length.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import ValidationError, model_validator

from ...catalog import FULL, METHODS
from ..spec.part import described
from .metadata import Count, Metadata, Name, NotNegative, Positive, Rules, RunMetadata, Size
from .posterior_schemas import CompactPosteriorData, FullPosteriorData
from .tensor_rules import TensorRule, negative, not_positive

LONGEST_FIELD = 80


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
    rules: ClassVar[Rules] = {
        "score": TensorRule("F64", ("p",), negative),
        "diagonal": TensorRule("F64", ("p",), not_positive),
    }

    def known_axes(self) -> dict[str, int]:
        return {"p": self.n_params}


class IndexData(RunMetadata):
    method: Name
    rules: ClassVar[Rules] = {"indices": TensorRule("I64", ("k",)), "scores": TensorRule("F64", ("k",))}

    @model_validator(mode="after")
    def _can_be_selected(self) -> Self:
        known = METHODS.get(self.method)
        if known is not None and known.kind != "selector":
            raise ValueError(f"its method is '{self.method}', which selects no parameters")
        return self


class PathData(IndexData):
    rules: ClassVar[Rules] = {**IndexData.rules, "retained": TensorRule("F64", ("k",))}


class PredictionData(RunMetadata):
    method: Name
    k: Count | None
    freedom: float | None
    rescale: NotNegative | None
    remainder: NotNegative
    rules: ClassVar[Rules] = {
        "mean": TensorRule("F64", ("rows", "outputs")),
        "std": TensorRule("F64", ("rows", "outputs"), negative),
        "covariance": TensorRule("F64", ("rows", "outputs", "outputs"), lambda c: negative(c.diagonal(0, 1, 2))),
    }


class CertifiedData(RunMetadata):
    tolerance: Positive
    rules: ClassVar[Rules] = {
        "low": TensorRule("F64", ("rows", "outputs"), negative),
        "high": TensorRule("F64", ("rows", "outputs"), negative),
        "covariance": TensorRule("F64", ("rows", "outputs", "outputs"), lambda c: negative(c.diagonal(0, 1, 2))),
        "steps": TensorRule("F64", ("rows",), negative),
    }


class SolutionData(RunMetadata):
    first_row: Size
    rules: ClassVar[Rules] = {"z": TensorRule("F64", ("rows", "vectors"))}


class FreedomData(RunMetadata):
    rules: ClassVar[Rules] = {"numbers": TensorRule("F64", ("numbers",), negative)}

    def known_axes(self) -> dict[str, int]:
        return {"numbers": 2}


class TunedData(RunMetadata):
    rules: ClassVar[Rules] = {
        "alphas": TensorRule("F64", ("precisions",), not_positive),
        "others": TensorRule("F64", ("numbers",)),
    }
    by_fold: list[Positive]

    def known_axes(self) -> dict[str, int]:
        return {"numbers": 4}


SCHEMAS: dict[str, type[Metadata]] = {
    "jacobians": JacobianData,
    "scores": ScoreData,
    "indices": IndexData,
    "path": PathData,
    "posterior": CompactPosteriorData,
    "predictions": PredictionData,
    "certified": CertifiedData,
    "solutions": SolutionData,
    "freedom": FreedomData,
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
