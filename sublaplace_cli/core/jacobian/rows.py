"""Jacobian rows: held in memory, read from a store, or recomputed. The same pass computes the outputs f."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Protocol

from torch import Tensor

from ..network.layout import Layout
from ..panels.products import Strips
from ..panels.sizes import sizes_of
from .blocks import Block, joined

# Share of the memory budget that one tile of rows may take: two tiles and their float64 panels are alive at the same
# time, together with the caller's matrices. Larger tiles are no faster, and their cap keeps the order of the sums, and
# so the bits, independent of how much memory is free.
TILE_SHARE = 6
Which = Sequence[int] | None  # numbers of blocks; None: all of them


class Jacobian(Protocol):
    """N rows of (C outputs × p parameters), in blocks of one layer each; see `n_outputs` for C."""

    @property
    def layout(self) -> Layout: ...
    @property
    def outputs(self) -> Tensor: ...  # f (N, outputs of the network) float64
    @property
    def templates(self) -> Sequence[Block]: ...  # the blocks of a few rows, which describe the layout
    @property
    def by_block(self) -> bool: ...  # whether loading one block costs only its share of the whole
    @property
    def is_held(self) -> bool: ...  # whether loading a block takes no memory
    @property
    def rows_per_read(self) -> int: ...  # rows that are computed or read at once
    def load(self, start: int, stop: int, which: Which = None) -> list[Block]: ...


def loaded(jacobian: Jacobian, tiles: Strips, which: Which = None) -> Iterator[tuple[int, int, list[Block]]]:
    """(first row, last row, blocks) of each tile; the next tile is announced for prefetching."""
    expect = getattr(jacobian, "expect", None)
    for (a, b), next_tile in zip_longest(tiles, tiles[1:]):
        blocks = jacobian.load(a, b, which)
        if expect is not None and next_tile is not None:
            expect(*next_tile, which)
        yield a, b, blocks


@dataclass(frozen=True)
class HeldJacobian:
    """All rows in memory."""

    layout: Layout
    outputs: Tensor  # (N, C)
    blocks: tuple[Block, ...]
    by_block: bool = field(default=True, init=False)
    is_held: bool = field(default=True, init=False)
    rows_per_read: int = field(default=1, init=False)

    @property
    def templates(self) -> Sequence[Block]:
        return self.blocks

    def load(self, start: int, stop: int, which: Which = None) -> list[Block]:
        blocks = [self.blocks[i] for i in _chosen(which, self.blocks)]
        whole = start == 0 and stop == len(self.outputs)
        return blocks if whole else [block.rows(start, stop) for block in blocks]


class BlockBuffer:
    """Blocks of all rows, filled a few rows at a time, so that no row is in memory twice."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.blocks: tuple[Block, ...] = ()
        self.tensors: list[dict[str, Tensor]] = []  # of each block

    def put(self, start: int, blocks: Sequence[Block], tensors: Sequence[dict[str, Tensor]] | None = None) -> None:
        """Copy the rows of these blocks (their `tensors`, if known) to the rows from `start` on."""
        parts = [block.tensors() for block in blocks] if tensors is None else tensors
        if not self.blocks:
            self.tensors = [{key: t.new_empty(self.n_rows, *t.shape[1:]) for key, t in part.items()} for part in parts]
            self.blocks = tuple(block.with_tensors(own) for block, own in zip(blocks, self.tensors, strict=True))
        for own, part in zip(self.tensors, parts, strict=True):
            for key, values in part.items():
                own[key][start : start + len(values)] = values


@dataclass(frozen=True)
class StoredJacobian:
    """Rows behind `read(block, start, stop)`, which returns a block on the device."""

    layout: Layout
    outputs: Tensor  # (N, C)
    templates: tuple[Block, ...]
    read: Callable[[int, int, int], Block]
    rows_per_read: int = 1
    announce: Callable[[int, int, int], None] | None = None  # called with what will be read next
    by_block: bool = field(default=True, init=False)
    is_held: bool = field(default=False, init=False)

    def load(self, start: int, stop: int, which: Which = None) -> list[Block]:
        return [self.read(i, start, stop) for i in _chosen(which, self.templates)]

    def expect(self, start: int, stop: int, which: Which = None) -> None:
        if self.announce is not None:
            for i in _chosen(which, self.templates):
                self.announce(i, start, stop)


