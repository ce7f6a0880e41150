"""A Jacobian whose rows are held by several workers, in pieces that are assigned in turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ..network.layout import Layout
from ..workers import SINGLE_WORKER, WorkerGroup, collective
from .blocks import Block
from .rows import Jacobian, SomeRows


def owners_of(n_rows: int, rows_per_piece: int, size: int) -> Tensor:
    """The worker that holds each row (n_rows,): pieces of `rows_per_piece` rows, assigned to the workers in turn."""
    return torch.arange(n_rows) // rows_per_piece % size


@dataclass(frozen=True)
class ShardedJacobian:
    """All rows; this worker holds its share, and `load` gathers the rows of all workers."""

    layout: Layout
    outputs: Tensor  # f (N, C) of all rows
    templates: tuple[Block, ...]
    own: Jacobian  # the rows of this worker, in their order
    owners: Tensor  # (N,) on the CPU: the worker that holds each row
    workers: WorkerGroup
    name: str  # the same on all workers
    rows: Sequence[int] | None = None  # if these are only some rows of the Jacobian with that name
    rows_per_read: int = 1
    is_held: bool = field(default=False, init=False)  # `load` gathers rows from others

    @property
    def by_block(self) -> bool:
        return self.own.by_block

    @cached_property
    def own_rows(self) -> Tensor:
        return self.owned_by(self.workers.rank).to(self.outputs.device)

    def owned_by(self, worker: int, start: int = 0, stop: int | None = None) -> Tensor:
        """The numbers of the rows from `start` to `stop` that a worker holds."""
        return (self.owners[start:stop] == worker).nonzero().squeeze(1) + start

    def local_number(self, row: int) -> int:
        """The local number of this worker's first row at or after `row`."""
        return int((self.owners[:row] == self.workers.rank).sum())

    def load(self, start: int, stop: int, which: Sequence[int] | None = None) -> list[Block]:
        within = slice(int(start), int(stop)).indices(len(self.outputs))
        return rows_of_all(self, within[0], max(within[:2]), None if which is None else [int(i) for i in which])


@collective
def rows_of_all(jacobian: ShardedJacobian, start: int, stop: int, which: Sequence[int] | None) -> list[Block]:
    """The blocks of these rows, on every worker."""
    chosen = range(len(jacobian.templates)) if which is None else which
    owned = [jacobian.owned_by(worker, start, stop) for worker in range(jacobian.workers.size)]
    mine, first = owned[jacobian.workers.rank], jacobian.local_number(start)
    own = jacobian.own.load(first, first + len(mine), which) if len(mine) else []
    blocks = []
    for number, i in enumerate(chosen):
        whole = {}
        for key, like in jacobian.templates[i].tensors().items():
            whole[key] = like.new_empty(stop - start, *like.shape[1:])
            for worker, rows in enumerate(owned):
                if len(rows):
                    is_own = worker == jacobian.workers.rank
                    part = own[number].tensors()[key] if is_own else like.new_empty(len(rows), *like.shape[1:])
                    part = part.contiguous()
                    jacobian.workers.broadcast(part, worker)
                    whole[key].index_copy_(0, (rows - start).to(like.device), part)
        blocks.append(jacobian.templates[i].with_tensors(whole))
    return blocks


def some_rows(jacobian: Jacobian, rows: Sequence[int]) -> Jacobian:
    """Some rows of a Jacobian, by number and in rising order."""
    if not isinstance(jacobian, ShardedJacobian):
        return SomeRows(jacobian, rows)
    assert jacobian.rows is None, "some rows of some rows are not supported"
    wanted = torch.as_tensor(list(rows))
    local = (jacobian.owners == jacobian.workers.rank).cumsum(0) - 1  # numbers among this worker's own rows
    mine = wanted[jacobian.owners[wanted] == jacobian.workers.rank]
    own, outputs = SomeRows(jacobian.own, local[mine].tolist()), jacobian.outputs[wanted.to(jacobian.outputs.device)]
    return replace(jacobian, outputs=outputs, own=own, owners=jacobian.owners[wanted], rows=rows, rows_per_read=1)


def workers_of(jacobian: Jacobian) -> WorkerGroup:
    """The workers that hold its rows."""
    return jacobian.workers if isinstance(jacobian, ShardedJacobian) else SINGLE_WORKER


def local_part(jacobian: Jacobian) -> tuple[Jacobian, Tensor | slice]:
    """The rows that this worker holds, and their numbers."""
    return (jacobian.own, jacobian.own_rows) if isinstance(jacobian, ShardedJacobian) else (jacobian, slice(None))
