"""Passes over the rows of a split: its Jacobian made and kept, read back, or computed again when it is too large.

Where a team shares the work, its members take turns with the passes; the leader writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.jacobian.blocks import Block, stored_bytes
from ..core.jacobian.capture import Captured
from ..core.jacobian.rows import (
    Gathering,
    HeldJacobian,
    HoldingJacobian,
    Jacobian,
    RecomputedJacobian,
    SomeRows,
    StoredJacobian,
)
from ..core.jacobian.sharded import ShardedJacobian, owners_of
from ..core.workers import LEADER
from ..errors import UserError
from ..files.artifacts.artifact import Artifact, open_artifact
from ..files.artifacts.layout import by_rows
from ..files.artifacts.row_writer import RowWriter
from .session import Session
from .settings import format_bytes
from .staging import StagedBlocks
from .totals import Totals

HELD_SHARE = 4  # a Jacobian within this share of the memory is kept in it
CHECKPOINT_SECONDS = 5.0  # how much work a kill may cost
SETTLED, KEPT = "settled", "kept"  # forms in which blocks are held in memory
FORMS: dict[str, Callable[[Block], Block]] = {SETTLED: lambda block: block.settled(), KEPT: lambda block: block}


def jacobian_bytes(session: Session, name: str) -> int:
    """Size of a split's Jacobian in the form in which it is kept."""
    return len(session.split(name)) * sum(stored_bytes(block) for block in session.capture.templates)


def settled_bytes(session: Session, name: str) -> int:
    """Size of a split's Jacobian in the form that answers questions fastest."""
    return len(session.split(name)) * sum(stored_bytes(block.settled()) for block in session.capture.templates)


def held_form(session: Session, name: str) -> str | None:
    """How a split's blocks are held in memory while a command runs; None where a member has no room for its share."""
    room = session.memory * session.workers.size // HELD_SHARE
    if settled_bytes(session, name) <= room:
        return SETTLED
    return KEPT if jacobian_bytes(session, name) <= room else None


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
    writer = None if session.settings.scores_only else _writer(session, name, store)
    done = 0 if writer is None else writer.rows_done
    if done:
        session.report.note(
            f"going on with the Jacobian of the {name} rows at row {done} of {len(session.split(name))}"
        )
    add_up = not store and form is None and not done  # after a resumption it would see only some of the rows
    try:
        made = session.together(make_rows, name, store, form, done, add_up, writer=writer)
        if writer is not None:
            writer.finish()
    finally:
        if writer is not None:
            writer.close()
    if writer is not None:
        session.artifacts[f"jacobians-{name}"] = str(writer.path)
    return _reopen(session, name) if done or (store and form is None) else made


def make_rows(
    session: Session, name: str, store: bool, form: str | None, done: int, add_up: bool, writer: RowWriter | None = None
) -> Jacobian:
    """The passes over the rows from `done` on, each by one member; what the leader writes is brought to it."""
    workers, step, n_rows = session.workers, session.pass_rows(name), len(session.split(name))
    mine = own_rows(session, name)
    held = Gathering(n_rows if mine is None else len(mine))
    f = torch.zeros(n_rows, session.n_outputs, dtype=torch.float64, device=session.device)
    totals = Totals(session.task, session.layout.size, session.device) if add_up else None
    saved, place = time.monotonic(), 0
    with session.report.progress(f"Jacobian of the {name} rows", n_rows) as progress:
        progress.advance(done)
        for turn in _turns(n_rows, step, done, workers.size):
            captured = None
            if workers.rank in turn:
                start, stop = turn[workers.rank]
                captured = session.take_pass(session.rows(name, start, stop))
                if form is not None and not done:
                    held.put(place, [FORMS[form](block) for block in captured.blocks])
                    place += stop - start
                if totals is not None:
                    totals.add(captured)
            for member, (start, stop) in turn.items():
                brought = _brought(session, captured, member, stop - start, store)
                if brought is not None:
                    f[start:stop] = brought.f
                    if writer is not None:
                        writer.write(start, _row_tensors(session, name, brought, start, store))
                progress.advance(stop - start)
            if writer is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                writer.checkpoint(max(stop for _, stop in turn.values()))
                saved = time.monotonic()
    workers.broadcast(f, LEADER)
    if totals is not None:
        session.kept[f"totals-{name}"] = {weighted: workers.sum_to_leader(q) for weighted, q in totals.sums.items()}
    if form is None:
        return _with_own_rows(session, name, f, None, None)
    blocks = held.blocks or tuple(FORMS[form](block).rows(0, 0) for block in session.capture.templates)
    own = HeldJacobian(session.layout, f if mine is None else f[mine], blocks)
    return _shared(session, name, f, own, form)


def own_rows(session: Session, name: str) -> list[int] | None:
    """The rows of a split that this member holds; None where they are all."""
    if session.workers.size == 1:
        return None
    holders = owners_of(len(session.split(name)), session.pass_rows(name), session.workers.size)
    return (holders == session.workers.rank).nonzero().squeeze(1).tolist()


