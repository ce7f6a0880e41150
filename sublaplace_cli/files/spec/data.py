"""The `data` section of the spec as a typed, frozen record."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import Field

from ...catalog import DATA_FORMATS
from . import values
from .columns import ArraysSpec, ColumnsSpec, TextSpec, class_labels
from .part import Finding, Part
from .preparing import StandardiseSpec, Transform, one_transform
from .splits import OOD, TEST, SplitSpec, SplitsSpec, by_location

TABLE_FORMATS = ("csv", "parquet", "arrow", "npy")
TEXT_FORMATS = ("csv", "parquet", "arrow")
ARRAY_FORMATS = ("npz", "safetensors")
LABEL_FORMATS = ("csv", "parquet", "arrow", "npz", "safetensors", "imagefolder")  # class labels may be texts


class DataSpec(Part):
    """Which files hold the rows, and how they are read."""

    format: Annotated[str, values.one_of(DATA_FORMATS)]
    path: values.Text | None = None
    columns: ColumnsSpec | None = None
    arrays: ArraysSpec | None = None
    classes: Annotated[list[str], values.by_hand(class_labels)] | None = None  # labels in the order of the outputs
    text: TextSpec | None = None
    standardise: Annotated[StandardiseSpec, values.none_is({})] = StandardiseSpec()
    transforms: list[Annotated[Transform, values.by_hand(one_transform)]] = Field(default_factory=list)
    splits: SplitsSpec | None = None

    @property
    def named_splits(self) -> dict[str, SplitSpec]:
        """The splits of the spec, each set with a name as one, in the order of `SplitsSpec`."""
        parts = {name: split for name, split in self.splits or SplitsSpec() if split is not None}
        return {".".join(where): split for where, split in by_location(parts).items()}

    @property
    def ood_sets(self) -> dict[str, str]:
        """The name of each set of out-of-distribution rows, by that of its split."""
        return {name: name.removeprefix(f"{OOD}.") for name in self._of(OOD)}

    @property
    def test_sets(self) -> dict[str, str | None]:
        """The name of each set of test rows, by that of its split: None if there is one, without a name."""
        return {name: name.removeprefix(f"{TEST}.") if name != TEST else None for name in self._of(TEST)}

    def _of(self, kind: str) -> list[str]:
        return [name for name in self.named_splits if name.partition(".")[0] == kind]

    def with_tests(self, test: SplitSpec | Mapping[str, SplitSpec]) -> Self:
        """The same with other test rows."""
        splits = (self.splits or SplitsSpec()).model_copy(update={TEST: test})
        return self.model_copy(update={"splits": splits})

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        named = values.mapping(raw.get("splits"))
        parts = {name: values.mapping(split) for name, split in named.items() if split is not None}
        splits = {where: values.mapping(split) for where, split in by_location(parts).items()}
        restricted: dict[tuple[str, ...], tuple[str, ...]] = {
            ("classes",): LABEL_FORMATS,
            ("columns",): TABLE_FORMATS,
            ("text",): TEXT_FORMATS,
            ("arrays",): ARRAY_FORMATS,
        }
        restricted |= {("splits", *where, key): ARRAY_FORMATS for where in splits for key in ("arrays", "indices")}
        form = raw.get("format")
        for location, formats in restricted.items():
            section = raw if len(location) == 1 else splits[location[1:-1]]
            if form in tuple(DATA_FORMATS) and form not in formats and section.get(location[-1]) is not None:
                listed = " and ".join(formats)
                yield Finding(location, f"only for the formats {listed}, but format is {form}", at_key=True)
        if form != "arrow" and isinstance(values.mapping(raw.get("columns")).get("input"), Mapping):
            yield Finding(("columns", "input"), f"a mapping is only for the format arrow, but format is {form}")
        if raw.get("text") is not None:
            yield from _beside_texts(raw)
        without = [where for where, split in splits.items() if not (split.get("path") or split.get("same_as"))]
        if raw.get("path") is None and (without or not splits):
            reason = f" (split '{'.'.join(without[0])}' has no path)" if without else ""
            yield Finding(("path",), f"this key is required, but missing{reason}")


def _beside_texts(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Texts are the only input."""
    columns, standardise = values.mapping(raw.get("columns")), values.mapping(raw.get("standardise"))
    for key in ("input", "exclude"):
        if columns.get(key) is not None and (key, columns[key]) != ("input", "rest"):
            yield Finding(("columns", key), "not together with text, which is the only input", at_key=True)
    if raw.get("transforms"):
        yield Finding(("transforms",), "not together with text", at_key=True)
    if standardise.get("input", "none") != "none":
        yield Finding(("standardise", "input"), "not together with text", at_key=True)
