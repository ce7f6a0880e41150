"""A worker group of threads in one process: the methods of `ProcessGroup`, fast enough for many cases."""

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

Returned = TypeVar("Returned")


class Exchange:
    """What the threads of one group use to pass values to each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots: list[Any] = [None] * size
        self.calls: list[queue.Queue] = [queue.Queue() for _ in range(size)]
        self.to_leader: list[queue.Queue] = [queue.Queue() for _ in range(size)]
        self.called: list[str] = []


class ThreadWorker:
    """One worker (`core.workers.WorkerGroup`)."""

    workers_on_device = 1

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._exchange, self.rank, self.size = exchange, rank, exchange.size
        self.busy = rank != LEADER

    def call_on_all(self, function: str, arguments: Sequence[Any]) -> None:
        if self.rank != LEADER:
            return
        self._exchange.called.append(function)
        for other in range(1, self.size):
            self._exchange.calls[other].put((function, arguments))

    def sum_to_leader(self, values: Tensor) -> Tensor:
        found = self.exchange(values.clone())
        values.copy_(sum(found[1:], found[0]) if self.rank == LEADER else torch.full_like(values, torch.nan))
        return values

    def broadcast(self, values: Tensor, owner: int) -> None:
        values.copy_(self.exchange(values.clone())[owner])

    def send_to_leader(self, values: Tensor, owner: int) -> None:
        assert values.is_contiguous()
        if owner != LEADER and self.rank == owner:
            self._exchange.to_leader[owner].put(values.clone())
        elif owner != LEADER and self.rank == LEADER:
            values.copy_(self._exchange.to_leader[owner].get(timeout=60))

    def exchange(self, own: Any) -> list[Any]:
        self._exchange.slots[self.rank] = own
        self._exchange.barrier.wait()
        found = list(self._exchange.slots)
        self._exchange.barrier.wait()
        return found

    def calls(self, find: Callable) -> Iterator[tuple[str, list[Any]]]:
        while (call := self._exchange.calls[self.rank].get(timeout=60)) is not None:
            function, arguments = call
            yield function, [find(v.name, v.rows) if hasattr(v, "workers") else v for v in arguments]

    def end_calls(self) -> None:
        for other in range(1, self.size):
            self._exchange.calls[other].put(None)


def sharded(
    jacobian: HeldJacobian, name: str, rows_per_piece: int, workers: ThreadWorker, hold: Callable
) -> ShardedJacobian:
    """A Jacobian of which each worker holds its pieces of `rows_per_piece` rows; `hold` wraps the rows of a worker."""
    owners = owners_of(len(jacobian.outputs), rows_per_piece, workers.size)
    own = hold(SomeRows(jacobian, (owners == workers.rank).nonzero().squeeze(1).tolist(), rows_per_piece))
    templates = tuple(block.rows(0, 1) for block in jacobian.blocks)
    return ShardedJacobian(jacobian.layout, jacobian.outputs, templates, own, owners, workers, name)


def run_on_workers(
    size: int,
    rows_per_piece: int,
    jacobians: dict[str, HeldJacobian],
    work: Callable[[dict[str, ShardedJacobian]], Returned],
    hold: Callable[[Jacobian], Jacobian] = lambda own: own,
) -> tuple[Returned, list[str]]:
    """What `work` returns on the leader while the other workers follow, and the collective functions it called."""
    exchange, failures = Exchange(size), []

    def shards(workers: ThreadWorker) -> dict[str, ShardedJacobian]:
        return {name: sharded(rows, name, rows_per_piece, workers, hold) for name, rows in jacobians.items()}

    def follow(rank: int) -> None:
        workers = ThreadWorker(exchange, rank)
        own = shards(workers)

        def find(name: str, rows: Sequence[int] | None) -> Jacobian:
            return own[name] if rows is None else some_rows(own[name], rows)

        try:
            for function, arguments in workers.calls(find):
                COLLECTIVES[function](*arguments)
        except BaseException as error:
            failures.append(error)
            exchange.barrier.abort()

    threads = [threading.Thread(target=follow, args=(rank,), daemon=True) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    leader = ThreadWorker(exchange, LEADER)
    try:
        result = work(shards(leader))
    finally:
        leader.end_calls()
        for thread in threads:
            thread.join(60)
    assert not failures, failures
    return result, exchange.called


def tensors_of(blocks: Sequence[Block]) -> list[Tensor]:
    return [tensor for block in blocks for tensor in block.tensors().values()]
