"""Pieces of rows on several threads: as many as PyTorch may use, each with whole pieces.

PyTorch divides single operations among its threads. On a few rows an operation is so short that the threads wait for
each other longer than they work, and all of them wait where one of the cores is busy. Here a thread does all operations
of a piece itself and undivided, so its numbers are those of one thread.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from threading import Barrier, Lock

import torch

PIECES_BYTES = 64 * 2**20  # what all threads together may take for their pieces
POOL_LOCK = Lock()


def thread_count(piece_bytes: int) -> int:
    """As many as PyTorch may use and this memory has room for."""
    return max(1, min(torch.get_num_threads(), PIECES_BYTES // piece_bytes))


def for_each(work: Callable[[slice], None], pieces: Sequence[slice], threads: int) -> None:
    """Do all pieces, in any order; an error ends those that have not begun."""
    if min(threads, len(pieces)) <= 1:
        for piece in pieces:
            work(piece)
        return
    left, inference = deque(pieces), torch.is_inference_mode_enabled()  # each thread has a mode of its own

    def some() -> None:
        with torch.inference_mode(inference), _all_or_error(left):
            while (piece := _next(left)) is not None:
                work(piece)

    with POOL_LOCK:
        pool = _pool(threads, os.getpid())
    waiting = [pool.submit(some) for _ in range(threads)]
    try:
        with _all_or_error(left):
            for each in waiting:
                each.result()
    finally:
        wait(waiting)


@contextmanager
def _all_or_error(left: deque[slice]) -> Iterator[None]:
    """After an error nothing is left to do."""
    try:
        yield
    except BaseException:
        left.clear()
        raise


def _next(left: deque[slice]) -> slice | None:
    try:
        return left.popleft()
    except IndexError:
        return None


def cut(n_rows: int, step: int, most: int, count: int) -> list[slice]:
    """About `count` pieces of at most `most` rows, each a multiple of `step` but the last."""
    wanted = max(1, min(most, -(-n_rows // count)))
    size = max(step, wanted - wanted % step)
    return [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process (a fork has none of them), none of which divides an operation again."""
    pool, started = ThreadPoolExecutor(threads, "rows"), Barrier(threads)
    before = torch.get_num_threads()

    def start() -> None:
        torch.get_num_threads()  # the first call in a thread takes over the common number: not after the next line
        torch.set_num_threads(1)
        started.wait()  # so that each thread comes here once

    for each in [pool.submit(start) for _ in range(threads)]:
        each.result()
    torch.set_num_threads(before)  # which also is the number for threads that others start later
    return pool
