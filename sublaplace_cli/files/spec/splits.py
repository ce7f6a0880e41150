"""The rows of each split as typed, frozen records. Test and out-of-distribution rows may be several sets by name."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from . import values
from .columns import ArraysSpec
from .part import Finding, Part, refused
from .set_names import EXPECTED, is_set_name

SplitName = Literal["train", "test", "reference", "validation"]
TEST = "test"
OOD = "ood"  # the split of rows unlike the training rows
SEVERAL = (TEST, OOD)  # splits that may be several sets by name: one of them is called SPLIT.NAME
_BOUND = r"\s*(-?\d{1,18})?\s*"
_ROWS = values.matching(
    rf"{_BOUND}:{_BOUND}(:\s*(?!0+\s*$)(\d{{1,18}})?\s*)?",
    "a slice like '0:353' or '0:353:2' (whole numbers, step above 0)",
)


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


class TestSetSpec(SplitSpec):
    """One of several sets of test rows."""

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        yield from super().rules(raw)
        if raw.get("same_as") is not None:
            yield Finding(("same_as",), "a set with a name has rows of its own: path, rows or indices", at_key=True)


def _one_or_named(one: type[SplitSpec], of_several: type[SplitSpec]) -> Callable[[object], object]:
    """One set of rows, or several by name."""

    def check(value: object) -> object:
        if not isinstance(value, Mapping) or not _is_named(value):
            return one.model_validate(value)
        wrong_names = [Finding((name,), EXPECTED, at_key=True) for name in value if not is_set_name(str(name))]
        if wrong_names:
            raise refused(*wrong_names)
        return dict(zip(value, values.each(of_several.model_validate, value.items()), strict=True))

    return check


def _is_named(raw: Mapping[str, Any]) -> bool:
    """Whether these are several sets of rows by name, not the keys of one."""
    return any(isinstance(part, (Mapping, Part)) for part in raw.values()) and not SplitSpec.model_fields.keys() & raw


class SplitsSpec(Part):
    train: SplitSpec | None = None
    test: (
        Annotated[SplitSpec | dict[str, TestSetSpec], values.by_hand(_one_or_named(SplitSpec, TestSetSpec))] | None
    ) = None
    reference: SplitSpec | None = None
    validation: SplitSpec | None = None
    ood: Annotated[OodSpec | dict[str, OodSpec], values.by_hand(_one_or_named(OodSpec, OodSpec))] | None = None

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


def by_location(parts: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """The splits by their location, those of several named sets one by one."""
    flat: dict[tuple[str, ...], Any] = {}
    for name, part in parts.items():
        is_several = name in SEVERAL and isinstance(part, Mapping) and _is_named(part)
        flat |= {(name, str(own)): split for own, split in part.items()} if is_several else {(name,): part}
    return flat
