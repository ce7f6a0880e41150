"""`sublaplace clean`: lists and removes run folders. Nothing heavy is imported: no torch."""

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..files.artifacts.run_files import Contents, contents_of, in_use, is_run_folder, remove_if_empty, remove_run

RUNS = ".sublaplace"
SUBNET_FILE = re.compile(r"(?:indices|posterior|predictions)-(.+)-k(\d+)(?:-[a-z]+)?\.safetensors")
REMOVED, TO_REMOVE, IN_USE, USED_SINCE = "removed", "would be removed", "in use", "kept"


@dataclass(frozen=True)
class CleanedRun:
    """One run folder, and what was done with it."""

    contents: Contents
    state: str

    @property
    def methods(self) -> dict[str, list[int]]:
        """Methods and k whose results it holds."""
        found: dict[str, set[int]] = {}
        for name in self.contents.artifacts:
            if (match := SUBNET_FILE.fullmatch(name)) is not None:
                found.setdefault(match[1], set()).add(int(match[2]))
        return {method: sorted(ks) for method, ks in sorted(found.items())}


@dataclass(frozen=True)
class Cleaned:
    """What is, or was, in a folder of runs."""

    folder: Path
    runs: tuple[CleanedRun, ...]
    strangers: tuple[str, ...]  # names of what is no run folder, which is left alone

    def with_state(self, *states: str) -> list[CleanedRun]:
        return [run for run in self.runs if run.state in states]


def clean(folder: Path, *, is_default: bool, unused_for: float, dry_run: bool) -> Cleaned:
    """Remove the run folders in a folder, or that folder itself, that were not used for so many seconds."""
    if folder.is_symlink():
        raise UserError(f"{folder} is a link to another folder", hint="clean never follows a link: name its target")
    if not folder.is_dir():
        if is_default and not folder.exists():
            return Cleaned(folder, (), ())
        raise UserError(f"{folder} is not a folder")
    is_run = not is_default and is_run_folder(folder, named_by_identity=False)
    found = [folder] if is_run else _entries(folder)
    ours = [path for path in found if is_run_folder(path, named_by_identity=is_default)]
    runs = tuple(_cleaned(path, unused_for, dry_run) for path in ours)
    if is_default and not dry_run:
        remove_if_empty(folder)
    return Cleaned(folder, runs, tuple(path.name for path in found if path not in ours))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror or error}") from error


def _cleaned(path: Path, unused_for: float, dry_run: bool) -> CleanedRun:
    contents = contents_of(path)
    if in_use(path):
        return CleanedRun(contents, IN_USE)
    if contents.seconds_unused < unused_for:
        return CleanedRun(contents, USED_SINCE)
    if dry_run:
        return CleanedRun(contents, TO_REMOVE)
    removed = remove_run(path)
    return CleanedRun(contents, IN_USE) if removed is None else CleanedRun(removed, REMOVED)
