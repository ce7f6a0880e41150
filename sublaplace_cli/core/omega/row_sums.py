"""The loops over the rows of a Jacobian: each is a sum over tiles of rows or over blocks, within a memory budget.

Where a team shares the rows, each member adds up its own, and the leader gets the sum (`collective`). A Gram matrix is
the one that needs rows of two members at a time: it is computed in strips of rows, each by one member.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..jacobian.blocks import STRIP, Block, Strips, add_upper
from ..jacobian.conv import ConvBlock
from ..jacobian.rows import TILE_SHARE, Jacobian, block_groups, loaded, row_tiles
from ..jacobian.sharded import ShardedJacobian, local_part, workers_of
from ..linalg import mirrored
from ..progress import Watch, unwatched
from ..workers import LEADER, collective, owner_of_strip

ENOUGH_STRIPS, WIDEST_STRIP = 32, 512  # of a Gram matrix with many rows
GRAM_TILE_BYTES = 2**30  # a Gram reads every tile once for each tile of the other side: the larger, the fewer times
WEIGHED_ROWS = 1024  # rows of a matrix that are weighed at a time


@collective
def squared_gradients(jacobian: Jacobian, root: Tensor | None, memory: int) -> Tensor:
    """Σₙ diag(Jₙᵀ Hₙ Jₙ) over all rows (p,); unweighted where `root` is None."""
    total = torch.zeros(jacobian.layout.size, dtype=torch.float64, device=jacobian.outputs.device)
    own, rows = local_part(jacobian)
    W = None if root is None else root[rows]
    for a, b, blocks in loaded(own, row_tiles(own, memory)):
        for block in blocks:
            total[block.span] += block.squares(None if W is None else W[a:b])
    return workers_of(jacobian).sum_to_leader(total)


@collective
def pull(jacobian: Jacobian, u: Tensor, memory: int) -> Tensor:
    """Jᵀu for coefficients u of the unweighted rows (M·C, r) → (p, r)."""
    C = jacobian.outputs.shape[1]
    total = torch.zeros(jacobian.layout.size, u.shape[1], dtype=torch.float64, device=u.device)
    own, rows = local_part(jacobian)
    mine = u.reshape(-1, C, u.shape[1])[rows].flatten(0, 1)
    for a, b, blocks in loaded(own, row_tiles(own, memory)):
        for block in blocks:
            total[block.span] += block.pull(mine[a * C : b * C])
    return workers_of(jacobian).sum_to_leader(total)


@collective
def row_norms(jacobian: Jacobian, prior: Tensor, memory: int) -> Tensor:
    """Squared norms of the rows in the metric V⁻¹ (M·C,)."""
    M, C = jacobian.outputs.shape
    own, rows = local_part(jacobian)
    norms = torch.zeros(len(own.outputs), C, dtype=torch.float64, device=jacobian.outputs.device)
    for a, b, blocks in loaded(own, row_tiles(own, memory)):
        for block in blocks:
            norms[a:b] += block.norms(prior[block.span]).reshape(-1, C)
    whole = norms.new_zeros(M, C)
    whole[rows] = norms
    return workers_of(jacobian).sum_to_leader(whole).flatten()


def column_chunks(jacobian: Jacobian, S: Tensor, memory: int) -> Iterator[tuple[int, Tensor]]:
    """(first row, J[rows, S]ᵀ) in the order of S (k, m·C), reading only the blocks that hold some of S."""
    C = jacobian.outputs.shape[1]
    places = _Places.of(jacobian.templates, S)
    tiles = row_tiles(jacobian, memory, places.blocks, extra=16 * C * len(S))
    if isinstance(jacobian, ShardedJacobian):
        yield from ((a, columns_between(jacobian, S, a, b)) for a, b in tiles)
    else:
        for a, b, blocks in loaded(jacobian, tiles, places.blocks):
            yield a, places.put_together(blocks, (b - a) * C)


@collective
def columns_between(jacobian: ShardedJacobian, S: Tensor, start: int, stop: int) -> Tensor:
    """J[start:stop, S]ᵀ (k, m·C) of a team's rows: each member puts its own together and brings them to the leader."""
    workers, C = jacobian.workers, jacobian.outputs.shape[1]
    places = _Places.of(jacobian.templates, S)
    leads = workers.rank == LEADER
    whole = S.new_empty(len(S), (stop - start) if leads else 0, C, dtype=torch.float64)
    parts = {member: jacobian.held_by(member, start, stop) for member in range(workers.size)}
    own = whole[:, :0]
    if len(parts[workers.rank]):
        first = jacobian.place_of(start)
        blocks = jacobian.own.load(first, first + len(parts[workers.rank]), places.blocks)
        own = places.put_together(blocks, len(parts[workers.rank]) * C).reshape(len(S), -1, C)
    for member, rows in parts.items():
        if len(rows) and workers.rank in (member, LEADER):
            part = own if member == workers.rank else whole.new_empty(len(S), len(rows), C)
            workers.send_to_leader(part, member)
            if leads:
                whole.index_copy_(1, (rows - start).to(whole.device), part)
    return whole.flatten(1)


