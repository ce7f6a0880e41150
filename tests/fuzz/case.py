"""One input of the fuzz suite: what is typed, and which files of the valid project are changed before."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fuzz.changes import Change, apply


@dataclass(frozen=True)
class Case:
    """Plain data, so that it can be a JSON file of the corpus."""

    category: str
    words: list[str]
    changes: list[tuple[str, Change]] = field(default_factory=list)  # file, change
    same: bool = False  # the change may be refused or be without effect, but must not change the result
    # Only of the corpus:
    about: str = ""
    code: int | None = None
    says: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Case:
        found = json.loads(path.read_text())
        return cls(**{**found, "changes": [(name, change) for name, change in found.get("changes", [])]})

    def text(self) -> str:
        """The case as a file of the corpus, without what is not set."""
        return json.dumps({key: value for key, value in asdict(self).items() if value}, indent=1) + "\n"

    def without_change(self, number: int) -> Case:
        left = [change for i, change in enumerate(self.changes) if i != number]
        return Case(self.category, self.words, left, self.same)

    def set_up(self, base: Path, folder: Path) -> dict[str, Any]:
        """Write the project with the changes; returns what the files were, to see that a run leaves them alone."""
        shutil.copytree(base, folder, symlinks=True)
        for name, change in self.changes:
            apply(folder / name, change)
        return state(folder)


def state(folder: Path) -> dict[str, Any]:
    """The files that no run may change: all but those in its own folders."""
    with os.scandir(folder) as entries:
        return {
            entry.name: Path(entry.path).read_bytes() if entry.is_file() else os.readlink(entry.path)
            for entry in entries
            if entry.is_file(follow_symlinks=False) or entry.is_symlink()
        }
