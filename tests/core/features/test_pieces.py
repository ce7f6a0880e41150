"""Pieces of rows on several threads: every row once, nothing divided again, errors arrive."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from sublaplace_cli.core.features.pieces import PIECES_BYTES, cut, for_each, thread_count

PIECES = [slice(i, i + 1) for i in range(12)]


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n_rows", [0, 1, 7, 64, 1000])
@pytest.mark.parametrize(("step", "most", "count"), [(1, 65, 8), (6, 65, 8), (65, 65, 1), (9, 4, 3), (1, 1, 100)])
def test_pieces_are_multiples_of_the_step_and_hold_every_row_once(n_rows, step, most, count):
    pieces = cut(n_rows, step, most, count)
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == [*range(n_rows)]
    sizes = [piece.stop - piece.start for piece in pieces]
    assert all(size % step == 0 for size in sizes[:-1])
    assert all(0 < size <= max(step, most) for size in sizes)


def test_threads_are_those_of_pytorch_that_share_the_memory():
    with torch_threads(5):
        assert [thread_count(PIECES_BYTES // share) for share in (1, 3, 5, 9)] == [1, 3, 5, 5]
        assert thread_count(2 * PIECES_BYTES) == 1
    assert thread_count(1) == torch.get_num_threads() == 1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_piece_is_done_once(threads):
    done = torch.zeros(12)
    with torch_threads(threads):
        for_each(lambda piece: done[piece].add_(1), PIECES, threads)
    assert torch.equal(done, torch.ones(12))


def test_threads_do_not_divide_operations_again_and_the_caller_keeps_its_number():
    at_once, seen = threading.Barrier(3, timeout=60), []

    def work(piece: slice) -> None:
        if piece.start < 3:
            at_once.wait()  # so that each thread has one
        seen.append((threading.get_ident(), torch.get_num_threads()))

    with torch_threads(3):
        for_each(work, PIECES, 3)
        assert torch.get_num_threads() == 3
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [3]
    assert len({ident for ident, _ in seen}) == 3
    assert {number for _, number in seen} == {1}


@pytest.mark.parametrize(("threads", "pieces"), [(1, PIECES), (2, PIECES[:1])])
def test_one_thread_or_piece_is_done_by_the_caller(threads, pieces):
    seen = set()
    for_each(lambda _: seen.add(threading.get_ident()), pieces, threads)
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_ends_it(threads):
    begun = []

    def work(piece: slice) -> None:
        begun.append(piece.start)
        raise ValueError("no memory")

    many = [slice(i, i + 1) for i in range(10_000)]
    with pytest.raises(ValueError, match="no memory"):
        for_each(work, many, threads)
    assert len(begun) < len(many)


def test_threads_have_the_inference_mode_of_the_caller():
    with torch.inference_mode():
        total = torch.zeros(12)
        for_each(lambda piece: total[piece].add_(1), PIECES, 2)
    assert torch.equal(total.clone(), torch.ones(12))


def fill(values: torch.Tensor) -> None:
    for_each(lambda piece: values[piece].fill_(1.0), PIECES, 2)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_has_threads_of_its_own():
    values = torch.zeros(12).share_memory_()
    fill(torch.zeros(12))
    child = multiprocessing.get_context("fork").Process(target=fill, args=(values,), daemon=True)
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 0
    assert torch.equal(values, torch.ones(12))
