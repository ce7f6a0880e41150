"""Where Jacobian rows come from: held in memory, read back from a store, or computed again.

All three answer `load(start, stop, which)` with blocks; `by_block` says whether one block alone is as cheap as its
share. `templates` holds the same blocks for a few rows, to tell what there is without loading it. The outputs f
come with the rows, because the same pass gives both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Protocol

from torch import Tensor

from ..network.layout import Layout
from .blocks import Block, joined

# Share of the memory budget that one tile of rows may take: two tiles and their float64 panels live at
# once, beside the matrices that the caller holds. Wider tiles gain no speed, and the cap keeps the order
# of the sums, hence the bits, independent of how much memory happens to be free.
TILE_SHARE = 6
MOST_TILE_BYTES = 256 * 2**20


class Jacobian(Protocol):
    """N rows of (C outputs × p parameters), in blocks of one layer each."""

    @property
    def layout(self) -> Layout: ...
    @property
    def outputs(self) -> Tensor: ...  # f (N, C) float64
    @property
    def templates(self) -> Sequence[Block]: ...
    @property
    def by_block(self) -> bool: ...
    @property
    def rows_per_read(self) -> int: ...  # rows that are made or read together
    def load(self, start: int, stop: int, which: Sequence[int] | None = None) -> list[Block]: ...


def loaded(
    jacobian: Jacobian, tiles: Sequence[tuple[int, int]], which: Sequence[int] | None = None
) -> Iterator[tuple[int, int, list[Block]]]:
    """(first row, last row, blocks) of one tile after the other; what can be read meanwhile is told what comes next."""
    expect = getattr(jacobian, "expect", None)
    for (a, b), following in zip_longest(tiles, tiles[1:]):
        blocks = jacobian.load(a, b, which)
        if expect is not None and following is not None:
            expect(*following, which)
        yield a, b, blocks


@dataclass(frozen=True)
class HeldJacobian:
    """All rows in memory."""

    layout: Layout
    outputs: Tensor  # (N, C)
    blocks: tuple[Block, ...]
    by_block: bool = field(default=True, init=False)
    rows_per_read: int = field(default=1, init=False)

    @property
    def templates(self) -> Sequence[Block]:
        return self.blocks

    def load(self, start: int, stop: int, which: Sequence[int] | None = None) -> list[Block]:
        return [self.blocks[i].rows(start, stop) for i in _chosen(which, self.blocks)]


class BlockBuffer:
    """Blocks of all rows, filled a few rows at a time in their final place, so that nothing exists twice."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.blocks: tuple[Block, ...] = ()

    def put(self, start: int, blocks: Sequence[Block]) -> None:
        if not self.blocks:
            self.blocks = tuple(_with_room(block, self.n_rows) for block in blocks)
        for whole, block in zip(self.blocks, blocks, strict=True):
            for place, values in zip(whole.tensors().values(), block.tensors().values(), strict=True):
                place[start : start + block.n_rows] = values


def _with_room(block: Block, n_rows: int) -> Block:
    return block.with_tensors({name: t.new_empty(n_rows, *t.shape[1:]) for name, t in block.tensors().items()})


@dataclass(frozen=True)
class StoredJacobian:
    """Rows behind `read(block, start, stop)`, which gives a block on the device to work on."""

    layout: Layout
    outputs: Tensor  # (N, C)
    templates: tuple[Block, ...]
    read: Callable[[int, int, int], Block]
    rows_per_read: int = 1
    announce: Callable[[int, int, int], None] | None = None  # to whom it is told what will be read next
    by_block: bool = field(default=True, init=False)

    def load(self, start: int, stop: int, which: Sequence[int] | None = None) -> list[Block]:
        return [self.read(i, start, stop) for i in _chosen(which, self.templates)]

    def expect(self, start: int, stop: int, which: Sequence[int] | None = None) -> None:
        """These will be loaded next."""
        if self.announce is not None:
            for i in _chosen(which, self.templates):
                self.announce(i, start, stop)


@dataclass(frozen=True)
class HoldingJacobian:
    """Another Jacobian whose blocks are held in memory, in a form of their own, from their first reading on."""

    source: Jacobian
    form: Callable[[Block], Block]
    step: int  # rows that are brought into that form together: those of a pass, so that the bits are always the same
    held: dict[int, Block] = field(default_factory=dict, init=False, compare=False)
    by_block: bool = field(default=True, init=False)
    rows_per_read: int = field(default=1, init=False)

    @property
    def layout(self) -> Layout:
        return self.source.layout

    @property
    def outputs(self) -> Tensor:
        return self.source.outputs

    @cached_property
    def templates(self) -> Sequence[Block]:
        return tuple(self.form(block) for block in self.source.templates)

    def load(self, start: int, stop: int, which: Sequence[int] | None = None) -> list[Block]:
        chosen = _chosen(which, self.templates)
        missing = [i for i in chosen if i not in self.held]
        for group in [[i] for i in missing] if self.source.by_block else [missing] if missing else []:
            gathering, n_rows = BlockBuffer(len(self.outputs)), len(self.outputs)
            for a, _, blocks in loaded(self.source, list(aligned(0, n_rows, self.step, n_rows)), group):
                gathering.put(a, [self.form(block) for block in blocks])
            self.held.update(zip(group, gathering.blocks, strict=True))
        return [self.held[i].rows(start, stop) for i in chosen]