@dataclass(frozen=True)
class HoldingJacobian:
    """Another Jacobian whose blocks are cached in memory, in another form, when they are first read."""

    source: Jacobian
    form: Callable[[Block], Block]
    step: int  # rows that are converted at once: those of a pass, so that the bits are always the same
    held: dict[int, Block] = field(default_factory=dict, init=False, compare=False)
    by_block: bool = field(default=True, init=False)
    is_held: bool = field(default=True, init=False)
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

    def load(self, start: int, stop: int, which: Which = None) -> list[Block]:
        chosen = _chosen(which, self.templates)
        missing = [i for i in chosen if i not in self.held]
        for group in [[i] for i in missing] if self.source.by_block else [missing] if missing else []:
            n_rows = len(self.outputs)
            buffer = BlockBuffer(n_rows)
            for a, _, blocks in loaded(self.source, list(aligned(0, n_rows, self.step, n_rows)), group):
                buffer.put(a, [self.form(block) for block in blocks])
            self.held.update(zip(group, buffer.blocks, strict=True))
        return [self.held[i].rows(start, stop) for i in chosen]


@dataclass(frozen=True)
class RecomputedJacobian:
    """Rows that are recomputed on every read, in the same slices of `rows_per_read` rows: always the same bits."""

    layout: Layout
    outputs: Tensor  # (N, C)
    templates: tuple[Block, ...]
    compute: Callable[[int, int], list[Block]]
    rows_per_read: int
    by_block: bool = field(default=False, init=False)
    is_held: bool = field(default=False, init=False)

    def load(self, start: int, stop: int, which: Which = None) -> list[Block]:
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
    in_pieces_of: int = 1  # rows that are also neighbours in the source
    is_held: bool = field(default=False, init=False)  # its pieces are joined

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

    def load(self, start: int, stop: int, which: Which = None) -> list[Block]:
        parts = [self.source.load(first, last, which) for first, last in runs(self.rows[start:stop])]
        return [joined(pieces) for pieces in zip(*parts, strict=True)]

    def expect(self, start: int, stop: int, which: Which = None) -> None:
        expect = getattr(self.source, "expect", None)
        if expect is not None:
            for first, last in runs(self.rows[start:stop]):
                expect(first, last, which)


def runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """[first, last) of every run of consecutive numbers in a rising sequence."""
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
    jacobian: Jacobian, memory: int, which: Which = None, extra: int = 0, cap: int = 0
) -> list[tuple[int, int]]:
    """Slices of rows whose blocks, with `extra` bytes per row, stay within a share of the memory."""
    templates = jacobian.templates
    row_bytes = sum(templates[i].row_bytes for i in _chosen(which, templates)) + extra
    room = min(memory // TILE_SHARE, cap or sizes_of(jacobian.outputs.device).row_tile_bytes)
    return tiles_of(jacobian, room // max(row_bytes, 1))


def tiles_of(jacobian: Jacobian, step: int) -> list[tuple[int, int]]:
    """Slices of at most so many rows, at least one, so that none is computed or read twice where that is possible."""
    n_rows = len(jacobian.outputs)
    step = max(1, min(n_rows, step))
    if step > jacobian.rows_per_read:
        step -= step % jacobian.rows_per_read
    return [(left, min(left + step, n_rows)) for left in range(0, n_rows, step)]


def block_groups(*jacobians: Jacobian) -> list[list[int]]:
    """One group per block if each can be read alone; otherwise one group, so that no pass is repeated."""
    everything = list(range(len(jacobians[0].templates)))
    return [[i] for i in everything] if all(jacobian.by_block for jacobian in jacobians) else [everything]


def n_outputs(jacobian: Jacobian) -> int:
    """C of its rows: all outputs of the network, or as many combinations of them."""
    return jacobian.templates[0].n_outputs


def _chosen(which: Which, templates: Sequence[Block]) -> Sequence[int]:
    return range(len(templates)) if which is None else which
