"""An embedding's table: row n has gradients only at its own tokens, so (tokens, output gradients) is stored."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from .blocks import FLOAT64, Block, DenseBlock, Strips, strip_pairs, weighted


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
        self, other: Block, prior: Tensor, total: Tensor, strips: Strips | None = None, dtype: torch.dtype = FLOAT64
    ) -> None:
        if not isinstance(other, EmbeddingBlock) or not bool((prior == prior[0]).all()):
            super().add_gram(other, prior, total, strips, dtype)
            return
        for some, right, part in strip_pairs(self, other, total, strips):
            some._add_strip(right, prior, part, dtype)

    def _add_strip(self, other: "EmbeddingBlock", prior: Tensor, total: Tensor, dtype: torch.dtype) -> None:
        m, C, T, _ = self.deltas.shape
        n, C2, T2, _ = other.deltas.shape
        gradient = self.deltas.to(dtype).flatten(0, 2) @ other.deltas.to(dtype).flatten(0, 2).T / prior[0]
        same = (self.tokens.flatten().unsqueeze(1) == other.tokens.flatten()).double()  # (m·T, n·T2)
        pairs = gradient.view(m, C, T, n, C2, T2) * same.view(m, 1, T, n, 1, T2)
        total += pairs.sum(dim=(2, 5)).reshape(m * C, n * C2)

    def own_products(self, prior: Tensor) -> Tensor:
        if not bool((prior == prior[0]).all()):
            return torch.cat([self.rows(i, i + 1).dense().own_products(prior) for i in range(self.n_rows)])
        delta = self.deltas.double()
        return delta.flatten(2) @ self._summed(delta).flatten(2).mT / prior[0]

    def _summed(self, delta: Tensor) -> Tensor:
        """δ summed over equal tokens of a row: a token that occurs twice counts once, with the sum of its gradients."""
        same = (self.tokens.unsqueeze(2) == self.tokens.unsqueeze(1)).double()  # (m, T, T)
        return torch.einsum("nts,ncsd->nctd", same, delta)

    def pull(self, u: Tensor) -> Tensor:
        m, C, T, _ = self.deltas.shape
        delta = torch.einsum("ncr,nctd->ntdr", u.reshape(m, C, -1), self.deltas.double()).reshape(m * T, -1)
        total = torch.zeros(self.n_entries, delta.shape[1], dtype=torch.float64, device=delta.device)
        return total.index_add_(0, self.tokens.flatten(), delta).reshape(self.width, -1)

    def dense(self) -> DenseBlock:
        m, C, _, d = self.deltas.shape
        values = torch.zeros(m, C, self.n_entries, d, dtype=torch.float64, device=self.deltas.device)
        entries = self.tokens.reshape(m, 1, -1, 1).expand_as(self.deltas)
        return DenseBlock(self.start, values.scatter_add_(2, entries, self.deltas.double()).flatten(2))
