"""What is done to each row before the network sees it, as typed, frozen records."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator

from ...errors import suggestion
from . import values
from .part import Finding, Part, refuse, refused, wrong


class FixedMeanStd(Part):
    """Fixed numbers to standardise with."""

    mean: values.Numbers
    std: Annotated[float | list[float], values.by_hand(values.one_or_list(values.positive))]

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        mean, std = raw.get("mean"), raw.get("std")
        if isinstance(mean, list) and isinstance(std, list) and len(mean) != len(std):
            yield Finding((), f"mean has {len(mean)} items, std has {len(std)}; expected the same number")


def _standardise(value: object) -> object:
    if isinstance(value, (Mapping, FixedMeanStd)):
        return FixedMeanStd.model_validate(value)
    if value in ("none", "from-train"):
        return value
    raise refuse(wrong("'none', 'from-train' or {mean: ..., std: ...}", value))


Standardise = Annotated[Literal["none", "from-train"] | FixedMeanStd, values.by_hand(_standardise)]


class StandardiseSpec(Part):
    input: Standardise = "none"
    target: Standardise = "none"


class Scale(Part):
    scale: float


def _permutation(axes: list[int]) -> list[int]:
    if not axes or sorted(axes) != list(range(len(axes))):
        raise refuse("expected each of the positions 0, 1, 2, ... once")
    return axes


class Permute(Part):
    permute: Annotated[list[int], AfterValidator(_permutation)]


def _nonzero(value: object) -> float:
    if values.number(value) == 0:
        raise refuse("expected a number other than 0")
    return values.number(value)


class Moments(FixedMeanStd):
    """The mean to subtract and the std to divide by, along one axis of a row."""

    std: Annotated[float | list[float], values.by_hand(values.one_or_list(_nonzero))]
    axis: int = 0


class Normalise(Part):
    normalise: Moments


Transform = Scale | Permute | Normalise
_TRANSFORMS: dict[str, type[Part]] = {"scale": Scale, "permute": Permute, "normalise": Normalise}


def one_transform(value: object) -> object:
    if isinstance(value, get_args(Transform)):
        return value
    if not isinstance(value, Mapping) or len(value) != 1:
        raise refuse(wrong(f"one key of {', '.join(_TRANSFORMS)}", value))
    (name,) = value
    if name not in _TRANSFORMS:
        raise refused(Finding((name,), f"unknown transform; {suggestion(str(name), _TRANSFORMS)}", at_key=True))
    return _TRANSFORMS[name].model_validate(value)
