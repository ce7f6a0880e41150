"""Rows that one or several workers compute and hold; the leader writes.

Passes over a split are assigned to the workers in turn. All workers run `make_rows` and `read_rows` at the same time;
a single worker runs the same code and holds all rows.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core.jacobian.blocks import Block, stored_bytes
from ...core.jacobian.capture import Captured
from ...core.jacobian.rows import (
    BlockBuffer,
    HeldJacobian,
    HoldingJacobian,
    Jacobian,
    RecomputedJacobian,
    SomeRows,
    StoredJacobian,
    n_outputs,
)
from ...core.jacobian.sharded import ShardedJacobian, owners_of
from ...core.likelihoods import Likelihood
from ...core.network.layout import Layout
from ...core.workers import LEADER, WorkerGroup
from ...errors import UserError
from ...files.artifacts.artifact import Artifact, open_artifact
from ...files.artifacts.row_writer import RowWriter
from ...files.data.datasets import Split
from ...reporter import Reporter
from .block_reader import BlockReader
from .passes import Passes

CHECKPOINT_SECONDS = 5.0  # longest work that a kill may lose
EXPANDED, COMPACT = "expanded", "compact"  # forms in which blocks are held in memory
FORMS: dict[str, Callable[[Block], Block]] = {EXPANDED: lambda block: block.expanded(), COMPACT: lambda block: block}


@dataclass(frozen=True)
class SquareSums:
    """Σₙ diag(JₙᵀHₙJₙ) over all rows (p,) with unit noise variance, and the same without H; of sampled rows, H = I."""

    weighted: Tensor
    unweighted: Tensor


@dataclass(frozen=True)
class SplitRows:
    """The Jacobian of a split; with its square sums if the rows are recomputed on every read."""

    name: str
    jacobian: Jacobian
    square_sums: SquareSums | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether the rows are combinations of the outputs, of which H is I."""
        return n_outputs(self.jacobian) < self.jacobian.outputs.shape[1]

    def root(self, likelihood: Likelihood) -> Tensor:
        """W of the rows of the Jacobian (N, C, C)."""
        f, s = self.jacobian.outputs, n_outputs(self.jacobian)
        eye = torch.eye(s, dtype=f.dtype, device=f.device)
        return eye.expand(len(f), s, s) if self.is_sampled else likelihood.root(f)


@dataclass(frozen=True)
class RowSource:
    """What one worker needs to make or read the rows of a split."""

    name: str
    split: Split
    passes: Passes
    layout: Layout
    likelihood: Likelihood  # with unit noise variance
    device: torch.device
    workers: WorkerGroup
    reporter: Reporter

    @property
    def templates(self) -> tuple[Block, ...]:
        return self.passes.capture.templates

    @property
    def rows_per_pass(self) -> int:
        return self.passes.rows_per_pass(self.split)

    @property
    def own_rows(self) -> list[int] | None:
        """The rows that this worker holds; None if it holds all."""
        if self.workers.size == 1:
            return None
        owners = owners_of(len(self.split), self.rows_per_pass, self.workers.size)
        return (owners == self.workers.rank).nonzero().squeeze(1).tolist()

    @cached_property
    def tensor_names(self) -> dict[int, dict[str, str]]:
        """By start of a block: names of its tensors in the artifact, built from its first parameter and their role."""
        first = {parameter.offset: parameter.name for parameter in self.layout.parameters}
        return {
            block.start: {role: f"J/{first[block.start]}/{role}" for role in block.tensors()}
            for block in self.templates
        }

    @cached_property
    def expands(self) -> bool:
        """Whether some block has another form that is faster to compute with."""
        return any(block.expanded() is not block for block in self.templates)

    def report_float64_rows(self) -> None:
        """On the leader, say which rows the workers used in float64; all of them call it."""
        checks = self.passes.float64_checks
        by_worker = self.workers.exchange(checks.replaced_rows(self.split))
        if self.workers.rank == LEADER:
            checks.report(self.name, self.split, set(chain(*by_worker)))

    def compact_bytes(self) -> int:
        """Size of the Jacobian in the form in which it is stored."""
        return len(self.split) * sum(stored_bytes(block) for block in self.templates)

    def expanded_bytes(self) -> int:
        """Size of the Jacobian in the form that is fastest to compute with."""
        return len(self.split) * sum(stored_bytes(block.expanded()) for block in self.templates)


def make_rows(
    source: RowSource, store: bool, form: str | None, done: int, add_up: bool, writer: RowWriter | None = None
) -> SplitRows:
    """The passes from row `done` on, each by one worker; the leader receives the parts that it writes."""
    n_rows, mine = len(source.split), source.own_rows
    held = BlockBuffer(n_rows if mine is None else len(mine))
    f = torch.zeros(n_rows, source.passes.n_outputs, dtype=torch.float64, device=source.device)
    sums = SquareSums(*torch.zeros(2, source.layout.size, dtype=f.dtype, device=f.device)) if add_up else None
    saved, filled = time.monotonic(), 0
    with source.reporter.progress(f"Jacobian of the {source.name} rows", n_rows) as progress:
        progress.advance(done)
        for turn in _turns(n_rows, source.rows_per_pass, done, source.workers.size):
            captured = None
            if source.workers.rank in turn:
                start, stop = turn[source.workers.rank]
                captured = source.passes(source.split, start, stop)
                if form is not None and not done:
                    known = captured.tensors if form == COMPACT else None
                    held.put(filled, [FORMS[form](block) for block in captured.blocks], known)
                    filled += stop - start
                if sums is not None:
                    _add(sums, captured, source.likelihood)
            for worker, (start, stop) in turn.items():
                received = _received(source, captured, worker, stop - start, store)
                if received is not None:
                    f[start:stop] = received.f
                    if writer is not None:
                        writer.write(start, _row_tensors(source, received, start, store))
            progress.advance(sum(stop - start for start, stop in turn.values()))
            if writer is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                writer.checkpoint(max(stop for _, stop in turn.values()))
                saved = time.monotonic()
    source.workers.broadcast(f, LEADER)
    source.report_float64_rows()
    for total in (sums.weighted, sums.unweighted) if sums is not None else ():
        source.workers.sum_to_leader(total)
    if form is None:
        return SplitRows(source.name, _with_own_rows(source, f, None, None), sums)
    blocks = held.blocks or tuple(FORMS[form](block).rows(0, 0) for block in source.templates)
    own = HeldJacobian(source.layout, f if mine is None else f[mine], blocks)
    return SplitRows(source.name, _sharded(source, f, own, form))


