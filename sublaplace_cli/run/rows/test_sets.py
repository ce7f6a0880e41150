"""The sets of test rows: those of the spec, or files that the command line names instead (`--test [NAME=]FILE`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...catalog import DATA_FORMATS
from ...errors import UserError
from ...files.artifacts.atomic import digest_of, digest_of_files
from ...files.data.datasets import Resolve, data_files
from ...files.spec.data import DataSpec
from ...files.spec.splits import SplitSpec


@dataclass(frozen=True)
class TestSet:
    """One set of test rows."""

    split: str
    name: str | None = None  # None: the spec has one, without a name
    digest: str | None = None  # of its rows; None: they are among what identifies the run
    files: tuple[Path, ...] = ()  # that hold them, unless they are among those of the run

    def stem(self, name: str) -> str:
        """Of an artifact that depends on these rows."""
        return name if self.digest is None else f"{name}-{self.split}"

    @property
    def inputs(self) -> Mapping[str, str]:
        """The digests that such an artifact depends on."""
        return {} if self.digest is None else {"rows": self.digest}


def check_test_files(files: Mapping[str, Path], data: DataSpec) -> None:
    """They exist, and their suffix is not that of another format than the spec's."""
    for path in files.values():
        where, suffix = f"--test {path}", path.suffix.lower().removeprefix(".")
        if suffix in DATA_FORMATS and suffix != data.format:
            hint = "all files of a run have one format; columns and arrays are read as the spec says"
            raise UserError(f"{where}: it is a .{suffix} file, but data.format of the spec is {data.format}", hint=hint)
        folder = data.format == "imagefolder"
        if not (path.is_dir() if folder else path.is_file()):
            found = "no such file" if not path.exists() else f"not a {'folder' if folder else 'regular file'}"
            raise UserError(f"{where}: {found}", hint="paths on the command line are relative to the working folder")


def with_test_files(data: DataSpec, files: Mapping[str, Path]) -> DataSpec:
    """The same with all rows of these files as its test rows; arrays keep the names that the spec gives them."""
    if not files:
        return data
    arrays = next((data.named_splits[split].arrays for split in data.test_sets), None)
    return data.with_tests({name: SplitSpec(path=str(path), arrays=arrays) for name, path in files.items()})


def with_one_test_set(data: DataSpec) -> DataSpec:
    """The same with the first of several sets alone, as if it had no name."""
    named = [split for split, name in data.test_sets.items() if name is not None]
    if not named:
        return data
    return data.with_tests(SplitSpec.model_validate(data.named_splits[named[0]].model_dump(exclude_unset=True)))


def test_sets_of(data: DataSpec, splits: Sequence[str], resolve: Resolve) -> tuple[TestSet, ...]:
    """The sets of the spec that are among the splits to read."""
    sets = {split: name for split, name in data.test_sets.items() if split in splits}
    return tuple(TestSet(split) if name is None else _named(data, split, name, resolve) for split, name in sets.items())


def _named(data: DataSpec, split: str, name: str, resolve: Resolve) -> TestSet:
    """With the digest of its files' contents, and of which of their rows are read."""
    files = data_files(data, resolve, [split])
    rows = data.named_splits[split].model_dump(mode="json", exclude={"path"})
    digest = digest_of([digest_of_files(files, files[0].parent.parent), rows])
    return TestSet(split, name, digest, tuple(files))