def _turns(n_rows: int, step: int, done: int, size: int) -> Iterator[dict[int, tuple[int, int]]]:
    """Who computes which rows, turn by turn: by member, [first, last)."""
    pieces = [(max(left, done), min(left + step, n_rows), left // step % size) for left in range(0, n_rows, step)]
    left_over = [piece for piece in pieces if piece[1] > done]
    while left_over:
        turn: dict[int, tuple[int, int]] = {}
        while left_over and left_over[0][2] not in turn:
            start, stop, member = left_over.pop(0)
            turn[member] = (start, stop)
        yield turn


def _brought(session: Session, captured: Captured | None, member: int, n_rows: int, store: bool) -> Captured | None:
    """A member's pass on the leader: its outputs and, where they are stored, its blocks; None on the others."""
    workers, C = session.workers, session.n_outputs
    if member == LEADER:
        return captured if workers.rank == LEADER else None
    if workers.rank not in (member, LEADER):
        return None
    if workers.rank == member:
        assert captured is not None, "it was this member's turn"
        f, blocks = captured.f, captured.blocks
    else:
        f = torch.empty(n_rows, C, dtype=torch.float64, device=session.device)
        blocks = [_with_room(block, n_rows) for block in session.capture.templates] if store else []
    workers.send_to_leader(f.contiguous(), member)
    for block in blocks if store else ():
        for tensor in block.tensors().values():
            workers.send_to_leader(tensor.contiguous(), member)
    return Captured(f, blocks) if workers.rank == LEADER else None


def _with_room(block: Block, n_rows: int) -> Block:
    return block.with_tensors({name: t.new_empty(n_rows, *t.shape[1:]) for name, t in block.tensors().items()})


def _writer(session: Session, name: str, store: bool) -> RowWriter:
    split, C, step = session.split(name), session.n_outputs, session.pass_rows(name)
    plans = {"outputs": by_rows(torch.float64, (len(split), C), step)}
    plans["rows"] = by_rows(torch.int64, (len(split),), step)
    if split.targets is not None:
        kind = torch.float64 if session.task == "regression" else torch.int64
        plans["targets"] = by_rows(kind, split.targets.shape, step)
    if store:
        for block in session.capture.templates:
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
    stored = artifact.digest if artifact.meta["stored"] else None
    form = held_form(session, name) if stored else None
    return session.together(read_rows, name, f, str(artifact.path), stored, form)


def read_rows(session: Session, name: str, f: Tensor, path: str, digest: str | None, form: str | None) -> Jacobian:
    """Rows out of an artifact, by each member its own; one that does not see the file computes its own again."""
    artifact = None
    if digest is not None:
        try:
            artifact = open_artifact(Path(path), "jacobians")
        except UserError:
            if session.workers.rank == LEADER:
                raise
    if artifact is not None and artifact.digest != digest:
        artifact = None
    everybody_sees_it = all(session.workers.exchange(artifact is not None))
    if form is None and not everybody_sees_it:  # rows that are read come block by block: all of them, or none
        artifact = None
    return _with_own_rows(session, name, f, artifact, form)


def _with_own_rows(session: Session, name: str, f: Tensor, artifact: Artifact | None, form: str | None) -> Jacobian:
    """All rows behind an artifact or behind passes, as far as this member holds them."""
    step = session.pass_rows(name)
    everything: Jacobian
    if artifact is None:
        compute = partial(_computed, session, name)
        everything = RecomputedJacobian(session.layout, f, session.capture.templates, compute, step)
    else:
        templates = session.capture.templates
        names = [dict(zip(q.tensors(), _named_tensors(session, q), strict=True)) for q in templates]
        staged = StagedBlocks(artifact, session.device, templates, names)
        everything = StoredJacobian(session.layout, f, templates, staged.read, step, staged.expect)
    mine = own_rows(session, name)
    if mine is not None:
        everything = SomeRows(everything, mine, step)
    own = everything if form is None else HoldingJacobian(everything, FORMS[form], step)
    return _shared(session, name, f, own, form)


def _computed(session: Session, name: str, start: int, stop: int) -> list[Block]:
    return session.take_pass(session.rows(name, start, stop)).blocks


def _shared(session: Session, name: str, f: Tensor, own: Jacobian, form: str | None) -> Jacobian:
    """The Jacobian of all members, of which this one has its own rows; alone, they are all."""
    if session.workers.size == 1:
        return own
    step = session.pass_rows(name)
    templates = session.capture.templates if form is None else tuple(FORMS[form](q) for q in session.capture.templates)
    holders = owners_of(len(f), step, session.workers.size)
    grain = step if form is None else 1
    return ShardedJacobian(session.layout, f, templates, own, holders, session.workers, name, grain=grain)
