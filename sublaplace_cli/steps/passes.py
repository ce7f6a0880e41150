"""Passes over the rows of a split: its Jacobian made and kept, read back, or computed again when it is too large."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..catalog import LIKELIHOODS, load
from ..core.blocks import Block, kept_bytes
from ..core.capture import Captured
from ..core.jacobian import Gathering, HeldJacobian, Jacobian, RecomputedJacobian, StoredJacobian, aligned
from ..files.artifact_layout import by_rows
from ..files.artifacts import Artifact
from ..files.row_writer import RowWriter
from .session import Session
from .settings import format_bytes

HELD_SHARE = 4  # a Jacobian within this share of the memory is kept in it
CHECKPOINT_SECONDS = 5.0  # how much work a kill may cost


def jacobian_bytes(session: Session, name: str) -> int:
    """Size of a split's Jacobian in the form in which it is kept."""
    return len(session.split(name)) * sum(kept_bytes(block) for block in session.capture.pattern)


def settled_bytes(session: Session, name: str) -> int:
    """Size of a split's Jacobian in the form that answers questions fastest."""
    return len(session.split(name)) * sum(kept_bytes(block.settled()) for block in session.capture.pattern)


def held_form(session: Session, name: str) -> Callable[[Block], Block] | None:
    """How a split's blocks are held in memory while a command runs; None where there is no room."""
    if settled_bytes(session, name) * HELD_SHARE <= session.memory:
        return lambda block: block.settled()
    return (lambda block: block) if jacobian_bytes(session, name) * HELD_SHARE <= session.memory else None


def will_store(session: Session, name: str) -> bool:
    """Whether this Jacobian is kept on disk; otherwise later steps compute it again."""
    return not session.settings.scores_only and jacobian_bytes(session, name) <= session.max_artifact


def jacobian_of(session: Session, name: str) -> Jacobian:
    """The Jacobian of a split: read back where it is there, else computed and kept."""
    name = session.split_name(name)
    key = f"jacobians-{name}"
    if key not in session.kept:
        folder = session.open_folder()
        found = None if session.settings.force else folder.find(key, "jacobians", split=name)
        if found is None or (will_store(session, name) and not found.meta["stored"]):
            with session.timed("jacobians"):
                session.kept[key] = _make(session, name)
        else:
            session.report.note(f"reusing {key}")
            session.kept[key] = _reopen(session, name)
    return session.kept[key]


def _make(session: Session, name: str) -> Jacobian:
    store, form = will_store(session, name), held_form(session, name)
    if not store and not session.settings.scores_only:
        session.report.note(
            f"the Jacobian of the {name} rows ({format_bytes(jacobian_bytes(session, name))}) is larger than "
            f"--max-artifact or the free disk allow: not stored, later steps compute it again"
        )
    f: list[Tensor] = []
    held = Gathering(len(session.split(name)))
    totals = None if store or form else Totals(session)
    writer = None if session.settings.scores_only else _writer(session, name, store)
    resumed = writer is not None and writer.rows_done > 0
    try:
        for start, captured in _passes(session, name, writer):
            f.append(captured.f)
            if form is not None and not resumed:
                held.put(start, [form(block) for block in captured.blocks])
            if totals is not None:
                totals.add(captured)
            if writer is not None:
                writer.write(start, _row_tensors(session, name, captured, start, store))
        if writer is not None:
            writer.finish()
    finally:
        if writer is not None:
            writer.close()
    if totals is not None and not resumed:  # after a resumption it has seen only some of the rows
        session.kept[f"totals-{name}"] = totals.sums
    if writer is not None:
        session.artifacts[f"jacobians-{name}"] = str(writer.path)
    if resumed or (store and form is None):
        return _reopen(session, name)
    if form is None:
        return _recomputed(session, name, torch.cat(f))
    return HeldJacobian(session.layout, torch.cat(f), held.blocks)


def _passes(session: Session, name: str, writer: RowWriter | None) -> Iterator[tuple[int, Captured]]:
    """Passes over the rows that are not done yet, with progress and, now and then, a durable record."""
    total, step = len(session.split(name)), session.capture.rows_per_pass
    done = writer.rows_done if writer is not None else 0
    if done:
        session.report.note(f"going on with the Jacobian of the {name} rows at row {done} of {total}")
    saved = time.monotonic()
    with session.report.progress(f"Jacobian of the {name} rows", total) as progress:
        progress.advance(done)
        for start in range(done, total, step):
            stop = min(start + step, total)
            yield start, session.capture(session.rows(name, start, stop))
            progress.advance(stop - start)
            if writer is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                writer.checkpoint(stop)
                saved = time.monotonic()


