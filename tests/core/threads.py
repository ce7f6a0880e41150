"""A team whose members are threads of one process: what `parallel` does with processes, quick enough for many cases."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from sublaplace_cli.core.jacobian.blocks import Block
from sublaplace_cli.core.jacobian.rows import HeldJacobian, Jacobian, SomeRows
from sublaplace_cli.core.jacobian.sharded import ShardedJacobian, owners_of, some_rows
from sublaplace_cli.core.workers import COLLECTIVES, LEADER

Answer = TypeVar("Answer")


class Meeting:
    """Where the members of a team meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots: list[Any] = [None] * size
        self.asked: list[queue.Queue] = [queue.Queue() for _ in range(size)]
        self.messages = {(a, LEADER): queue.Queue() for a in range(size)}
        self.asked_for: list[str] = []


class ThreadTeam:
    """One member."""

    workers_on_device = 1

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size
        self.busy = rank != LEADER

    def call_on_all(self, question: str, arguments: Sequence[Any]) -> None:
        if self.rank != LEADER:
            return
        self.meeting.asked_for.append(question)
        for other in range(1, self.size):
            self.meeting.asked[other].put((question, arguments))

    def _all(self, own: Any) -> list[Any]:
        self.meeting.slots[self.rank] = own
        self.meeting.barrier.wait()
        found = list(self.meeting.slots)
        self.meeting.barrier.wait()
        return found

    def sum_to_leader(self, values: Tensor) -> Tensor:
        found = self._all(values.clone())
        values.copy_(sum(found[1:], found[0]) if self.rank == LEADER else torch.full_like(values, torch.nan))
        return values

    def broadcast(self, values: Tensor, holder: int) -> None:
        values.copy_(self._all(values.clone())[holder])

    def send_to_leader(self, values: Tensor, holder: int) -> None:
        assert values.is_contiguous()
        if holder != LEADER and self.rank == holder:
            self.meeting.messages[holder, LEADER].put(values.clone())
        elif holder != LEADER and self.rank == LEADER:
            values.copy_(self.meeting.messages[holder, LEADER].get(timeout=60))

    def exchange(self, own: Any) -> list[Any]:
        return self._all(own)

    def calls(self, find: Callable) -> Iterator[tuple[str, list[Any]]]:
        while (asked := self.meeting.asked[self.rank].get(timeout=60)) is not None:
            question, arguments = asked
            yield question, [find(q.name, q.rows) if hasattr(q, "workers") else q for q in arguments]

    def end_calls(self) -> None:
        for other in range(1, self.size):
            self.meeting.asked[other].put(None)


def shared(jacobian: HeldJacobian, name: str, grain: int, workers: ThreadTeam, make: Callable) -> ShardedJacobian:
    """A Jacobian of which a member holds its pieces of `grain` rows; `make` says in which way it holds them."""
    holders = owners_of(len(jacobian.outputs), grain, workers.size)
    own = make(SomeRows(jacobian, (holders == workers.rank).nonzero().squeeze(1).tolist(), grain))
    pattern = tuple(block.rows(0, 1) for block in jacobian.blocks)
    return ShardedJacobian(jacobian.layout, jacobian.outputs, pattern, own, holders, workers, name)


def in_a_team(
    size: int,
    grain: int,
    jacobians: dict[str, HeldJacobian],
    work: Callable[[dict[str, ShardedJacobian]], Answer],
    make: Callable[[Jacobian], Jacobian] = lambda own: own,
) -> tuple[Answer, list[str]]:
    """What `work` gives the leader while the others follow, and what it asked for."""
    meeting, failures = Meeting(size), []

    def follow(rank: int) -> None:
        workers = ThreadTeam(meeting, rank)
        own = {name: shared(q, name, grain, workers, make) for name, q in jacobians.items()}

        def find(name: str, rows: Sequence[int] | None) -> Jacobian:
            return own[name] if rows is None else some_rows(own[name], rows)

        try:
            for question, arguments in workers.calls(find):
                COLLECTIVES[question](*arguments)
        except BaseException as error:
            failures.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=follow, args=(rank,), daemon=True) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    leader = ThreadTeam(meeting, LEADER)
    try:
        answer = work({name: shared(q, name, grain, leader, make) for name, q in jacobians.items()})
    finally:
        leader.goodbye()
        for thread in threads:
            thread.join(60)
    assert not failures, failures
    return answer, meeting.asked_for


def pieces(blocks: Sequence[Block]) -> list[Tensor]:
    return [tensor for block in blocks for tensor in block.tensors().values()]
