"""Gram matrices J V⁻¹ J′ᵀ in tiles of rows, within a memory budget.

They need rows of two workers at a time, so they are computed in strips of rows, each by one worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..jacobian.blocks import GRAM_STRIP, Block, Strips
from ..jacobian.conv import ConvBlock
from ..jacobian.rows import TILE_SHARE, Jacobian, block_groups, loaded, row_tiles
from ..jacobian.sharded import workers_of
from ..linalg import mirrored
from ..progress import ProgressFactory, no_progress
from ..workers import LEADER, collective, owner_of_strip

ENOUGH_STRIPS, WIDEST_STRIP = 32, 512  # of a Gram matrix with many rows
GRAM_TILE_BYTES = 2**30  # each tile is read once per tile of the other side: larger tiles mean fewer reads


def gram(
    left: Jacobian,
    right: Jacobian,
    prior: Tensor,
    memory: int,
    dtype: torch.dtype = torch.float64,
    *,
    progress: ProgressFactory = no_progress,
) -> Tensor:
    """J V⁻¹ J′ᵀ (M·C, M′·C), unweighted; of one Jacobian with itself only one triangle is computed.

    `dtype` is that of the products; their sum is float64.
    """
    K = gram_strips(left, right, prior, memory, left is right, dtype == torch.float32, progress=progress)
    return mirrored(K) if left is right else K


def strip_width(n_rows: int, C: int) -> int:
    """Rows of a Jacobian whose part of a Gram matrix is computed in one go, by one worker.

    Products are quicker for wide strips, but there must be enough of them to be dealt out; they depend on nothing but
    the number of rows, so that the products, and with them their rounding, are the same for any workers.
    """
    return max(1, min(max(GRAM_STRIP, n_rows * C // ENOUGH_STRIPS), WIDEST_STRIP) // C)


@collective
def gram_strips(
    left: Jacobian,
    right: Jacobian,
    prior: Tensor,
    memory: int,
    same: bool,
    single: bool,
    *,
    progress: ProgressFactory = no_progress,
) -> Tensor:
    """The strips of `gram`, brought together on the leader; of one Jacobian with itself on and above the diagonal."""
    workers, C = workers_of(left), left.outputs.shape[1]
    n_rows, n_columns = len(left.outputs), len(right.outputs)
    grid = strip_width(n_rows, C)
    dealt = [(a, min(a + grid, n_rows), owner_of_strip(i, workers.size)) for i, a in enumerate(range(0, n_rows, grid))]
    mine = [(a, b) for a, b, worker in dealt if worker == workers.rank]
    # Only this worker's strips are ever filled: of the CPU's memory no more than these is taken.
    K = torch.empty(n_rows * C, n_columns * C, dtype=torch.float64, device=left.outputs.device)
    for a, b in mine:
        K[a * C : b * C].zero_()
    # A tile's own part of K, and what a structured block needs to make it, must fit as well.
    most = max(1, math.isqrt(memory // TILE_SHARE // 24) // C)
    groups = block_groups(left, right)
    tiles = [[row_tiles(q, memory, group, most=most, cap=GRAM_TILE_BYTES) for q in (left, right)] for group in groups]
    label = "Gram matrix of the training rows" if same else "Gram matrix of test and training rows"
    with progress(label, sum(len(rows) for rows, _ in tiles)) as bar:
        for group, (rows, columns) in zip(groups, tiles, strict=True):
            for a, b in rows:
                A = [_ready(block) for block in left.load(a, b, group)]
                strips = [(max(x, a) - a, min(y, b) - a) for x, y in mine if x < b and y > a]
                # The tiles of one Jacobian lie on one grid: with themselves, and with those behind them.
                if same:
                    _add_tile(K[a * C : b * C, a * C : b * C], A, A, prior, strips, single)
                met = [tile for tile in columns if not same or tile[0] > a]
                for c, d, blocks in loaded(right, met, group):
                    B = [_ready(block) for block in blocks]
                    _add_tile(K[a * C : b * C, c * C : d * C], A, B, prior, strips, single)
                bar.advance(1)
    for a, b, worker in dealt:
        if worker != LEADER and workers.rank in (worker, LEADER):
            strip = K[a * C : b * C, a * C if same else 0 :]
            part = strip.contiguous() if workers.rank == worker else torch.empty_like(strip)
            workers.send_to_leader(part, worker)
            strip.copy_(part)
    return K


def _add_tile(
    total: Tensor, A: Sequence[Block], B: Sequence[Block], prior: Tensor, strips: Strips, single: bool
) -> None:
    for x, y in zip(A, B, strict=True):
        x.add_gram(y, prior[x.span], total, strips, torch.float32 if single else torch.float64)


def _ready(block: Block) -> Block:
    """A block that would be written out for every product, written out once."""
    return block.dense() if isinstance(block, ConvBlock) else block
