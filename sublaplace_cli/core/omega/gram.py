"""Gram matrices J V⁻¹ J′ᵀ in tiles of rows, within a memory budget; each strip of rows is computed by one worker."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..jacobian.blocks import Block
from ..jacobian.conv import ConvBlock
from ..jacobian.rows import TILE_SHARE, Jacobian, block_groups, loaded, n_outputs, tiles_of
from ..jacobian.sharded import workers_of
from ..kernels.arithmetic import Arithmetic
from ..linalg import mirrored
from ..panels.products import Prior, constants_of
from ..panels.sizes import GramSizes, sizes_of
from ..progress import NoProgress, ProgressFactory
from ..workers import LEADER, collective, owner_of_strip
from .row_sums import SquaresBeside


def gram(left: Jacobian, right: Jacobian, prior: Tensor, memory: int, progress: ProgressFactory = NoProgress) -> Tensor:
    """J V⁻¹ J′ᵀ (m·C, m′·C′), unweighted."""
    K = gram_strips(left, right, prior, memory, left is right, Arithmetic.FLOAT64, progress=progress)
    return mirrored(K) if left is right else K


def strip_width(n_rows: int, C: int, sizes: GramSizes) -> int:
    """Rows of a Jacobian whose part of a Gram matrix is computed at once, by one worker."""
    # Wide strips are faster, but all workers need some. The width depends only on the number of rows, so that the
    # products, and with them their rounding, are the same for any number of workers.
    least = sizes.strip if n_rows * C > sizes.few_rows else sizes.strip // 2
    return max(1, min(max(least, n_rows * C // sizes.enough_strips), sizes.widest_strip) // C)


def gram_beside(
    own: Jacobian,
    other: Jacobian,
    prior: Tensor,
    memory: int,
    by: Arithmetic,
    squares: SquaresBeside | None = None,
    *,
    progress: ProgressFactory = NoProgress,
) -> tuple[Tensor, Tensor]:
    """J V⁻¹ Jᵀ on and above the diagonal, and J′ V⁻¹ Jᵀ: the bits of `gram_strips`.

    The rows are written out once for both, and for their squares, where one worker holds them and they fit into one
    tile.
    """
    groups, sizes = block_groups(own, other), [len(J.outputs) * n_outputs(J) for J in (own, other)]
    tiles = [_tiles(J, pair, memory, group) for group in groups for pair in ((own, own), (other, own)) for J in pair]
    if workers_of(own).size > 1 or any(len(rows) > 1 for rows in tiles):
        K = gram_strips(own, own, prior, memory, True, by, progress=progress)
        return K, gram_strips(other, own, prior, memory, False, by, progress=progress)
    device = own.outputs.device
    K, cross = (torch.zeros(size, sizes[0], dtype=torch.float64, device=device) for size in sizes)
    strips, values = (_strips(own), _strips(other)), _constants(prior, own)
    with progress("Gram matrix of the training rows, and with the test rows", len(groups)) as bar:
        for group in groups:
            blocks = [[_ready(block) for block in J.load(0, len(J.outputs), group)] for J in (own, other)]
            for number, x, y in zip(group, *blocks, strict=True):
                # A convolution is written out before: its own squares take other rows at a time.
                asked = squares if own.by_block and not isinstance(own.templates[number], ConvBlock) else None
                wanted = None if asked is None else asked.rows_of(own, number, memory)
                found = x.add_grams(_beside(x, y), values[number], (K, cross), strips, by, wanted)
                if asked is not None and found is not None:
                    asked.found[number] = found
            bar.advance(1)
    return K, cross


def _strips(J: Jacobian) -> list[tuple[int, int]]:
    n_rows = len(J.outputs)
    width = strip_width(n_rows, n_outputs(J), sizes_of(J.outputs.device).gram)
    return [(a, min(a + width, n_rows)) for a in range(0, n_rows, width)]


def _tiles(J: Jacobian, pair: tuple[Jacobian, Jacobian], memory: int, group: Sequence[int]) -> list[tuple[int, int]]:
    """The tiles of rows of one of a pair of Jacobians; rows that are held need no memory of their own."""
    # The part of K that belongs to a tile, and the work memory of a factored block, must fit as well.
    most = max(1, math.isqrt(memory // TILE_SHARE // 24) // max(map(n_outputs, pair)))
    row_bytes = sum(J.templates[i].work_bytes if J.is_held else J.templates[i].row_bytes for i in group)
    room = min(memory // TILE_SHARE, sizes_of(J.outputs.device).gram.tile_bytes)
    return tiles_of(J, min(most, room // max(row_bytes, 1)))


@collective
def gram_strips(
    left: Jacobian,
    right: Jacobian,
    prior: Tensor,
    memory: int,
    same: bool,
    by: int,
    *,
    progress: ProgressFactory = NoProgress,
) -> Tensor:
    """All strips of J V⁻¹ J′ᵀ on the leader; of one Jacobian with itself (`same`) on and above the diagonal only."""
    workers, C, C2 = workers_of(left), n_outputs(left), n_outputs(right)
    n_rows, n_columns = len(left.outputs), len(right.outputs)
    strips = [(a, b, owner_of_strip(i, workers.size)) for i, (a, b) in enumerate(_strips(left))]
    mine = [(a, b) for a, b, worker in strips if worker == workers.rank]
    # Only this worker's strips are filled, so that no physical memory is used for the others on a CPU.
    K = torch.empty(n_rows * C, n_columns * C2, dtype=torch.float64, device=left.outputs.device)
    for a, b in mine:
        K[a * C : b * C].zero_()
    groups = block_groups(left, right)
    arithmetic = Arithmetic(by)  # of the products; their sum is float64
    tiles = [[_tiles(J, (left, right), memory, group) for J in (left, right)] for group in groups]
    values = _constants(prior, left)
    label = "Gram matrix of the training rows" if same else "Gram matrix of test and training rows"
    with progress(label, sum(len(rows) for rows, _ in tiles)) as bar:
        for group, (rows, columns) in zip(groups, tiles, strict=True):
            for a, b in rows:
                A = [_ready(block) for block in left.load(a, b, group)]
                inside = [(max(x, a) - a, min(y, b) - a) for x, y in mine if x < b and y > a]
                # The tiles of one Jacobian lie on one grid: each is multiplied with itself and with those after it.
                others = loaded(right, [tile for tile in columns if not same or tile[0] > a], group)
                for c, d, blocks in itertools.chain([(a, b, A)] if same else [], others):
                    for number, x, y in zip(group, A, blocks, strict=True):
                        y = _ready(y) if same else _beside(x, _ready(y))
                        x.add_gram(y, values[number], K[a * C : b * C, c * C2 : d * C2], inside, arithmetic)
                bar.advance(1)
    for a, b, worker in strips:
        if worker != LEADER and workers.rank in (worker, LEADER):
            strip = K[a * C : b * C, a * C if same else 0 :]
            part = strip.contiguous() if workers.rank == worker else torch.empty_like(strip)
            workers.send_to_leader(part, worker)
            strip.copy_(part)
    return K


def _constants(prior: Tensor, J: Jacobian) -> list[Prior]:
    return constants_of(prior, [block.span for block in J.templates])


def _beside(block: Block, other: Block) -> Block:
    """The other block as another object: a block that meets itself computes the upper half only."""
    return replace(other) if other is block else other


def _ready(block: Block) -> Block:
    """Write a convolution out once, instead of for every product."""
    return block.dense() if isinstance(block, ConvBlock) else block
