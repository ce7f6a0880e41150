"""An embedding's table: row n has gradients only at its own tokens, so (tokens, output gradients) is stored."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ..kernels.arithmetic import Arithmetic
from ..panels.products import Prior, Strips, constant_of, is_constant, narrow_strips, weighted
from .blocks import FLOAT64, Block, DenseBlock


@dataclass(frozen=True)
class EmbeddingBlock(Block):
    """Table (n_entries × d): gradient Σₜ onehot(tokenₙₜ) ⊗ δₙₜ."""

    n_entries: int
    tokens: Tensor  # (m, T) int64
    deltas: Tensor  # δ (m, C, T, d)
    factors: ClassVar[tuple[str, ...]] = ("tokens", "deltas")

    @property
    def width(self) -> int:
        return self.n_entries * self.deltas.shape[3]

    @cached_property
    def row_bytes(self) -> int:
        return 8 * self.tokens[:1].numel() + 3 * self.deltas[:1].numel() * self.deltas.element_size()

    def squares(self, W: Tensor | None = None) -> Tensor:
        delta = self.deltas.double() if W is None else weighted(self.deltas.double(), W)
        power = (delta * self._summed(delta)).sum(1)  # (m, T, d)
        total = torch.zeros(self.n_entries, power.shape[2], dtype=torch.float64, device=power.device)
        return total.index_add_(0, self.tokens.flatten(), power.flatten(0, 1)).flatten().clamp_(min=0.0)

    def put_columns(self, local: Tensor, out: Tensor) -> None:
        d = self.deltas.shape[3]
        entry, axis = local // d, local % d
        total = out.zero_().view(len(local), self.n_rows, self.deltas.shape[1])
        for t in range(self.tokens.shape[1]):
            hit = (self.tokens[:, t] == entry.unsqueeze(1)).double().unsqueeze(2)  # (k, m, 1)
            total += self.deltas[:, :, t].permute(2, 0, 1).index_select(0, axis) * hit

    def add_gram(
        self, other: Block, prior: Prior, total: Tensor, strips: Strips | None = None, by: Arithmetic = FLOAT64
    ) -> None:
        v = constant_of(prior)
        if not isinstance(other, EmbeddingBlock) or v is None:
            super().add_gram(other, prior, total, strips, by)
            return
        met, C = other._entries(v, by.dtype), self.n_outputs
        for a, b in narrow_strips(strips, self.n_rows, C, self.device):
            first = a if other is self else 0
            part = total[a * C : b * C, first * other.n_outputs :]
            self.rows(a, b)._entries(v, by.dtype).add_products(met.from_row(first), part)

    def is_factored(self, other: Block, prior: Prior) -> bool:
        return isinstance(other, EmbeddingBlock) and constant_of(prior) is not None

    def _entries(self, v: float, dtype: torch.dtype) -> "_Entries":
        """The entries that a row uses, each once, with the sum of its gradients in the prior's metric."""
        m, C, T, d = self.deltas.shape
        row = torch.arange(m, device=self.tokens.device).unsqueeze(1)
        used, place = (self.tokens * m + row).flatten().unique(return_inverse=True)  # by entry, then by row
        deltas = (self.deltas.double() * v**-0.5).transpose(1, 2).reshape(m * T, C * d)
        total = deltas.new_zeros(len(used), C * d).index_add_(0, place, deltas)
        return _Entries(used // m, used % m, total.view(-1, C, d).to(dtype))

    def own_products(self, prior: Tensor) -> Tensor:
        if not is_constant(prior):
            return torch.cat([self.rows(i, i + 1).dense().own_products(prior) for i in range(self.n_rows)])
        delta = self.deltas.double()
        return delta.flatten(2) @ self._summed(delta).flatten(2).mT / prior[0]

    def _summed(self, delta: Tensor) -> Tensor:
        """δ summed over equal tokens of a row: a token that occurs twice counts once, with the sum of its gradients."""
        same = (self.tokens.unsqueeze(2) == self.tokens.unsqueeze(1)).double()  # (m, T, T)
        return torch.einsum("nts,ncsd->nctd", same, delta)

    def pull(self, u: Tensor) -> Tensor:
        m, C, T, _ = self.deltas.shape
        delta = torch.einsum("ncr,nctd->ntdr", u.reshape(m, C, -1), self.deltas.to(u.dtype)).reshape(m * T, -1)
        total = delta.new_zeros(self.n_entries, delta.shape[1])
        return total.index_add_(0, self.tokens.flatten(), delta).reshape(self.width, -1)

    def dense(self) -> DenseBlock:
        m, C, _, d = self.deltas.shape
        values = torch.zeros(m, C, self.n_entries, d, dtype=torch.float64, device=self.deltas.device)
        entries = self.tokens.reshape(m, 1, -1, 1).expand_as(self.deltas)
        return DenseBlock(self.start, values.scatter_add_(2, entries, self.deltas.double()).flatten(2))


@dataclass(frozen=True)
class _Entries:
    """Pairs of an entry and a row that uses it, by entry: only rows that share an entry have a product."""

    entry: Tensor  # (e,) rising
    row: Tensor  # (e,)
    deltas: Tensor  # (e, C, d)

    def from_row(self, first: int) -> "_Entries":
        """Those of later rows, which are counted from `first` on."""
        kept = self.row >= first
        return self if first == 0 else _Entries(self.entry[kept], self.row[kept] - first, self.deltas[kept])

    def add_products(self, other: "_Entries", total: Tensor) -> None:
        """total += the products of all rows with the other rows (m·C, n·C′), one entry after the other."""
        left, right = self._groups(), other._groups()
        for number in sorted(left.keys() & right.keys()):
            (rows, A), (columns, B) = left[number], right[number]
            total.index_put_((rows.unsqueeze(1), columns), (A @ B.T).to(total.dtype), accumulate=True)

    def _groups(self) -> dict[int, tuple[Tensor, Tensor]]:
        """(rows of a Gram matrix, their gradients) of each entry."""
        C = self.deltas.shape[1]
        numbers, counts = self.entry.unique_consecutive(return_counts=True)
        flat = (self.row.unsqueeze(1) * C + torch.arange(C, device=self.row.device)).flatten()
        sizes = (counts * C).tolist()
        parts = zip(flat.split(sizes), self.deltas.flatten(0, 1).split(sizes), strict=True)
        return dict(zip(numbers.tolist(), parts, strict=True))
