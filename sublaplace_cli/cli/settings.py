"""Every option with its default, as typed: the command line is built from this."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """The options of all commands."""

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
