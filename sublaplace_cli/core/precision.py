"""Ω = AᵀA + V as a small object that answers questions and is never formed.

Its diagonal, some of its columns, a principal sub-matrix, and the Gram matrix of its rows: each a sum over
row chunks or blocks of the Jacobian, within a memory budget.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from .blocks import Block
from .conv import ConvBlock
from .jacobian import TILE_SHARE, Jacobian, block_groups, row_tiles
from .layout import Layout
from .linalg import mirrored
from .progress import Watch, unwatched

GRAM_TILE_BYTES = 2**30  # a Gram reads every tile once for each tile of the other side: the larger, the fewer times
WEIGHED_ROWS = 1024  # rows of a matrix that are weighed at a time


@dataclass(frozen=True)
class Precision:
    """The Gauss–Newton precision of the training rows: Σₙ Jₙᵀ Hₙ Jₙ + V."""

    jacobian: Jacobian
    root: Tensor  # W (N, C, C)
    prior: Tensor  # v (p,)
    memory: int
    watch: Watch = unwatched

    @property
    def layout(self) -> Layout:
        return self.jacobian.layout

    @property
    def n_rows(self) -> int:
        """Rows of A: N·C."""
        return self.root.shape[0] * self.root.shape[1]

    @cached_property
    def common_weight(self) -> float | None:
        """w where every W is w·I, as for a regression: then it can be taken into the prior, and costs nothing."""
        w = self.root[0, 0, 0]
        same = self.root == w * torch.eye(self.root.shape[1], dtype=self.root.dtype, device=self.root.device)
        return float(w) if bool(same.all()) and float(w) > 0 else None

    def data_diagonal(self) -> Tensor:
        """diag(Ω) − V, the weighted sum of squared gradients (p,)."""
        if self.common_weight is not None:
            return squared_gradients(self.jacobian, None, self.memory).mul_(self.common_weight**2)
        return squared_gradients(self.jacobian, self.root, self.memory)

    def column_chunks(self, S: Tensor) -> Iterator[Tensor]:
        """A′[:, S]ᵀ in the prior's metric, a chunk of rows at a time (k, m·C), each the caller's to change."""
        C, w = self.root.shape[1], self.common_weight
        scale = self.prior[S].rsqrt().mul_(1.0 if w is None else w).unsqueeze(1)
        for start, J_S in column_chunks(self.jacobian, S, self.memory):
            J_S.mul_(scale)
            if w is None:
                weigh_columns(J_S, self.root[start : start + J_S.shape[1] // C], in_place=True)
            yield J_S

    def columns(self, S: Tensor) -> Tensor:
        """A′[:, S]ᵀ in the prior's metric as a whole (k, N·C)."""
        chunks = self.column_chunks(S)
        first = next(chunks)
        if first.shape[1] == self.n_rows:
            return first
        A = torch.empty(len(S), self.n_rows, dtype=torch.float64, device=self.root.device)
        done = 0
        for chunk in itertools.chain([first], chunks):
            A[:, done : done + chunk.shape[1]] = chunk
            done += chunk.shape[1]
        return A

    def gram(self) -> Tensor:
        """K = A V⁻¹ Aᵀ (N·C, N·C)."""
        if self.common_weight is not None:
            return gram(self.jacobian, self.jacobian, self.prior / self.common_weight**2, self.memory, self.watch)
        K = gram(self.jacobian, self.jacobian, self.prior, self.memory, self.watch)
        return weigh_columns(weigh_columns(K, self.root, in_place=True).T, self.root, in_place=True)

    def cross_gram(self, other: Jacobian) -> Tensor:
        """A V⁻¹ J′ᵀ with the unweighted rows of another Jacobian (N·C, M·C)."""
        if self.common_weight is not None:
            return gram(other, self.jacobian, self.prior / self.common_weight, self.memory, self.watch).T
        cross = gram(other, self.jacobian, self.prior, self.memory, self.watch)
        return weigh_columns(cross, self.root, in_place=True).T

    def residual_norms(self, other: Jacobian, chosen: Tensor, w: Tensor) -> Tensor:
        """‖g − Aᵀw‖² in the metric V⁻¹ for chosen rows g (flat over M·C) of another Jacobian."""
        u = weigh_rows(w, self.root)  # Aᵀw = Jᵀ(Ww)
        totals = torch.zeros(len(chosen), dtype=torch.float64, device=w.device)
        for group in block_groups(self.jacobian, other):
            width = sum(self.jacobian.pattern[i].width for i in group)
            step = max(1, self.memory // TILE_SHARE // (8 * width))
            for left in range(0, len(chosen), step):
                part = slice(left, left + step)
                totals[part] += self._group_residual(other, chosen[part], u[:, part], group)
        return totals

    def _group_residual(self, other: Jacobian, chosen: Tensor, u: Tensor, group: list[int]) -> Tensor:
        pulled = [
            torch.zeros(self.jacobian.pattern[i].width, u.shape[1], dtype=torch.float64, device=u.device) for i in group
        ]
        C = self.root.shape[1]
        for a, b in row_tiles(self.jacobian, self.memory, group):
            for total, block in zip(pulled, self.jacobian.load(a, b, group), strict=True):
                total += block.pull(u[a * C : b * C])
        result = torch.zeros(len(chosen), dtype=torch.float64, device=u.device)
        for column, row in enumerate((chosen // C).tolist()):
            for total, block in zip(pulled, other.load(row, row + 1, group), strict=True):
                residual = block.dense().flat[int(chosen[column]) % C].double() - total[:, column]
                result[column] += (residual.square() / self.prior[block.span]).sum()
        return result


def squared_gradients(jacobian: Jacobian, root: Tensor | None, memory: int) -> Tensor:
    """Σₙ diag(Jₙᵀ Hₙ Jₙ) over all rows (p,); unweighted where `root` is None."""
    total = torch.zeros(jacobian.layout.size, dtype=torch.float64, device=jacobian.outputs.device)
    for a, b in row_tiles(jacobian, memory):
        for block in jacobian.load(a, b):
            total[block.span] += block.squares(None if root is None else root[a:b])
    return total


def pull(jacobian: Jacobian, u: Tensor, memory: int) -> Tensor:
    """Jᵀu for coefficients u of the unweighted rows (M·C, r) → (p, r)."""
    C = jacobian.outputs.shape[1]
    total = torch.zeros(jacobian.layout.size, u.shape[1], dtype=torch.float64, device=u.device)
    for a, b in row_tiles(jacobian, memory):
        for block in jacobian.load(a, b):
            total[block.span] += block.pull(u[a * C : b * C])
    return total


def column_chunks(jacobian: Jacobian, S: Tensor, memory: int) -> Iterator[tuple[int, Tensor]]:
    """(first row, J[rows, S]ᵀ) in the order of S (k, m·C), reading only the blocks that hold some of S."""
    C = jacobian.outputs.shape[1]
    places = _Places.of(jacobian.pattern, S)
    for a, b in row_tiles(jacobian, memory, places.blocks, extra=16 * C * len(S)):
        yield a, places.put_together(jacobian.load(a, b, places.blocks), (b - a) * C)


def columns_of_blocks(blocks: Sequence[Block], S: Tensor, n_rows: int) -> Tensor:
    """Jᵀ at S out of the blocks of one pass (k, n_rows)."""
    places = _Places.of(blocks, S)
    return places.put_together([blocks[i] for i in places.blocks], n_rows)


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


def gram(left: Jacobian, right: Jacobian, prior: Tensor, memory: int, watch: Watch = unwatched) -> Tensor:
    """J V⁻¹ J′ᵀ (M·C, M′·C), unweighted; of one Jacobian with itself only one triangle is computed."""
    C, device = left.outputs.shape[1], left.outputs.device
    K = torch.zeros(len(left.outputs) * C, len(right.outputs) * C, dtype=torch.float64, device=device)
    same = left is right
    # A tile's own part of K, and what a structured block needs to make it, must fit as well.
    most = max(1, math.isqrt(memory // TILE_SHARE // 24) // C)
    groups = block_groups(left, right)
    tiles = [[row_tiles(q, memory, group, most=most, cap=GRAM_TILE_BYTES) for q in (left, right)] for group in groups]
    label = "Gram matrix of the training rows" if same else "Gram matrix of test and training rows"
    with watch(label, sum(len(rows) for rows, _ in tiles)) as progress:
        for group, (rows, columns) in zip(groups, tiles, strict=True):
            for a, b in rows:
                A = [_ready(block) for block in left.load(a, b, group)]
                for c, d in columns:
                    if same and c < a:  # the tiles of one Jacobian lie on one grid: below the diagonal, mirrored later
                        continue
                    B = A if same and c == a else [_ready(block) for block in right.load(c, d, group)]
                    for x, y in zip(A, B, strict=True):
                        x.add_gram(y, prior[x.span], K[a * C : b * C, c * C : d * C])
                progress.advance(1)
    return mirrored(K) if same else K


def _ready(block: Block) -> Block:
    """A block that would be written out for every product, written out once."""
    return block.dense() if isinstance(block, ConvBlock) else block


def row_norms(jacobian: Jacobian, prior: Tensor, memory: int) -> Tensor:
    """Squared norms of the rows in the metric V⁻¹ (M·C,)."""
    C = jacobian.outputs.shape[1]
    norms = torch.zeros(len(jacobian.outputs) * C, dtype=torch.float64, device=jacobian.outputs.device)
    for a, b in row_tiles(jacobian, memory):
        for block in jacobian.load(a, b):
            norms[a * C : b * C] += block.norms(prior[block.span])
    return norms


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