def _add(sums: SquareSums, captured: Captured, likelihood: Likelihood) -> None:
    is_sampled = captured.blocks[0].n_outputs < captured.f.shape[1]
    W = None if is_sampled else likelihood.root(captured.f)
    for block in captured.blocks:
        sums.weighted[block.span] += block.squares(W)
        sums.unweighted[block.span] += block.squares(None)


def _turns(n_rows: int, step: int, done: int, size: int) -> Iterator[dict[int, tuple[int, int]]]:
    """Which worker computes which rows [first, last), turn by turn."""
    pieces = [(max(left, done), min(left + step, n_rows), left // step % size) for left in range(0, n_rows, step)]
    remaining = [piece for piece in pieces if piece[1] > done]
    while remaining:
        turn: dict[int, tuple[int, int]] = {}
        while remaining and remaining[0][2] not in turn:
            start, stop, worker = remaining.pop(0)
            turn[worker] = (start, stop)
        yield turn


def _received(source: RowSource, captured: Captured | None, worker: int, n_rows: int, store: bool) -> Captured | None:
    """A worker's pass on the leader: its outputs and, if they are stored, its blocks; None on the others."""
    rank = source.workers.rank
    if worker == LEADER or rank not in (worker, LEADER):
        return captured if rank == worker == LEADER else None
    if rank == worker:
        assert captured is not None, "it was this worker's turn"
        f, blocks = captured.f, captured.blocks
    else:
        f = torch.empty(n_rows, source.passes.n_outputs, dtype=torch.float64, device=source.device)
        blocks = [_with_room(block, n_rows) for block in source.templates] if store else []
    source.workers.send_to_leader(f.contiguous(), worker)
    for block in blocks if store else ():
        for tensor in block.tensors().values():
            source.workers.send_to_leader(tensor.contiguous(), worker)
    return Captured(f, blocks) if rank == LEADER else None


def _with_room(block: Block, n_rows: int) -> Block:
    return block.with_tensors({name: t.new_empty(n_rows, *t.shape[1:]) for name, t in block.tensors().items()})


def _row_tensors(source: RowSource, captured: Captured, start: int, store: bool) -> Mapping[str, Tensor]:
    rows = slice(start, start + len(captured.f))
    tensors = {"outputs": captured.f, "rows": torch.from_numpy(source.split.rows[rows])}
    if source.split.targets is not None:
        tensors["targets"] = torch.from_numpy(np.array(source.split.targets[rows]))
    for block, own in zip(captured.blocks, captured.tensors, strict=True) if store else ():
        tensors |= zip(source.tensor_names[block.start].values(), own.values(), strict=True)
    return tensors


def read_rows(source: RowSource, f: Tensor, path: str, digest: str | None, form: str | None) -> SplitRows:
    """Rows from an artifact; each worker reads its share, or recomputes it if it cannot see the file."""
    artifact = None
    if digest is not None:
        try:
            artifact = open_artifact(Path(path), "jacobians")
        except UserError:
            if source.workers.rank == LEADER:
                raise
    if artifact is not None and artifact.digest != digest:
        artifact = None
    all_see_it = all(source.workers.exchange(artifact is not None))
    if form is None and not all_see_it:  # rows that are read come block by block: on all workers or on none
        artifact = None
    return SplitRows(source.name, _with_own_rows(source, f, artifact, form))


def _with_own_rows(source: RowSource, f: Tensor, artifact: Artifact | None, form: str | None) -> Jacobian:
    """The rows of this worker, read from an artifact or recomputed."""
    step, templates = source.rows_per_pass, source.templates
    everything: Jacobian
    if artifact is None:
        everything = RecomputedJacobian(
            source.layout, f, templates, lambda start, stop: source.passes(source.split, start, stop).blocks, step
        )
    else:
        names = [source.tensor_names[block.start] for block in templates]
        reader = BlockReader(artifact, source.device, templates, names)
        everything = StoredJacobian(source.layout, f, templates, reader.read, step, reader.prefetch)
    mine = source.own_rows
    if mine is not None:
        everything = SomeRows(everything, mine, step)
    own = everything if form is None else HoldingJacobian(everything, FORMS[form], step)
    return _sharded(source, f, own, form)


def _sharded(source: RowSource, f: Tensor, own: Jacobian, form: str | None) -> Jacobian:
    """The Jacobian of all workers; this one holds only its share of the rows."""
    if source.workers.size == 1:
        return own
    step, templates = source.rows_per_pass, source.templates
    if form is not None:
        templates = tuple(FORMS[form](block) for block in templates)
    owners = owners_of(len(f), step, source.workers.size)
    rows_per_read = step if form is None else 1
    return ShardedJacobian(
        source.layout, f, templates, own, owners, source.workers, source.name, rows_per_read=rows_per_read
    )
