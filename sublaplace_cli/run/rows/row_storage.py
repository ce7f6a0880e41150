"""Where the Jacobian rows of a split are: held in memory, stored in an artifact, or recomputed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core.jacobian.rows import Jacobian
from ...core.jacobian.sharded import some_rows
from ...core.workers import COLLECTIVES, WorkerGroup
from ...files.artifacts.artifact import Artifact
from ...files.artifacts.layout import TensorPlan, by_rows
from ...files.artifacts.row_writer import RowWriter
from ...sizes import format_bytes
from ..store import Key, Store
from .row_shards import COMPACT, EXPANDED, RowSource, SplitRows, make_rows, read_rows

HELD_SHARE = 4  # a Jacobian within this share of the memory is held in it


@dataclass(frozen=True)
class RowStorage:
    """How the rows of one split are stored."""

    source: RowSource
    memory: int
    stored: bool  # whether an artifact holds the rows; otherwise later steps recompute them
    written: bool = True  # whether there is an artifact at all (with outputs and row numbers)
    inputs: Mapping[str, str] = field(default_factory=dict)  # digests of rows that do not identify the run

    @property
    def form(self) -> str | None:
        """The form in which blocks are held in memory; None if a worker has no room for its share."""
        room = self.memory * self.source.workers.size // HELD_SHARE
        if self.source.expanded_bytes() <= room:
            return EXPANDED if self.source.expands else COMPACT
        return COMPACT if self.source.compact_bytes() <= room else None

    @property
    def key(self) -> Key:
        name = self.source.name
        return Key("jacobians", f"jacobians-{name}", self.inputs, {"split": name}, "jacobians")


def open_rows(store: Store, storage: RowStorage) -> SplitRows:
    """The Jacobian of a split: reused if its artifact exists, otherwise computed and stored."""

    def read(artifact: Artifact) -> SplitRows | None:
        return None if storage.stored and not artifact.meta["stored"] else _read(storage, artifact)

    return store.get(storage.key, lambda: _make(store, storage), read, lambda _: None).value


def _make(store: Store, storage: RowStorage) -> SplitRows:
    source, stored, form = storage.source, storage.stored, storage.form
    if not stored and storage.written:
        source.reporter.note(
            f"the Jacobian of the {source.name} rows ({format_bytes(source.compact_bytes())}) is larger than "
            "--max-artifact or the free disk space allows: not stored, later steps compute it again"
        )
    writer = _writer(store, storage) if storage.written else None
    done = 0 if writer is None else writer.rows_done
    if done:
        source.reporter.note(f"continuing the Jacobian of the {source.name} rows at row {done} of {len(source.split)}")
    add_up = not stored and form is None and not done  # a resumed sum would miss the earlier rows
    try:
        with _on_all_workers(source, make_rows, stored, form, done, add_up):
            made = make_rows(source, stored, form, done, add_up, writer)
        if writer is not None:
            writer.finish()
    finally:
        if writer is not None:
            writer.close()
    if writer is not None:
        store.artifacts[storage.key.name] = str(writer.path)
    return _read(storage, store.open(storage.key)) if done or (stored and form is None) else made


def _writer(store: Store, storage: RowStorage) -> RowWriter:
    source, step = storage.source, storage.source.rows_per_pass
    n_rows, targets = len(source.split), source.split.targets
    plans: dict[str, TensorPlan] = {"outputs": by_rows(torch.float64, (n_rows, source.passes.n_outputs), step)}
    plans["rows"] = by_rows(torch.int64, (n_rows,), step)
    if targets is not None:
        plans["targets"] = by_rows(torch.float64 if targets.dtype.kind == "f" else torch.int64, targets.shape, step)
    for block in source.templates if storage.stored else ():
        for name, tensor in zip(source.tensor_names[block.start].values(), block.tensors().values(), strict=True):
            plans[name] = by_rows(tensor.dtype, (n_rows, *tensor.shape[1:]), step)
    return store.row_writer(storage.key, plans, stored=storage.stored, row_outputs=source.passes.row_outputs)


def _read(storage: RowStorage, artifact: Artifact) -> SplitRows:
    source = storage.source
    f = artifact.tensor("outputs", (len(source.split), source.passes.n_outputs)).to(source.device)
    digest = artifact.digest if artifact.meta["stored"] else None
    form = storage.form if digest else None
    with _on_all_workers(source, read_rows, f, str(artifact.path), digest, form):
        return read_rows(source, f, str(artifact.path), digest, form)


@contextmanager
def _on_all_workers(source: RowSource, function: Callable[..., SplitRows], *arguments: Any) -> Iterator[None]:
    """The other workers run `function(source, *arguments)` while this one runs the block."""
    workers = source.workers
    workers.call_on_all(function.__name__, (source.name, *arguments))
    was_busy, workers.busy = workers.busy, True
    try:
        yield
    finally:
        workers.busy = was_busy


def follow(source_of: Callable[[str], RowSource], workers: WorkerGroup) -> None:
    """On all workers but the leader: run its collective calls until it ends them."""
    jacobians: dict[str, Jacobian] = {}
    on_sources = {function.__name__: function for function in (make_rows, read_rows)}

    def find(name: str, rows: Sequence[int] | None) -> Jacobian:
        return jacobians[name] if rows is None else some_rows(jacobians[name], rows)

    for function, arguments in workers.calls(find):
        if function in on_sources:
            name, *rest = arguments
            jacobians[name] = on_sources[function](source_of(name), *rest).jacobian
        else:
            COLLECTIVES[function](*arguments)
