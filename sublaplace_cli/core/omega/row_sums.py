"""Sums over the rows of a Jacobian, with and without output weights W; each worker sums its own rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from ..jacobian.blocks import Block
from ..jacobian.rows import Jacobian, block_groups, loaded, n_outputs, row_tiles
from ..jacobian.sharded import ShardedJacobian, local_part, workers_of
from ..panels.products import RowSquares, add_upper
from ..panels.sizes import sizes_of
from ..progress import NoProgress, ProgressFactory
from ..workers import LEADER, collective


@collective
def squared_gradients(jacobian: Jacobian, root: Tensor | None, memory: int) -> Tensor:
    """Σₙ diag(Jₙᵀ Hₙ Jₙ) over all rows (p,); unweighted where `root` is None."""
    own, rows = local_part(jacobian)
    total = torch.zeros(jacobian.layout.size, dtype=torch.float64, device=jacobian.outputs.device)
    _add_squares(total, own, None if root is None else root[rows], memory, block_groups(own))
    return workers_of(jacobian).sum_to_leader(total)


def _add_squares(total: Tensor, own: Jacobian, W: Tensor | None, memory: int, groups: Sequence[list[int]]) -> None:
    for a, b, blocks in _by_group(own, memory, groups):
        for block in blocks:
            total[block.span] += block.squares(None if W is None else W[a:b])


@dataclass(frozen=True)
class SquaresBeside:
    """Squared gradients of the blocks that are written out for a Gram matrix anyway, by number of the block."""

    root: Tensor | None  # W of the rows
    found: dict[int, Tensor] = field(default_factory=dict)

    def rows_of(self, own: Jacobian, block: int, memory: int) -> RowSquares:
        return RowSquares(self.root, _group_tiles(own, memory, [block]))

    def squared_gradients(self, jacobian: Jacobian, memory: int) -> Tensor:
        """`squared_gradients` to the last bit, which takes what was found before."""
        if not self.found:
            return squared_gradients(jacobian, self.root, memory)
        total = torch.zeros(jacobian.layout.size, dtype=torch.float64, device=jacobian.outputs.device)
        rest = [group for group in block_groups(jacobian) if not self.found.keys() & set(group)]
        _add_squares(total, jacobian, self.root, memory, rest)
        while self.found:
            number, squares = self.found.popitem()
            total[jacobian.templates[number].span] = squares
        return total


@collective
def pull(jacobian: Jacobian, u: Tensor, memory: int) -> Tensor:
    """Jᵀu for coefficients u of the unweighted rows (m·C, r) → (p, r)."""
    C = n_outputs(jacobian)
    total = torch.zeros(jacobian.layout.size, u.shape[1], dtype=torch.float64, device=u.device)
    own, rows = local_part(jacobian)
    mine = u.reshape(-1, C, u.shape[1])[rows].flatten(0, 1)
    for a, b, blocks in _by_group(own, memory, block_groups(own)):
        for block in blocks:
            total[block.span] += block.pull(mine[a * C : b * C])
    return workers_of(jacobian).sum_to_leader(total)


@collective
def push(jacobian: Jacobian, x: Tensor, memory: int) -> Tensor:
    """J x of the unweighted rows for vectors x of all parameters (p, r) → (m·C, r)."""
    C, (own, rows) = n_outputs(jacobian), local_part(jacobian)
    pushed = torch.zeros(len(own.outputs) * C, x.shape[1], dtype=torch.float64, device=x.device)
    for a, b, blocks in _by_group(own, memory, block_groups(own)):
        for block in blocks:
            pushed[a * C : b * C] += block.push(x[block.span])
    whole = pushed.new_zeros(len(jacobian.outputs), C, x.shape[1])
    whole[rows] = pushed.reshape(-1, C, x.shape[1])
    return workers_of(jacobian).sum_to_leader(whole).flatten(0, 1)


@collective
def own_products(jacobian: Jacobian, prior: Tensor, memory: int) -> Tensor:
    """Jₙ V⁻¹ Jₙᵀ of every row (m, C, C): on the diagonal, squared norms in the metric V⁻¹."""
    own, rows = local_part(jacobian)
    m, C, device = len(jacobian.outputs), n_outputs(jacobian), jacobian.outputs.device
    whole = torch.zeros(m, C, C, dtype=torch.float64, device=device)
    products = torch.zeros(len(own.outputs), C, C, dtype=torch.float64, device=device)
    for a, b, blocks in _by_group(own, memory, block_groups(own)):
        for block in blocks:
            products[a:b] += block.own_products(prior[block.span])
    whole[rows] = products
    return workers_of(jacobian).sum_to_leader(whole)


def _by_group(own: Jacobian, memory: int, groups: Sequence[list[int]]) -> Iterator[tuple[int, int, list[Block]]]:
    """(first row, last row, blocks) of each tile, one block after the other where each can be read alone.

    Then what has the size of all parameters is added up a few times only.
    """
    for group in groups:
        yield from loaded(own, _group_tiles(own, memory, group), group)


def _group_tiles(own: Jacobian, memory: int, group: Sequence[int]) -> list[tuple[int, int]]:
    sizes = sizes_of(own.outputs.device)
    return row_tiles(own, memory, group, cap=sizes.block_tile_bytes if own.by_block else sizes.row_tile_bytes)


def column_chunks(jacobian: Jacobian, S: Tensor, memory: int) -> Iterator[tuple[int, Tensor]]:
    """(first row, J[rows, S]ᵀ) in the order of S (k, m·C), reading only the blocks that hold some of S."""
    C = n_outputs(jacobian)
    positions = BlockPositions.of(jacobian.templates, S)
    tiles = row_tiles(jacobian, memory, positions.blocks, extra=16 * C * len(S))
    if isinstance(jacobian, ShardedJacobian):
        yield from ((a, columns_between(jacobian, S, a, b)) for a, b in tiles)
    else:
        for a, b, blocks in loaded(jacobian, tiles, positions.blocks):
            yield a, positions.gather(blocks, (b - a) * C)


@collective
def columns_between(jacobian: ShardedJacobian, S: Tensor, start: int, stop: int) -> Tensor:
    """J[start:stop, S]ᵀ (k, m·C) on the leader: each worker sends the part of its own rows."""
    workers, C = jacobian.workers, n_outputs(jacobian)
    positions = BlockPositions.of(jacobian.templates, S)
    whole = S.new_empty(len(S), stop - start if workers.rank == LEADER else 0, C, dtype=torch.float64)
    parts = {worker: jacobian.owned_by(worker, start, stop) for worker in range(workers.size)}
    own = whole[:, :0]
    if len(parts[workers.rank]):
        first = jacobian.local_number(start)
        blocks = jacobian.own.load(first, first + len(parts[workers.rank]), positions.blocks)
        own = positions.gather(blocks, len(parts[workers.rank]) * C).reshape(len(S), -1, C)
    for worker, rows in parts.items():
        if len(rows) and workers.rank in (worker, LEADER):
            part = own if worker == workers.rank else whole.new_empty(len(S), len(rows), C)
            workers.send_to_leader(part, worker)
            if workers.rank == LEADER:
                whole.index_copy_(1, (rows - start).to(whole.device), part)
    return whole.flatten(1)


def columns_of_blocks(blocks: Sequence[Block], S: Tensor, n_rows: int) -> Tensor:
    """Jᵀ at S from the blocks of one pass (k, n_rows)."""
    positions = BlockPositions.of(blocks, S)
    return positions.gather([blocks[i] for i in positions.blocks], n_rows)


@collective
def column_products(
    jacobian: Jacobian,
    root: Tensor | None,
    scale: Tensor,
    S: Tensor,
    memory: int,
    *,
    progress: ProgressFactory = NoProgress,
) -> Tensor:
    """Σ over the rows of A′ᵀA′ at S (k, k), on and above the diagonal, with A′ = WᵀJ·scale."""
    own, rows = local_part(jacobian)
    W = None if root is None else root[rows]
    B = torch.zeros(len(S), len(S), dtype=torch.float64, device=S.device)
    with progress(f"products of {len(S)} parameters' gradients: training rows", len(own.outputs)) as bar:
        for start, J_S in column_chunks(own, S, memory):
            add_upper(B, weighted_columns(J_S, scale, W, start))
            bar.advance(J_S.shape[1] // n_outputs(own))
    return workers_of(jacobian).sum_to_leader(B)


@dataclass(frozen=True)
class BlockPositions:
    """The blocks that hold the columns S, and the positions in each; columns are gathered in rising order."""

    blocks: list[int]  # numbers of the blocks that hold some of S
    columns: list[Tensor]  # positions within each of these
    back: Tensor | None  # from rising order to that of S; None if they are the same

    @classmethod
    def of(cls, blocks: Sequence[Block], S: Tensor) -> Self:
        rising, order = S.sort()
        starts = torch.tensor([*(block.start for block in blocks), blocks[-1].span.stop], device=S.device)
        cuts = torch.searchsorted(rising, starts).tolist()
        held = [i for i, (a, b) in enumerate(pairwise(cuts)) if a < b]
        in_order = bool((order[1:] > order[:-1]).all())
        columns = [rising[cuts[i] : cuts[i + 1]] - blocks[i].start for i in held]
        return cls(held, columns, None if in_order else order.argsort())

    def gather(self, blocks: Sequence[Block], n_rows: int) -> Tensor:
        """Jᵀ at S (k, n_rows) from the blocks that hold it."""
        k = sum(map(len, self.columns))
        J_S = torch.empty(k, n_rows, dtype=torch.float64, device=self.columns[0].device)
        done = 0
        for block, local in zip(blocks, self.columns, strict=True):
            block.put_columns(local, J_S[done : done + len(local)])
            done += len(local)
        # Reordering contiguous columns once is faster than writing each to its final position.
        return J_S if self.back is None else J_S.index_select(0, self.back)


def weigh_columns(K: Tensor, W: Tensor, in_place: bool = False) -> Tensor:
    """K with its columns (n, c) multiplied by Wₙ: (r, N·C) → (r, N·C)."""
    N, C, _ = W.shape
    if C == 1:
        return K.mul_(W.reshape(1, N)) if in_place else K * W.reshape(1, N)
    result = K if in_place else torch.empty_like(K)
    step = sizes_of(K.device).weighted_rows
    for top in range(0, len(K), step):  # a few rows at a time: K may be as large as memory allows
        rows = slice(top, top + step)
        result[rows] = torch.einsum("rnc,ncd->rnd", K[rows].reshape(-1, N, C), W).reshape(-1, N * C)
    return result


def weigh_rows(w: Tensor, W: Tensor) -> Tensor:
    """Wₙ wₙ for coefficients of weighted rows: (N·C, r) → (N·C, r)."""
    N, C, _ = W.shape
    return torch.einsum("ncd,ndr->ncr", W, w.reshape(N, C, -1)).reshape(N * C, -1)


def weighted_columns(J_S: Tensor, scale: Tensor, root: Tensor | None, start: int) -> Tensor:
    """A′ᵀ (k, m·C) from J_Sᵀ of the rows from `start` on, in place."""
    J_S.mul_(scale.unsqueeze(1))
    if root is not None:
        weigh_columns(J_S, root[start : start + J_S.shape[1] // root.shape[1]], in_place=True)
    return J_S
