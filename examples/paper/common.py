"""What the studies share: where things are, results that grow a run at a time, and calls of the tool."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from sublaplace_cli.render.text import json_text
from sublaplace_cli.steps.commands import run_command
from sublaplace_cli.steps.settings import Reporter, Settings, Silent


class Keyed(Protocol):
    """A run of a study, known by the cells of its key columns."""

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
HERE = Path(__file__).resolve().parent
PAPER_K = (50, 100, 200, 500, 1000, 2000, 5000, 10_000)
METRICS = (
    *("mean_std", "w2", "w2_se", "w2_relative", "w2_total", "coverage95", "coverage95_total"),
    *("ipv", "discrepancy", "retained", "nll", "rmse", "crps", "accuracy", "ece", "brier"),
)


@dataclass(frozen=True)
class Place:
    """Where a study reads and writes."""

    data: Path | None  # the user's data, where it was given
    results: Path  # <study>.csv
    work: Path  # checkpoints and run folders, to go on from
    quick: bool

    def table(self, study: str, columns: Sequence[str], key: Sequence[str]) -> Results:
        return Results(self.results / f"{study}.csv", tuple(columns), tuple(key))


@dataclass(frozen=True)
class Results:
    """A CSV that grows by the lines of one run at a time; what is there is not done again."""

    path: Path
    columns: tuple[str, ...]
    key: tuple[str, ...]  # the columns that say which run a line belongs to

    def done(self) -> set[tuple[str, ...]]:
        if not self.path.exists():
            return set()
        with open(self.path, newline="") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return self._keys(self._whole_runs(file.read()))

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """All lines of a run in one write, so that none is there in part; nothing if the run is there already."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n", extrasaction="raise")
        writer.writerows([{name: _cell(value) for name, value in line.items()} for line in lines])
        with open(self.path, "a+", newline="") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            before = file.read()
            whole = self._whole_runs(before) or self._header()
            if self._keys(self._header() + out.getvalue()) <= self._keys(whole):
                return
            if not before:
                file.write(whole)
            elif whole != before:  # the last write was cut off
                file.truncate(len(whole.encode()))
            file.write(out.getvalue())
            file.flush()
            os.fsync(file.fileno())

    def _header(self) -> str:
        return ",".join(self.columns) + "\n"

    def _keys(self, text: str) -> set[tuple[str, ...]]:
        return {tuple(line[name] for name in self.key) for line in csv.DictReader(io.StringIO(text, newline=""))}

    def _whole_runs(self, text: str) -> str:
        """The text without a run that a full disk or a power cut left in part, which ends in the midst of a line."""
        if text and not text.startswith(self._header()):
            raise SystemExit(f"{self.path}: its columns are not those of this study; move it away to begin anew")
        if not text or text.endswith("\n"):
            return text
        lines = text.splitlines(keepends=True)[:-1]
        last = self._keys(self._header() + lines[-1]) if len(lines) > 1 else set()
        while len(lines) > 1 and self._keys(self._header() + lines[-1]) == last:
            lines.pop()
        return "".join(lines)


def _cell(value: Any) -> Any:
    """Eight digits are more than any difference between machines leaves."""
    return "" if value is None else f"{value:.8g}" if isinstance(value, float) else value


@contextmanager
def claimed(place: Place, name: str, wait: bool = False) -> Iterator[Path | None]:
    """A folder for one run, or None if another process is at it (unless that is waited for)."""
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
    """The runs that are not in the table and that nobody else is at, each with a folder of its own."""
    known = table.done()
    for one in runs:
        if one.key in known:
            continue
        with claimed(place, f"{study}/" + "-".join(one.key)) as folder:
            if folder is not None and one.key not in table.done():
                yield one, folder


def save_weights(model: nn.Module, path: Path) -> None:
    """Beside, then renamed: a checkpoint that is there is complete."""
    part = path.with_suffix(".part")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, part)
    part.replace(path)


def write_spec(folder: Path, spec: Mapping[str, Any]) -> Path:
    path = folder / "sublaplace.yaml"
    path.write_text(yaml.safe_dump(dict(spec), sort_keys=False))
    return path


def evaluate(
    spec: Path, methods: Sequence[str], ks: Sequence[int] = (), report: Reporter | None = None, **options: Any
) -> dict[str, Any]:
    """`sublaplace evaluate`, as a library call: the result as `--json` prints it; `report` says how far it is."""
    settings = Settings(
        spec=spec,
        method=",".join(methods),
        k=",".join(map(str, ks)) or None,
        allow_outside=True,
        **{"max_artifact": "1GiB", **options},
    )
    return run_command("evaluate", settings, report or Silent(), json_text).result


def metric_lines(result: Mapping[str, Any], **first: Any) -> list[dict[str, Any]]:
    """A line for each row of a result."""
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