@dataclass(frozen=True)
class RecomputedJacobian:
    """Rows that are computed anew at each reading, because storing them was too large.

    Passes run in the same slices of `rows_per_read` rows however much is asked for at once, so that every reading
    gives the same bits.
    """

    layout: Layout
    outputs: Tensor  # (N, C)
    templates: tuple[Block, ...]
    compute: Callable[[int, int], list[Block]]
    rows_per_read: int
    by_block: bool = field(default=False, init=False)

    def load(self, start: int, stop: int, which: Sequence[int] | None = None) -> list[Block]:
        chosen = _chosen(which, self.templates)
        parts = []
        for a, b in aligned(start, stop, self.rows_per_read, len(self.outputs)):
            blocks = self.compute(a, b)
            parts.append([blocks[i].rows(max(a, start) - a, min(b, stop) - a) for i in chosen])
        return [joined(pieces) for pieces in zip(*parts, strict=True)]


@dataclass(frozen=True)
class SomeRows:
    """Some rows of another Jacobian, by number and in rising order."""

    source: Jacobian
    rows: Sequence[int]
    in_pieces_of: int = 1  # rows that are next to each other in the source, too

    @property
    def layout(self) -> Layout:
        return self.source.layout

    @cached_property
    def outputs(self) -> Tensor:
        return self.source.outputs[list(self.rows)]

    @property
    def templates(self) -> Sequence[Block]:
        return self.source.templates

    @property
    def by_block(self) -> bool:
        return self.source.by_block

    @property
    def rows_per_read(self) -> int:
        return self.source.rows_per_read if isinstance(self.rows, range) else self.in_pieces_of

    def load(self, start: int, stop: int, which: Sequence[int] | None = None) -> list[Block]:
        parts = [self.source.load(first, last, which) for first, last in runs(self.rows[start:stop])]
        return [joined(pieces) for pieces in zip(*parts, strict=True)]

    def expect(self, start: int, stop: int, which: Sequence[int] | None = None) -> None:
        """These will be loaded next."""
        expect = getattr(self.source, "expect", None)
        if expect is not None:
            for first, last in runs(self.rows[start:stop]):
                expect(first, last, which)


def runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """[first, last) of every run of neighbours in rising numbers."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1] = (found[-1][0], row + 1)
        else:
            found.append((row, row + 1))
    return found


def aligned(start: int, stop: int, step: int, n_rows: int) -> Iterator[tuple[int, int]]:
    """The slices of a fixed grid of `step` rows that cover [start, stop)."""
    for left in range(start - start % step, stop, step):
        yield left, min(left + step, n_rows)


def row_tiles(
    jacobian: Jacobian,
    memory: int,
    which: Sequence[int] | None = None,
    extra: int = 0,
    most: int | None = None,
    cap: int = MOST_TILE_BYTES,
) -> list[tuple[int, int]]:
    """Slices of at most `most` rows whose blocks, with `extra` bytes a row, stay within a share of the memory.

    Tiles keep to the rows_per_read in which the rows are made or stored, so that none is made or read twice.
    """
    n_rows = len(jacobian.outputs)
    budget = min(memory // TILE_SHARE, cap)
    step = max(1, min(n_rows, budget // max(bytes_per_row(jacobian, which) + extra, 1), most or n_rows))
    if step > jacobian.rows_per_read:
        step -= step % jacobian.rows_per_read
    return [(left, min(left + step, n_rows)) for left in range(0, n_rows, step)]


def bytes_per_row(jacobian: Jacobian, which: Sequence[int] | None = None) -> int:
    """Bytes that one row takes while its blocks answer questions."""
    return sum(jacobian.templates[i].row_bytes for i in _chosen(which, jacobian.templates))


def block_groups(*jacobians: Jacobian) -> list[list[int]]:
    """Block by block where each can be read alone; else all at once, so that no pass is repeated."""
    everything = list(range(len(jacobians[0].templates)))
    if all(jacobian.by_block for jacobian in jacobians):
        return [[i] for i in everything]
    return [everything]


def _chosen(which: Sequence[int] | None, templates: Sequence[Block]) -> Sequence[int]:
    return range(len(templates)) if which is None else which
