"""A linear layer z = W a + b: row n of its Jacobian is Σₜ δₙₜ ⊗ [aₙₜ, 1], and stays a pair (a, δ).

With one position per row every question has a closed form that never forms the product. With several (tokens)
the sum over positions comes before any square, so a question takes the factored form where that needs fewer
multiplications, and writes the rows out, a piece at a time, where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .blocks import (
    FLOAT64,
    Block,
    DenseBlock,
    Strips,
    dense_pieces,
    narrow_strips,
    put_columns_of_pieces,
    squares_of_pieces,
    strip_pairs,
    weighted,
)

# An elementwise product costs about as much as this many multiplications inside a GEMM.
ELEMENTWISE = 8
COLUMNS_AT_ONCE = 64  # so that what is gathered for them stays in the cache


@dataclass(frozen=True)
class LinearBlock:
    """Weight (d_out × d_in, row-major) and, where `has_bias`, the bias right behind it."""

    start: int
    inputs: Tensor  # a (m, T, d_in)
    deltas: Tensor  # δ (m, C, T, d_out)
    has_bias: bool

    @property
    def n_rows(self) -> int:
        return self.inputs.shape[0]

    @property
    def n_weights(self) -> int:
        return self.deltas.shape[3] * self.inputs.shape[2]

    @property
    def width(self) -> int:
        return self.n_weights + (self.deltas.shape[3] if self.has_bias else 0)

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.width)

    @property
    def row_bytes(self) -> int:
        kept = 3 * (self.inputs[:1].numel() + self.deltas[:1].numel())  # as they are, and in float64
        written_out = self.deltas.shape[1] * self.width if self.positions > 1 else 0
        return self.inputs.element_size() * (kept + written_out)

    @property
    def positions(self) -> int:
        return self.inputs.shape[1]

    def squares(self, W: Tensor | None = None) -> Tensor:
        if self.positions > 1:
            return squares_of_pieces(self, self.deltas.shape[1], W)
        delta = self.deltas[:, :, 0].double()  # (m, C, d_out), a copy of our own unless it was float64 already
        delta = delta if W is None else weighted(delta, W)
        power = delta.square().sum(1) if delta.shape[1] > 1 else delta[:, 0].square()  # (m, d_out)
        weight = power.T @ self.inputs[:, 0].double().square()  # (d_out, d_in)
        return torch.cat([weight.flatten(), power.sum(0)]) if self.has_bias else weight.flatten()

    def put_columns(self, local: Tensor, out: Tensor) -> None:
        if self.positions > 1 and ELEMENTWISE * len(local) > self.n_weights:
            put_columns_of_pieces(self, self.deltas.shape[1], local, out)
            return
        is_weight = local < self.n_weights
        d_in = self.inputs.shape[2]
        target = torch.where(is_weight, local // d_in, local - self.n_weights)
        into = torch.where(is_weight, local % d_in, d_in)  # the bias sees a constant 1, behind the inputs
        for t in range(self.positions):
            self._put_columns_at(t, into, target, out)

    def _put_columns_at(self, t: int, into: Tensor, target: Tensor, out: Tensor) -> None:
        """The part of position t: put in place for the first one, added for the others."""
        m, C = self.deltas.shape[:2]
        a = torch.ones(self.inputs.shape[2] + 1, m, dtype=torch.float64, device=into.device)
        a[:-1] = self.inputs[:, t].T  # turned once: then a column is a run of memory
        delta = self.deltas[:, :, t].double().permute(2, 0, 1).flatten(1).contiguous()  # (d_out, m·C)
        for left in range(0, len(into), COLUMNS_AT_ONCE):
            some = slice(left, left + COLUMNS_AT_ONCE)
            if t == 0:
                torch.index_select(delta, 0, target[some], out=out[some])
                out[some].view(-1, m, C).mul_(a.index_select(0, into[some]).unsqueeze(2))
            else:
                picked = delta.index_select(0, target[some]).view(-1, m, C)
                out[some].view(-1, m, C).addcmul_(picked, a.index_select(0, into[some]).unsqueeze(2))

    def add_gram(
        self, other: Block, prior: Tensor, total: Tensor, strips: Strips | None = None, dtype: torch.dtype = FLOAT64
    ) -> None:
        v_weight, v_bias = self._priors(prior)
        if not isinstance(other, LinearBlock) or v_weight is None or not self._factored_is_cheaper(other.positions):
            left = self.dense()
            left.add_gram(left if other is self else other, prior, total, strips, dtype)
            return
        if self.positions == other.positions == self.deltas.shape[1] == 1:
            self._add_plain_gram(other, v_weight, v_bias, total, strips, dtype)
            return
        own = self._widened(dtype)
        met = own if other is self else other._widened(dtype)
        for some, right, part in strip_pairs(own, met, total, self.deltas.shape[1], strips):
            some._add_strip(right, v_weight, v_bias, part)

    def _widened(self, dtype: torch.dtype) -> LinearBlock:
        """The same in the dtype of the products, once for all strips."""
        return LinearBlock(self.start, self.inputs.to(dtype), self.deltas.to(dtype), self.has_bias)

    def _add_strip(self, other: LinearBlock, v_weight: float, v_bias: float | None, total: Tensor) -> None:
        m, C, T, _ = self.deltas.shape
        n, _, S, _ = other.deltas.shape
        kernel = self.inputs.flatten(0, 1) @ other.inputs.flatten(0, 1).T / v_weight  # (m·T, n·S)
        if v_bias is not None:
            kernel += 1 / v_bias
        gradient = self.deltas.flatten(0, 2) @ other.deltas.flatten(0, 2).T  # (m·C·T, n·C·S)
        product = gradient.view(m, C, T, n, C, S) * kernel.view(m, 1, T, n, 1, S)
        total += product.sum(dim=(2, 5)).reshape(m * C, n * C)

    def _add_plain_gram(
        self,
        other: LinearBlock,
        v_weight: float,
        v_bias: float | None,
        total: Tensor,
        strips: Strips | None,
        dtype: torch.dtype,
    ) -> None:
        """(a·a′/v_W + 1/v_b)(δ·δ′) for one position and one output, in strips that stay in the cache."""
        a, delta = self._seen(v_weight, v_bias).to(dtype), self.deltas[:, 0, 0].to(dtype)
        b, epsilon = a, delta
        if other is not self:
            b, epsilon = other._seen(v_weight, v_bias).to(dtype), other.deltas[:, 0, 0].to(dtype)
        for top, end in narrow_strips(strips, len(a), 1):
            columns = slice(top if other is self else 0, None)
            inputs, gradients = a[top:end] @ b[columns].T, delta[top:end] @ epsilon[columns].T
            total[top:end, columns].addcmul_(inputs.double(), gradients.double())

    def _seen(self, v_weight: float, v_bias: float | None) -> Tensor:
        """The inputs in the prior's metric, behind them the constant that the bias sees (m, d_in + 1)."""
        m, _, d_in = self.inputs.shape
        a = self.inputs.new_empty(m, d_in if v_bias is None else d_in + 1, dtype=torch.float64)
        a[:, :d_in] = self.inputs[:, 0]
        a[:, :d_in] *= v_weight**-0.5
        if v_bias is not None:
            a[:, d_in] = v_bias**-0.5
        return a

    def _factored_is_cheaper(self, other_positions: int) -> bool:
        d_out, d_in = self.deltas.shape[3], self.inputs.shape[2]
        return self.positions * other_positions * (d_in + d_out + ELEMENTWISE) <= d_in * d_out

    def norms(self, prior: Tensor) -> Tensor:
        v_weight, v_bias = self._priors(prior)
        if v_weight is None or self.positions * (self.inputs.shape[2] + self.deltas.shape[3]) > self.n_weights:
            return torch.cat([piece.norms(prior) for piece in dense_pieces(self, self.deltas.shape[1])])
        a, delta = self.inputs.double(), self.deltas.double()
        if self.positions == 1:
            length = a.square().sum(dim=(1, 2)) / v_weight + (0 if v_bias is None else 1 / v_bias)
            return (length.unsqueeze(1) * delta.square().sum(dim=(2, 3))).flatten()
        kernel = torch.einsum("nti,nsi->nts", a, a) / v_weight
        if v_bias is not None:
            kernel = kernel + 1 / v_bias
        return torch.einsum("ncto,ncso,nts->nc", delta, delta, kernel).flatten()

    def pull(self, u: Tensor) -> Tensor:
        m, C = self.deltas.shape[:2]
        delta = torch.einsum("ncr,ncto->ntro", u.reshape(m, C, -1), self.deltas.double())  # (m, T, r, d_out)
        weight = delta.flatten(0, 1).flatten(1).T @ self.inputs.double().flatten(0, 1)  # (r·d_out, d_in)
        weight = weight.reshape(-1, self.n_weights)  # (r, d_out·d_in)
        return torch.cat([weight, delta.sum(dim=(0, 1))], dim=1).T if self.has_bias else weight.T

    def rows(self, start: int, stop: int) -> LinearBlock:
        return LinearBlock(self.start, self.inputs[start:stop], self.deltas[start:stop], self.has_bias)

    def dense(self) -> DenseBlock:
        deltas = self.deltas.double()
        weight = torch.einsum("ncto,nti->ncoi", deltas, self.inputs.double()).flatten(2)
        values = torch.cat([weight, deltas.sum(2)], dim=2) if self.has_bias else weight
        return DenseBlock(self.start, values)

    def expanded(self) -> Block:
        return self if self.positions == 1 else self.dense().rounded(self.inputs.dtype)

    def tensors(self) -> dict[str, Tensor]:
        return {"inputs": self.inputs, "deltas": self.deltas}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> LinearBlock:
        return LinearBlock(self.start, tensors["inputs"], tensors["deltas"], self.has_bias)

    def _priors(self, prior: Tensor) -> tuple[float | None, float | None]:
        """(v of the weight, v of the bias) where each has one; None for a weight whose prior varies inside it."""
        weight = prior[: self.n_weights]
        if not bool((weight == weight[0]).all()):
            return None, None
        if not self.has_bias:
            return float(weight[0]), None
        bias = prior[self.n_weights :]
        return (float(weight[0]), float(bias[0])) if bool((bias == bias[0]).all()) else (None, None)
