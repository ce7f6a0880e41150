"""The `data` section of the spec as typed, frozen records."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from ...catalog import DATA_FORMATS
from ...errors import suggestion
from . import values
from .part import Finding, Part, refuse, refused, wrong

SplitName = Literal["train", "test", "reference", "validation"]
OOD = "ood"  # the split of rows unlike the training rows; one of several sets is called ood.NAME
OOD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")

TABLE_FORMATS = ("csv", "parquet", "npy")
ARRAY_FORMATS = ("npz", "safetensors")
_BOUND = r"\s*(-?\d{1,18})?\s*"
_ROWS = values.matching(
    rf"{_BOUND}:{_BOUND}(:\s*(?!0+\s*$)(\d{{1,18}})?\s*)?",
    "a slice like '0:353' or '0:353:2' (whole numbers, step above 0)",
)


class ColumnsSpec(Part):
    """Which columns of a table are the target and the input."""

    target: values.ColumnNames | None = None
    input: values.ColumnNames = "rest"
    exclude: values.ColumnNames | None = None  # not among the rest


def _array_names(value: object) -> object:
    if isinstance(value, Mapping) and value:
        return dict(zip(value, values.each(values.text, value.items()), strict=True))
    if isinstance(value, (str, list)):
        return values.one_or_list(values.text)(value)
    raise refuse(wrong("an array's name, a list or a mapping of names", value))


class ArraysSpec(Part):
    """Which arrays of a file are the input and the target."""

    input: Annotated[str | dict[str, str] | list[str], values.by_hand(_array_names)]
    target: values.Text | None = None


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


def _transform(value: object) -> object:
    if isinstance(value, get_args(Transform)):
        return value
    if not isinstance(value, Mapping) or len(value) != 1:
        raise refuse(wrong(f"one key of {', '.join(_TRANSFORMS)}", value))
    (name,) = value
    if name not in _TRANSFORMS:
        raise refused(Finding((name,), f"unknown transform; {suggestion(str(name), _TRANSFORMS)}", at_key=True))
    return _TRANSFORMS[name].model_validate(value)


class IndicesSpec(Part):
    """An array of row numbers in the data file."""

    array: values.Text
    row: values.Index | None = None


class SplitSpec(Part):
    rows: Annotated[str, _ROWS] | None = None
    n: Annotated[int, Field(gt=0)] | None = None
    seed: values.Index = 0
    indices: IndicesSpec | None = None
    same_as: Annotated[SplitName, values.one_of(get_args(SplitName))] | None = None
    path: values.Text | None = None
    arrays: ArraysSpec | None = None

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        if raw.get("rows") is not None and raw.get("indices") is not None:
            yield Finding(("indices",), "expected either rows or indices, got both", at_key=True)
        others = sorted(key for key in raw if key != "same_as" and key in cls.model_fields)
        if raw.get("same_as") is not None and others:
            yield Finding(("same_as",), f"same_as excludes other keys; remove {', '.join(others)}", at_key=True)


class OodSpec(SplitSpec):
    """Rows unlike the training rows. Their targets, if there are any, are not read."""

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        yield from super().rules(raw)
        if raw.get("same_as") is not None:
            yield Finding(("same_as",), "rows of another split are not out of distribution", at_key=True)
        elif all(raw.get(key) is None for key in ("path", "rows", "indices")):
            yield Finding(("path",), "this key is required, but missing (or give it rows or indices of its own)")


def _ood(value: object) -> object:
    """One set, or several by name."""
    if not isinstance(value, Mapping) or not _is_named(value):
        return OodSpec.model_validate(value)
    expected = "expected a name of at most 40 letters, digits and _, with no digit first"
    if wrong_names := [Finding((name,), expected, at_key=True) for name in value if not OOD_NAME.fullmatch(str(name))]:
        raise refused(*wrong_names)
    return dict(zip(value, values.each(OodSpec.model_validate, value.items()), strict=True))


def _is_named(raw: Mapping[str, Any]) -> bool:
    """Whether these are several sets of rows by name, not the keys of one."""
    return any(isinstance(part, (Mapping, Part)) for part in raw.values()) and not OodSpec.model_fields.keys() & raw


class SplitsSpec(Part):
    train: SplitSpec | None = None
    test: SplitSpec | None = None
    reference: SplitSpec | None = None
    validation: SplitSpec | None = None
    ood: Annotated[OodSpec | dict[str, OodSpec], values.by_hand(_ood)] | None = None

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        source = {name: values.mapping(split).get("same_as") for name, split in raw.items()}
        source = {name: other for name, other in source.items() if name in cls.model_fields and isinstance(other, str)}
        in_known_cycle: set[object] = set()
        for name, other in source.items():
            # train needs no entry: it defaults to all rows
            if other in ("test", "reference", "validation") and raw.get(str(other)) is None:
                yield Finding((name, "same_as"), f"there is no split '{other}'")
            chain: list[object] = [name]
            while other in source and other not in chain:
                chain.append(other)
                other = source[str(other)]
            if other == name and name not in in_known_cycle:
                in_known_cycle.update(chain)
                circle = " -> ".join(str(split) for split in (*chain, name))
                yield Finding((name, "same_as"), f"same_as leads in a circle: {circle}")


class DataSpec(Part):
    """Which files hold the rows, and how they are read."""

    format: Annotated[str, values.one_of(DATA_FORMATS)]
    path: values.Text | None = None
    columns: ColumnsSpec | None = None
    arrays: ArraysSpec | None = None
    standardise: Annotated[StandardiseSpec, values.none_is({})] = StandardiseSpec()
    transforms: list[Annotated[Transform, values.by_hand(_transform)]] = Field(default_factory=list)
    splits: SplitsSpec | None = None

    @property
    def named_splits(self) -> dict[str, SplitSpec]:
        """The splits of the spec, each set of out-of-distribution rows as one, in the order of `SplitsSpec`."""
        parts = {name: split for name, split in self.splits or SplitsSpec() if split is not None}
        return {".".join(where): split for where, split in _flat(parts).items()}

    @property
    def ood_sets(self) -> dict[str, str]:
        """The name of each set of out-of-distribution rows, by that of its split."""
        named = {name: split for name, split in self.named_splits.items() if isinstance(split, OodSpec)}
        return {name: name.removeprefix(f"{OOD}.") for name in named}

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        named = values.mapping(raw.get("splits"))
        parts = {name: values.mapping(split) for name, split in named.items() if split is not None}
        splits = {where: values.mapping(split) for where, split in _flat(parts).items()}
        restricted: dict[tuple[str, ...], tuple[str, ...]] = {("columns",): TABLE_FORMATS, ("arrays",): ARRAY_FORMATS}
        restricted |= {("splits", *where, key): ARRAY_FORMATS for where in splits for key in ("arrays", "indices")}
        form = raw.get("format")
        for location, formats in restricted.items():
            section = raw if len(location) == 1 else splits[location[1:-1]]
            if form in tuple(DATA_FORMATS) and form not in formats and section.get(location[-1]) is not None:
                listed = " and ".join(formats)
                yield Finding(location, f"only for the formats {listed}, but format is {form}", at_key=True)
        without = [where for where, split in splits.items() if not (split.get("path") or split.get("same_as"))]
        if raw.get("path") is None and (without or not splits):
            reason = f" (split '{'.'.join(without[0])}' has no path)" if without else ""
            yield Finding(("path",), f"this key is required, but missing{reason}")


def _flat(parts: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """The splits by their location, those of several named sets one by one."""
    flat: dict[tuple[str, ...], Any] = {}
    for name, part in parts.items():
        is_several = name == OOD and isinstance(part, Mapping) and _is_named(part)
        flat |= {(name, str(own)): split for own, split in part.items()} if is_several else {(name,): part}
    return flat