def columns_of_blocks(blocks: Sequence[Block], S: Tensor, n_rows: int) -> Tensor:
    """Jᵀ at S out of the blocks of one pass (k, n_rows)."""
    places = _Places.of(blocks, S)
    return places.put_together([blocks[i] for i in places.blocks], n_rows)


@collective
def column_products(
    jacobian: Jacobian, root: Tensor | None, scale: Tensor, S: Tensor, memory: int, *, watch: Watch = unwatched
) -> Tensor:
    """Σ over the rows of A′ᵀA′ at S (k, k), on and above the diagonal, with A′ = WᵀJ·scale."""
    own, rows = local_part(jacobian)
    W = None if root is None else root[rows]
    B = torch.zeros(len(S), len(S), dtype=torch.float64, device=S.device)
    with watch(f"products of {len(S)} parameters' gradients: training rows", len(own.outputs)) as progress:
        for start, J_S in column_chunks(own, S, memory):
            add_upper(B, weighted_columns(J_S, scale, W, start))
            progress.advance(J_S.shape[1] // own.outputs.shape[1])
    return workers_of(jacobian).sum_to_leader(B)


def weighted_columns(J_S: Tensor, scale: Tensor, root: Tensor | None, start: int) -> Tensor:
    """A′ᵀ (k, m·C) from J_Sᵀ of the rows from `start` on, in place."""
    J_S.mul_(scale.unsqueeze(1))
    if root is not None:
        weigh_columns(J_S, root[start : start + J_S.shape[1] // root.shape[1]], in_place=True)
    return J_S


@dataclass(frozen=True)
class _Places:
    """Where the columns S are: which blocks hold them, and where in each; they are put together in rising order."""

    blocks: list[int]  # numbers of the blocks that hold some
    columns: list[Tensor]  # positions within each of these
    back: Tensor | None  # from rising order to that of S; None where they are the same

    @classmethod
    def of(cls, blocks: Sequence[Block], S: Tensor) -> _Places:
        rising, order = S.sort()
        starts = torch.tensor([*(block.start for block in blocks), blocks[-1].span.stop], device=S.device)
        cuts = torch.searchsorted(rising, starts).tolist()
        held = [i for i, (a, b) in enumerate(pairwise(cuts)) if a < b]
        in_order = bool((order[1:] > order[:-1]).all())
        columns = [rising[cuts[i] : cuts[i + 1]] - blocks[i].start for i in held]
        return cls(held, columns, None if in_order else order.argsort())

    def put_together(self, blocks: Sequence[Block], n_rows: int) -> Tensor:
        """Jᵀ at S (k, n_rows) out of the blocks that hold it."""
        k = sum(map(len, self.columns))
        J_S = torch.empty(k, n_rows, dtype=torch.float64, device=self.columns[0].device)
        done = 0
        for block, local in zip(blocks, self.columns, strict=True):
            block.put_columns(local, J_S[done : done + len(local)])
            done += len(local)
        # Whole runs of memory moved once are quicker than columns written where they belong.
        return J_S if self.back is None else J_S.index_select(0, self.back)


def gram(
    left: Jacobian,
    right: Jacobian,
    prior: Tensor,
    memory: int,
    dtype: torch.dtype = torch.float64,
    *,
    watch: Watch = unwatched,
) -> Tensor:
    """J V⁻¹ J′ᵀ (M·C, M′·C), unweighted; of one Jacobian with itself only one triangle is computed.

    `dtype` is that of the products; their sum is float64.
    """
    K = gram_strips(left, right, prior, memory, left is right, dtype == torch.float32, watch=watch)
    return mirrored(K) if left is right else K


def strip_width(n_rows: int, C: int) -> int:
    """Rows of a Jacobian whose part of a Gram matrix is computed in one go, by one member.

    Products are quicker for wide strips, but there must be enough of them to be dealt out; they depend on nothing but
    the number of rows, so that the products, and with them their rounding, are the same for any workers.
    """
    return max(1, min(max(STRIP, n_rows * C // ENOUGH_STRIPS), WIDEST_STRIP) // C)


@collective
def gram_strips(
    left: Jacobian, right: Jacobian, prior: Tensor, memory: int, same: bool, single: bool, *, watch: Watch = unwatched
) -> Tensor:
    """The strips of `gram`, brought together on the leader; of one Jacobian with itself on and above the diagonal."""
    workers, C = workers_of(left), left.outputs.shape[1]
    n_rows, n_columns = len(left.outputs), len(right.outputs)
    grid = strip_width(n_rows, C)
    dealt = [(a, min(a + grid, n_rows), owner_of_strip(i, workers.size)) for i, a in enumerate(range(0, n_rows, grid))]
    mine = [(a, b) for a, b, member in dealt if member == workers.rank]
    # Only this member's strips are ever filled: of the CPU's memory no more than these is taken.
    K = torch.empty(n_rows * C, n_columns * C, dtype=torch.float64, device=left.outputs.device)
    for a, b in mine:
        K[a * C : b * C].zero_()
    # A tile's own part of K, and what a structured block needs to make it, must fit as well.
    most = max(1, math.isqrt(memory // TILE_SHARE // 24) // C)
    groups = block_groups(left, right)
    tiles = [[row_tiles(q, memory, group, most=most, cap=GRAM_TILE_BYTES) for q in (left, right)] for group in groups]
    label = "Gram matrix of the training rows" if same else "Gram matrix of test and training rows"
    with watch(label, sum(len(rows) for rows, _ in tiles)) as progress:
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
                progress.advance(1)
    for a, b, member in dealt:
        if member != LEADER and workers.rank in (member, LEADER):
            strip = K[a * C : b * C, a * C if same else 0 :]
            part = strip.contiguous() if workers.rank == member else torch.empty_like(strip)
            workers.send_to_leader(part, member)
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


@collective
def residual_norms(
    jacobian: Jacobian, root: Tensor, prior: Tensor, other: Jacobian, chosen: Tensor, w: Tensor, memory: int
) -> Tensor:
    """‖g − Aᵀw‖² in the metric V⁻¹ for chosen rows g (flat over M·C) of another Jacobian; A has the rows WᵀJ."""
    u = weigh_rows(w, root)  # Aᵀw = Jᵀ(Ww)
    totals = torch.zeros(len(chosen), dtype=torch.float64, device=w.device)
    for group in block_groups(jacobian, other):
        width = sum(jacobian.templates[i].width for i in group)
        step = max(1, memory // TILE_SHARE // (8 * width))
        for left in range(0, len(chosen), step):
            part = slice(left, left + step)
            totals[part] += _group_residual(jacobian, prior, other, chosen[part], u[:, part], group, memory)
    return workers_of(jacobian).sum_to_leader(totals)


def _group_residual(
    jacobian: Jacobian, prior: Tensor, other: Jacobian, chosen: Tensor, u: Tensor, group: list[int], memory: int
) -> Tensor:
    C, workers = jacobian.outputs.shape[1], workers_of(jacobian)
    own, rows = local_part(jacobian)
    mine = u.reshape(-1, C, u.shape[1])[rows].flatten(0, 1)
    pulled = [torch.zeros(jacobian.templates[i].width, u.shape[1], dtype=torch.float64, device=u.device) for i in group]
    for a, b, blocks in loaded(own, row_tiles(own, memory, group), group):
        for total, block in zip(pulled, blocks, strict=True):
            total += block.pull(mine[a * C : b * C])
    for total in pulled:
        workers.sum_to_leader(total)
        workers.broadcast(total, LEADER)
    result = torch.zeros(len(chosen), dtype=torch.float64, device=u.device)
    theirs, _ = local_part(other)
    for column, row in enumerate((chosen // C).tolist()):
        place = other.place_of(row) if isinstance(other, ShardedJacobian) else row
        if isinstance(other, ShardedJacobian) and not other.holds(row):
            continue
        for total, block in zip(pulled, theirs.load(place, place + 1, group), strict=True):
            residual = block.dense().flat[int(chosen[column]) % C].double() - total[:, column]
            result[column] += (residual.square() / prior[block.span]).sum()
    return result


def weigh_columns(K: Tensor, W: Tensor, in_place: bool = False) -> Tensor:
    """K with its columns (n, c) turned by Wₙ: (r, N·C) → (r, N·C)."""
    N, C, _ = W.shape
    if C == 1:
        return K.mul_(W.reshape(1, N)) if in_place else K * W.reshape(1, N)
    result = K if in_place else torch.empty_like(K)
    for top in range(0, len(K), WEIGHED_ROWS):  # a few rows at a time: K may be as large as memory allows
        rows = slice(top, top + WEIGHED_ROWS)
        result[rows] = torch.einsum("rnc,ncd->rnd", K[rows].reshape(-1, N, C), W).reshape(-1, N * C)
    return result


def weigh_rows(w: Tensor, W: Tensor) -> Tensor:
    """Wₙ wₙ for coefficients of weighted rows: (N·C, r) → (N·C, r)."""
    N, C, _ = W.shape
    return torch.einsum("ncd,ndr->ncr", W, w.reshape(N, C, -1)).reshape(N * C, -1)
