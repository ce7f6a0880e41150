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

from sublaplace_cli.formats import json_text
from sublaplace_cli.steps.commands import run_command
from sublaplace_cli.steps.settings import Settings, Silent


class Keyed(Protocol):
    """A run of a study, known by the cells of its key columns."""

    @property
    def key(self) -> tuple[str, ...]: ...


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
            return {tuple(line[name] for name in self.key) for line in csv.DictReader(file)}

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """All lines of a run in one write, so that no run is ever there in part."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n", extrasaction="raise")
        with open(self.path, "a", newline="") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerows([{name: _cell(value) for name, value in line.items()} for line in lines])
            file.write(out.getvalue())
            file.flush()
            os.fsync(file.fileno())


def _cell(value: Any) -> Any:
    """Eight digits are more than any difference between machines leaves."""
    return "" if value is None else f"{value:.8g}" if isinstance(value, float) else value


@contextmanager
def claimed(place: Place, name: str) -> Iterator[Path | None]:
    """A folder for one run, unless another process is at it."""
    folder = place.work / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        yield folder


def pending(place: Place, study: str, table: Results, runs: Iterable[AnyRun]) -> Iterator[tuple[AnyRun, Path]]:
    """The runs that are not in the table and that nobody else is at, each with a folder of its own."""
    for one in runs:
        if one.key in table.done():
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


def evaluate(spec: Path, methods: Sequence[str], ks: Sequence[int] = (), **options: Any) -> dict[str, Any]:
    """`sublaplace evaluate`, as a library call: the result as `--json` prints it."""
    settings = Settings(
        spec=spec,
        method=",".join(methods),
        k=",".join(map(str, ks)) or None,
        allow_outside=True,
        **{"max_artifact": "1GiB", **options},
    )
    return run_command("evaluate", settings, Silent(), json_text).result


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
