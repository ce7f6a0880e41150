"""How fast this machine is: a few rows through the network, and products of a realistic size."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ... import device as devices
from ...run.rows.row_shards import EXPANDED
from ...run.rows.row_storage import RowStorage
from .work import Plan, Work

ENOUGH = 0.01  # seconds: a measurement that took as long is precise enough
FEW = 3  # rows: with fewer, what a pass costs besides its rows counts too much
MOST_SECONDS = 0.1  # of all passes that are timed, unless one row takes longer
GROWTH = 3  # of the number of rows, until they take that long
REPEATS = 3
SIDES = (256, 1024, 1024)  # of a product: a strip of a Gram matrix
TIMED_NUMBERS = 2**19
TIMED_BYTES = 2**22


@dataclass(frozen=True)
class Rates:
    """Seconds of each kind of work."""

    multiplication: float  # per multiplication in a float64 product of matrices
    element: float  # per number that is handled by itself
    byte: float  # per byte that is written with its checksum
    row: Mapping[str, float]  # per row of a pass, by the name under which the rows are stored

    def seconds(self, work: Work) -> float:
        passes = work.rows * self.row[work.split] if work.rows else 0.0
        return passes + work.products * self.multiplication + work.elements * self.element + work.written * self.byte


def measured_rates(plan: Plan, works: Sequence[Work]) -> Rates:
    """Of this run's network and device; nothing is measured that no work needs."""
    device = plan.run.device
    return Rates(
        multiplication=_per_multiplication(device) if any(work.products for work in works) else 0.0,
        element=_per_element(device) if any(work.elements for work in works) else 0.0,
        byte=_per_byte() if any(work.written for work in works) else 0.0,
        row={name: _per_row(plan.storages[name]) for name in {work.split for work in works if work.rows}},
    )


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    """How long it takes on a machine that does nothing else: waiting for a processor does not count."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    devices.synchronise(device)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return min(wall, cpu) if device.type == "cpu" else wall


def _least(action: Callable[[], object], device: torch.device) -> float:
    action()
    return min(_seconds(action, device) for _ in range(REPEATS))


def _per_multiplication(device: torch.device) -> float:
    n, inner, m = SIDES
    A, B = (torch.ones(*shape, dtype=torch.float64, device=device) for shape in ((n, inner), (inner, m)))
    return _least(lambda: A @ B, device) / (n * inner * m)


def _per_element(device: torch.device) -> float:
    """A float32 number that is turned into float64, scaled and squared."""
    x = torch.ones(TIMED_NUMBERS, device=device)
    return _least(lambda: x.double().mul_(2.0).square(), device) / TIMED_NUMBERS


def _per_byte() -> float:
    """The checksum, and writing, which takes about as long."""
    content = bytes(TIMED_BYTES)
    return 2 * _least(lambda: hashlib.sha256(content), torch.device("cpu")) / TIMED_BYTES


def _per_row(storage: RowStorage) -> float:
    """A pass as the work makes it, over more and more rows until it takes long enough: the least of some."""
    source, found = storage.source, list[float]()
    most, rows, spent, last = min(len(source.split), source.rows_per_pass), 1, 0.0, 0.0
    while len(found) < REPEATS:
        try:
            seconds = _seconds(partial(_one_pass, storage, rows), source.device)
        except devices.OUT_OF_MEMORY:  # the work itself makes smaller passes then
            break
        spent, last = spent + seconds, seconds / rows
        grows = rows < most and (rows < FEW or seconds < ENOUGH)
        if not grows:
            found.append(last)
        if spent + seconds * (GROWTH if grows else 1) > MOST_SECONDS:
            break
        rows = min(most, GROWTH * rows) if grows else rows
    return min(found, default=last)


def _one_pass(storage: RowStorage, rows: int) -> None:
    source, passes = storage.source, storage.source.passes
    inputs, U = passes.reader(source.split, 0, rows), passes.combinations(source.split, 0, rows)
    captured = passes.capture(inputs, check=False, U=U)
    if storage.form == EXPANDED:
        for block in captured.blocks:
            block.expanded()
