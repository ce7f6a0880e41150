"""Everything that can be asked for, with its default, declared once: the command line is built from this."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..core.progress import Progress, unwatched
from ..errors import UserError


@dataclass(frozen=True)
class Settings:
    """The options of section 1 of the contract."""

    spec: Path | None = None
    checkpoint: tuple[str, ...] = ()
    run_dir: Path | None = None
    device: str = "auto"
    memory: str | None = None
    max_artifact: str = "20GiB"
    dtype: str = "float32"
    gram_dtype: str = "float64"
    format: str = "auto"
    json: bool = False
    output: tuple[Path, ...] = ()
    allow_code: tuple[str, ...] = ()
    allow_outside: bool = False
    force: bool = False
    dry_run: bool = False
    seeds: tuple[int, ...] = ()
    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    split: str = "all"
    scores_only: bool = False
    method: str | None = None
    k: str | None = None
    indices: Path | None = None
    pool: str = "all"
    score: str = "weighted"
    reference: str = "reference"
    retain: float | None = None
    rescale: str | None = None
    full: str = "exact"
    full_rows: int | None = None
    posterior: Path | None = None
    samples: int | None = None
    predictions: Path | None = None
    plot: Path | None = None
    plot_kind: str | None = None
    report: Path | None = None
    fail_if: tuple[str, ...] = ()
    baseline: Path | None = None
    max_regression: tuple[str, ...] = ()
    significant: bool = False

    @property
    def seed(self) -> int:
        """The seed of one run; 0 where none is given."""
        return self.seeds[0] if self.seeds else 0


class Reporter(Protocol):
    """Where notes and progress go; results never do."""

    def note(self, text: str) -> None: ...
    def detail(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def progress(self, label: str, total: int) -> Progress: ...


class Silent:
    """A reporter for library use."""

    def note(self, text: str) -> None:
        pass

    detail = warn = note

    def progress(self, label: str, total: int) -> Progress:
        return unwatched(label, total)


_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
}
_UNITS |= {"tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(text: str, option: str) -> int:
    """`8GiB`, `500MB`, `1.5g`, `1000000` → bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    size = float(match[1]) * _UNITS.get(match[2].lower(), 0) if match else 0.0
    if not 1 <= size < 2**62:
        raise UserError(f"{option} {text!r} is not a size", hint="expected a number and a unit, such as 8GiB or 500MB")
    return int(size)


def format_bytes(count: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
