"""A Jacobian whose rows are held by the members of a workers, in pieces that were dealt out one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..network.layout import Layout
from ..workers import SINGLE_WORKER, WorkerGroup, collective
from .blocks import Block
from .rows import Jacobian, SomeRows


def owners_of(n_rows: int, grain: int, size: int) -> Tensor:
    """The member that holds each row (n_rows,): pieces of `grain` rows, one to each member in turn."""
    return torch.arange(n_rows) // grain % size


@dataclass(frozen=True)
class ShardedJacobian:
    """All rows, of which this member holds its own; `load` brings together what the others hold."""

    layout: Layout
    outputs: Tensor  # f (N, C) of all rows
    templates: tuple[Block, ...]
    own: Jacobian  # the rows of this member, in their order
    holders: Tensor  # (N,) on the CPU
    workers: WorkerGroup
    name: str  # by which the members know it
    rows: Sequence[int] | None = None  # where these are some rows of the one with that name
    grain: int = 1

    @property
    def by_block(self) -> bool:
        return self.own.by_block

    @cached_property
    def own_rows(self) -> Tensor:
        """The numbers of this member's rows, on the device."""
        return self.held_by(self.workers.rank).to(self.outputs.device)

    def held_by(self, member: int, start: int = 0, stop: int | None = None) -> Tensor:
        """The numbers of the rows from `start` to `stop` that a member holds."""
        return (self.holders[start:stop] == member).nonzero().squeeze(1) + start

    def holds(self, row: int) -> bool:
        """Whether this member holds a row."""
        return int(self.holders[row]) == self.workers.rank

    def place_of(self, row: int) -> int:
        """The place among this member's own rows of the first that is not before `row`."""
        return int((self.holders[:row] == self.workers.rank).sum())

    def load(self, start: int, stop: int, which: Sequence[int] | None = None) -> list[Block]:
        within = slice(int(start), int(stop)).indices(len(self.outputs))
        return rows_of_all(self, within[0], max(within[:2]), None if which is None else [int(i) for i in which])


@collective
def rows_of_all(jacobian: ShardedJacobian, start: int, stop: int, which: Sequence[int] | None) -> list[Block]:
    """The blocks of these rows on every member, whoever holds them."""
    chosen = range(len(jacobian.templates)) if which is None else which
    held = [jacobian.held_by(member, start, stop) for member in range(jacobian.workers.size)]
    mine, first = held[jacobian.workers.rank], jacobian.place_of(start)
    own = jacobian.own.load(first, first + len(mine), which) if len(mine) else []
    blocks = []
    for number, i in enumerate(chosen):
        whole = {}
        for key, like in jacobian.templates[i].tensors().items():
            whole[key] = like.new_empty(stop - start, *like.shape[1:])
            for member, rows in enumerate(held):
                if len(rows):
                    is_own = member == jacobian.workers.rank
                    part = own[number].tensors()[key] if is_own else like.new_empty(len(rows), *like.shape[1:])
                    part = part.contiguous()
                    jacobian.workers.broadcast(part, member)
                    whole[key].index_copy_(0, (rows - start).to(like.device), part)
        blocks.append(jacobian.templates[i].with_tensors(whole))
    return blocks


def some_rows(jacobian: Jacobian, rows: Sequence[int]) -> Jacobian:
    """Some rows of a Jacobian, by number and in rising order."""
    if not isinstance(jacobian, ShardedJacobian):
        return SomeRows(jacobian, rows)
    assert jacobian.rows is None, "one choice of rows is enough"
    wanted = torch.as_tensor(list(rows))
    place = (jacobian.holders == jacobian.workers.rank).cumsum(0) - 1  # among this member's own
    mine = wanted[jacobian.holders[wanted] == jacobian.workers.rank]
    return ShardedJacobian(
        jacobian.layout,
        jacobian.outputs[wanted.to(jacobian.outputs.device)],
        jacobian.templates,
        SomeRows(jacobian.own, place[mine].tolist()),
        jacobian.holders[wanted],
        jacobian.workers,
        jacobian.name,
        rows,
    )


def workers_of(jacobian: Jacobian) -> WorkerGroup:
    """Those who share its rows."""
    return jacobian.workers if isinstance(jacobian, ShardedJacobian) else SINGLE_WORKER


def local_part(jacobian: Jacobian) -> tuple[Jacobian, Tensor | slice]:
    """The rows that this member holds, and their numbers."""
    return (jacobian.own, jacobian.own_rows) if isinstance(jacobian, ShardedJacobian) else (jacobian, slice(None))
