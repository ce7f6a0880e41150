"""What the studies share: paths, result tables that grow by what is missing, and calls of the tool."""

from __future__ import annotations

import csv
import fcntl
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from sublaplace_cli import run_command


class Keyed(Protocol):
    """A run of a study, identified by the cells of its key columns."""

    @property
    def key(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class SeedRun:
    """A data set, or a kind of problem, under one seed."""

    dataset: str
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        return self.dataset, str(self.seed)


AnyRun = TypeVar("AnyRun", bound=Keyed)
Part = tuple[str, ...]  # the cells of the key columns that a run's own key leaves open
HERE = Path(__file__).resolve().parent
PAPER_K = (50, 100, 200, 500, 1000, 2000, 5000, 10_000)
METRICS = (
    *("mean_std", "w2", "w2_se", "w2_relative", "w2_total", "coverage95", "coverage95_total"),
    *("ipv", "discrepancy", "retained", "nll", "rmse", "crps", "accuracy", "ece", "brier"),
)


@dataclass(frozen=True)
class Place:
    """Where a study reads and writes."""

    data: Path | None  # the user's data folder, if there is one
    results: Path  # <study>.csv
    work: Path  # checkpoints and run folders, for resuming
    quick: bool

    def table(self, study: str, columns: Sequence[str], key: Sequence[str]) -> Results:
        return Results(self.results / f"{study}.csv", tuple(columns), tuple(key))


@dataclass(frozen=True)
class Results:
    """A CSV that grows by the lines of one run at a time; what is in it is not repeated."""

    path: Path
    columns: tuple[str, ...]
    key: tuple[str, ...]  # the columns that identify what is done at once: a run, or one method of it

    def done(self) -> set[tuple[str, ...]]:
        if not self.path.exists():
            return set()
        with open(self.path, newline="") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return self._keys(self._whole_runs(file.read()))

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write all lines of a run at once, so that no run is there in part; skip what is there already."""
        with open(self.path, "a+", newline="") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            before = file.read()
            whole = self._whole_runs(before) or self._header()
            new = self._text(lines, self._keys(whole))
            if not new:
                return
            if not before:
                file.write(whole)
            elif whole != before:  # the last write was cut off
                file.truncate(len(whole.encode()))
            file.write(new)
            file.flush()
            os.fsync(file.fileno())

    def _header(self) -> str:
        return ",".join(self.columns) + "\n"

    def _text(self, lines: Sequence[Mapping[str, Any]], known: set[tuple[str, ...]]) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n", extrasaction="raise")
        cells = [{name: _cell(value) for name, value in line.items()} for line in lines]
        writer.writerows([line for line in cells if tuple(str(line[name]) for name in self.key) not in known])
        return out.getvalue()

    def _keys(self, text: str) -> set[tuple[str, ...]]:
        return {tuple(line[name] for name in self.key) for line in csv.DictReader(io.StringIO(text, newline=""))}

    def _whole_runs(self, text: str) -> str:
        """The text without the last run, where a full disk or a power cut left it incomplete (no final newline)."""
        if text and not text.startswith(self._header()):
            raise SystemExit(f"{self.path}: its columns are not those of this study; move it away to start again")
        if not text or text.endswith("\n"):
            return text
        lines = text.splitlines(keepends=True)[:-1]
        last = self._keys(self._header() + lines[-1]) if len(lines) > 1 else set()
        while len(lines) > 1 and self._keys(self._header() + lines[-1]) == last:
            lines.pop()
        return "".join(lines)


def _cell(value: Any) -> Any:
    """Floats to six digits: more than agree between machines."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


@contextmanager
def claimed(place: Place, name: str, wait: bool = False) -> Iterator[Path | None]:
    """A folder for one run, or None if another process works on it; with `wait`, after that one has finished."""
    folder = place.work / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            yield None
            return
        yield folder


def pending(place: Place, study: str, table: Results, runs: Iterable[AnyRun]) -> Iterator[tuple[AnyRun, Path]]:
    """The runs that are not in the table and that no other process works on, each with its own folder."""
    return ((one, folder) for one, folder, _ in unfinished(place, study, table, runs, lambda _: [()]))


def unfinished(
    place: Place, study: str, table: Results, runs: Iterable[AnyRun], parts: Callable[[AnyRun], Iterable[Part]]
) -> Iterator[tuple[AnyRun, Path, list[Part]]]:
    """The same for runs in parts, such as methods, with those that are missing: a finished table takes new methods."""
    known = table.done()
    for one in runs:
        wanted = [part for part in parts(one) if (*one.key, *part) not in known]
        if not wanted:
            continue
        with claimed(place, f"{study}/" + "-".join(one.key)) as folder:
            done = table.done()
            missing = [part for part in wanted if (*one.key, *part) not in done]
            if folder is not None and missing:
                yield one, folder, missing


def save_weights(model: nn.Module, path: Path) -> None:
    """Write to another name, then rename: a checkpoint that exists is complete."""
    part = path.with_suffix(".part")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, part)
    part.replace(path)


def write_spec(folder: Path, spec: Mapping[str, Any]) -> Path:
    path = folder / "sublaplace.yaml"
    path.write_text(yaml.safe_dump(dict(spec), sort_keys=False))
    return path


class Notes:
    """A reporter for long commands: notes, warnings and progress as lines on stderr."""

    def note(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")

    def detail(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}")

    def progress(self, label: str, total: int) -> ProgressNotes:
        return ProgressNotes(label, total)


class ProgressNotes:
    """How much is done, one line every ten seconds."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.done, self.reported = label, total, 0, time.monotonic()

    def advance(self, amount: int) -> None:
        self.done += amount
        if time.monotonic() - self.reported > 10.0:
            self.reported = time.monotonic()
            sys.stderr.write(f"{self.label}: {self.done} of {self.total}\n")

    def describe(self, label: str) -> None:
        self.label = label

    def __enter__(self) -> ProgressNotes:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def evaluate(
    spec: Path, methods: Sequence[str], ks: Sequence[int] = (), reporter: Notes | None = None, **options: Any
) -> dict[str, Any]:
    """`sublaplace evaluate` in this process: the result as `--json` prints it."""
    return run_command(
        "evaluate",
        spec=spec,
        method=",".join(methods),
        k=",".join(map(str, ks)) or None,
        allow_outside=True,
        reporter=reporter,
        **{"max_artifact": "1GiB", **options},
    )


def by_rescaling(ways: Iterable[Part]) -> dict[str, list[str]]:
    """The methods of some (method, rescaling), for one `evaluate` each."""
    found: dict[str, list[str]] = {}
    for method, rescale in ways:
        found.setdefault(rescale, []).append(method)
    return found


def metric_lines(result: Mapping[str, Any], **first: Any) -> list[dict[str, Any]]:
    """One line per row of a result."""
    return [{**first, "method": row["method"], "k": row["k"]} | {m: row[m] for m in METRICS} for row in result["rows"]]


def train_full_batch(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, rate: float) -> None:
    """Adam with a cosine schedule on the mean squared error of all rows, as in Setup D."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        optimiser.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
        schedule.step()
