"""A linear layer z = W a + b: row n of its Jacobian is Σₜ δₙₜ ⊗ [aₙₜ, 1], and stays a pair (a, δ).

With several positions (tokens) per row it is written out, a piece at a time, where that needs fewer multiplications.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from .blocks import FLOAT64, Block, DenseBlock, Strips, narrow_strips, strip_pairs, weighted

# An elementwise product costs about as much as this many multiplications inside a GEMM.
ELEMENTWISE = 8
COLUMNS_AT_ONCE = 64  # so that their factors stay in the CPU cache


@dataclass(frozen=True)
class LinearBlock(Block):
    """Weight (d_out × d_in, row-major), followed by the bias where `has_bias`."""

    inputs: Tensor  # a (m, T, d_in)
    deltas: Tensor  # δ (m, C, T, d_out)
    has_bias: bool
    factors: ClassVar[tuple[str, ...]] = ("inputs", "deltas")

    @property
    def width(self) -> int:
        return self.deltas.shape[3] * (self.inputs.shape[2] + self.has_bias)

    @cached_property
    def row_bytes(self) -> int:
        factors = 3 * (self.inputs[:1].numel() + self.deltas[:1].numel())  # as they are, and in float64
        written_out = self.deltas.shape[1] * self.width if self.inputs.shape[1] > 1 else 0
        return self.inputs.element_size() * (factors + written_out)

    def squares(self, W: Tensor | None = None) -> Tensor:
        if self.inputs.shape[1] > 1:
            return super().squares(W)
        delta = self.deltas[:, :, 0].double()  # (m, C, d_out), a new tensor unless it was float64
        delta = delta if W is None else weighted(delta, W)
        power = delta.square().sum(1) if delta.shape[1] > 1 else delta[:, 0].square()  # (m, d_out)
        weight = power.T @ self.inputs[:, 0].double().square()  # (d_out, d_in)
        return torch.cat([weight.flatten(), power.sum(0)]) if self.has_bias else weight.flatten()

    def put_columns(self, local: Tensor, out: Tensor) -> None:
        positions, d_in = self.inputs.shape[1:]
        n_weights = self.deltas.shape[3] * d_in
        if positions > 1 and ELEMENTWISE * len(local) > n_weights:
            super().put_columns(local, out)
            return
        is_weight = local < n_weights
        target = torch.where(is_weight, local // d_in, local - n_weights)
        into = torch.where(is_weight, local % d_in, d_in)  # the input of the bias is a constant 1, after the others
        m, C = self.deltas.shape[:2]
        for t in range(positions):
            a = torch.ones(d_in + 1, m, dtype=torch.float64, device=into.device)
            a[:-1] = self.inputs[:, t].T  # transposed once: then a column is contiguous
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
        if not isinstance(other, LinearBlock) or v_weight is None or not self._factored_is_cheaper(other):
            left = self.dense()
            left.add_gram(left if other is self else other, prior, total, strips, dtype)
            return
        if {*self.inputs.shape[1:2], *other.inputs.shape[1:2], self.n_outputs, other.n_outputs} == {1}:
            # (a·a′/v_W + 1/v_b)(δ·δ′) for one position and one output, in strips that stay in the CPU cache.
            a, delta = self._scaled_inputs(v_weight, v_bias).to(dtype), self.deltas[:, 0, 0].to(dtype)
            b, epsilon = a, delta
            if other is not self:
                b, epsilon = other._scaled_inputs(v_weight, v_bias).to(dtype), other.deltas[:, 0, 0].to(dtype)
            for top, end in narrow_strips(strips, len(a), 1):
                columns = slice(top if other is self else 0, None)
                inputs, gradients = a[top:end] @ b[columns].T, delta[top:end] @ epsilon[columns].T
                total[top:end, columns].addcmul_(inputs.double(), gradients.double())
            return
        own = self._in(dtype)
        met = own if other is self else other._in(dtype)
        for some, right, part in strip_pairs(own, met, total, strips):
            some._add_strip(right, v_weight, v_bias, part)

    def _in(self, dtype: torch.dtype) -> Self:
        return self.with_tensors({"inputs": self.inputs.to(dtype), "deltas": self.deltas.to(dtype)})

    def _add_strip(self, other: Self, v_weight: float, v_bias: float | None, total: Tensor) -> None:
        m, C, T, _ = self.deltas.shape
        n, C2, T2, _ = other.deltas.shape
        kernel = self.inputs.flatten(0, 1) @ other.inputs.flatten(0, 1).T / v_weight  # (m·T, n·T2)
        if v_bias is not None:
            kernel += 1 / v_bias
        gradient = self.deltas.flatten(0, 2) @ other.deltas.flatten(0, 2).T  # (m·C·T, n·C2·T2)
        pairs = gradient.view(m, C, T, n, C2, T2) * kernel.view(m, 1, T, n, 1, T2)
        total += pairs.sum(dim=(2, 5)).reshape(m * C, n * C2)

    def _scaled_inputs(self, v_weight: float, v_bias: float | None) -> Tensor:
        """The inputs in the prior's metric, followed by the constant input of the bias (m, d_in + 1)."""
        m, _, d_in = self.inputs.shape
        a = self.inputs.new_empty(m, d_in if v_bias is None else d_in + 1, dtype=torch.float64)
        a[:, :d_in] = self.inputs[:, 0]
        a[:, :d_in] *= v_weight**-0.5
        if v_bias is not None:
            a[:, d_in] = v_bias**-0.5
        return a

    def _factored_is_cheaper(self, other: "LinearBlock") -> bool:
        d_out, d_in = self.deltas.shape[3], self.inputs.shape[2]
        return self.inputs.shape[1] * other.inputs.shape[1] * (d_in + d_out + ELEMENTWISE) <= d_in * d_out

    def own_products(self, prior: Tensor) -> Tensor:
        v_weight, v_bias = self._priors(prior)
        (positions, d_in), (_, C, _, d_out) = self.inputs.shape[1:], self.deltas.shape
        if v_weight is None or positions * (d_in + C * C * d_out) > C * C * d_in * d_out:
            return super().own_products(prior)
        a, delta = self.inputs.double(), self.deltas.double()
        if positions == 1:
            length = a.square().sum(dim=(1, 2)) / v_weight + (0 if v_bias is None else 1 / v_bias)
            if C == 1:
                return (length * delta.square().sum(dim=(1, 2, 3))).reshape(-1, 1, 1)
            return length.reshape(-1, 1, 1) * (delta[:, :, 0] @ delta[:, :, 0].mT)
        kernel = torch.einsum("nti,nsi->nts", a, a) / v_weight
        if v_bias is not None:
            kernel = kernel + 1 / v_bias
        return torch.einsum("ncto,ndso,nts->ncd", delta, delta, kernel)

    def pull(self, u: Tensor) -> Tensor:
        m, C = self.deltas.shape[:2]
        delta = torch.einsum("ncr,ncto->ntro", u.reshape(m, C, -1), self.deltas.double())  # (m, T, r, d_out)
        weight = delta.flatten(0, 1).flatten(1).T @ self.inputs.double().flatten(0, 1)  # (r·d_out, d_in)
        weight = weight.reshape(-1, self.deltas.shape[3] * self.inputs.shape[2])  # (r, d_out·d_in)
        return torch.cat([weight, delta.sum(dim=(0, 1))], dim=1).T if self.has_bias else weight.T

    def dense(self) -> DenseBlock:
        deltas = self.deltas.double()
        weight = torch.einsum("ncto,nti->ncoi", deltas, self.inputs.double()).flatten(2)
        return DenseBlock(self.start, torch.cat([weight, deltas.sum(2)], dim=2) if self.has_bias else weight)

    def expanded(self) -> Block:
        if self.inputs.shape[1] == 1:
            return self
        return DenseBlock(self.start, self.dense().values.to(self.inputs.dtype))

    def _priors(self, prior: Tensor) -> tuple[float | None, float | None]:
        """(v of the weight, v of the bias) where each has one value; None for a weight whose prior varies."""
        n_weights = self.deltas.shape[3] * self.inputs.shape[2]
        weight, bias = prior[:n_weights], prior[n_weights:]
        if not bool((weight == weight[0]).all()) or (self.has_bias and not bool((bias == bias[0]).all())):
            return None, None
        return float(weight[0]), float(bias[0]) if self.has_bias else None