def _writer(session: Session, name: str, store: bool) -> RowWriter:
    split, C, step = session.split(name), session.n_outputs, session.capture.rows_per_pass
    plans = {"outputs": by_rows(torch.float64, (len(split), C), step)}
    plans["rows"] = by_rows(torch.int64, (len(split),), step)
    if split.targets is not None:
        kind = torch.float64 if session.task == "regression" else torch.int64
        plans["targets"] = by_rows(kind, split.targets.shape, step)
    if store:
        for block in session.capture.pattern:
            for key, tensor in _named_tensors(session, block).items():
                plans[key] = by_rows(tensor.dtype, (len(split), *tensor.shape[1:]), step)
    meta = session.describe({}, split=name, stored=store)
    path = session.open_folder().file(f"jacobians-{name}")
    return RowWriter(path, "jacobians", meta, plans)


def _row_tensors(session: Session, name: str, captured: Captured, start: int, store: bool) -> dict[str, Tensor]:
    split, rows = session.split(name), slice(start, start + len(captured.f))
    tensors = {"outputs": captured.f, "rows": torch.from_numpy(split.rows[rows])}
    if split.targets is not None:
        tensors["targets"] = torch.from_numpy(np.array(split.targets[rows]))
    for block in captured.blocks if store else ():
        tensors |= _named_tensors(session, block)
    return tensors


def _named_tensors(session: Session, block: Block) -> dict[str, Tensor]:
    """A block's tensors by their names in the artifact: those of its first parameter, and what they are."""
    first = next(q.name for q in session.layout.parameters if q.offset == block.start)
    return {f"J/{first}/{kind}": tensor for kind, tensor in block.tensors().items()}


def _reopen(session: Session, name: str) -> Jacobian:
    artifact = session.open_folder().find(f"jacobians-{name}", "jacobians", split=name)
    assert artifact is not None, "the caller has seen it"
    session.artifacts[f"jacobians-{name}"] = str(artifact.path)
    f = artifact.tensor("outputs", (len(session.split(name)), session.n_outputs)).to(session.device)
    if not artifact.meta["stored"]:
        return _recomputed(session, name, f)
    # Held blocks are read whole, once: no grain. Then the tiles, hence the bits, are those of a fresh pass.
    grain = 1 if held_form(session, name) else session.capture.rows_per_pass
    reader = _block_reader(session, name, artifact)
    return StoredJacobian(session.layout, f, session.capture.pattern, reader, grain)


def _block_reader(session: Session, name: str, artifact: Artifact) -> Callable[[int, int, int], Block]:
    n_rows, form = len(session.split(name)), held_form(session, name)
    held: dict[int, Block] = {}

    def read(number: int, start: int, stop: int) -> Block:
        if form is None:
            return from_file(number, start, stop)
        if number not in held:
            # Pass by pass, as it was made: then the bits are the same, too.
            gathering = Gathering(n_rows)
            for a, b in aligned(0, n_rows, session.capture.rows_per_pass, n_rows):
                gathering.put(a, [form(from_file(number, a, b))])
            (held[number],) = gathering.blocks
        return held[number].rows(start, stop)

    def from_file(number: int, start: int, stop: int) -> Block:
        block = session.capture.pattern[number]
        names = dict(zip(block.tensors(), _named_tensors(session, block), strict=True))
        return block.with_tensors({k: artifact.rows(v, start, stop).to(session.device) for k, v in names.items()})

    return read


def _recomputed(session: Session, name: str, f: Tensor) -> RecomputedJacobian:
    def compute(start: int, stop: int) -> list[Block]:
        return session.capture(session.rows(name, start, stop)).blocks

    return RecomputedJacobian(session.layout, f, session.capture.pattern, compute, session.capture.rows_per_pass)


class Totals:
    """Scores gathered during the one pass, for a Jacobian that is neither stored nor held."""

    def __init__(self, session: Session) -> None:
        self.root: Callable[..., Tensor] = load(LIKELIHOODS[session.task])
        size = session.layout.size
        self.sums = {
            weighted: torch.zeros(size, dtype=torch.float64, device=session.device) for weighted in (True, False)
        }

    def add(self, captured: Captured) -> None:
        W = self.root(captured.f, 1.0)
        for block in captured.blocks:
            self.sums[True][block.span] += block.squares(W)
            self.sums[False][block.span] += block.squares(None)
