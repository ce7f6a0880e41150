"""A linear layer z = W a + b: row n of its Jacobian is Σₜ δₙₜ ⊗ [aₙₜ, 1], and stays a pair (a, δ).

With several positions (tokens) per row it is written out where that needs fewer multiplications, for some output units
at a time: a whole row would be written to memory and read again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..kernels.arithmetic import Arithmetic, add_product
from ..kernels.choice import takes_factors
from ..kernels.factored import SplitFactors
from ..kernels.launch import LinearFactors, outer_gram
from ..panels.products import Prior, Strips, constant_of, joined_strips, narrow_strips, panel_squares, weighted
from .blocks import FLOAT64, Block, DenseBlock, strip_pairs

# An elementwise product costs about as much as this many multiplications inside a GEMM.
ELEMENTWISE = 8
Priors = tuple[float, float | None]  # of the weight, and of the bias
MOST_EXPANDED = 2  # a written-out row is kept if it takes at most so many times the memory of its factors


@dataclass(frozen=True)
class LinearBlock(Block):
    """Weight (d_out × d_in, row-major), followed by the bias where `has_bias`."""

    inputs: Tensor  # a (m, T, d_in)
    deltas: Tensor  # δ (m, C, T, d_out)
    has_bias: bool
    factors: ClassVar[tuple[str, ...]] = ("inputs", "deltas")
    fits_any_cut: ClassVar[bool] = False

    @property
    def width(self) -> int:
        return self.deltas.shape[3] * (self.inputs.shape[2] + self.has_bias)

    @cached_property
    def row_bytes(self) -> int:
        factors = self.inputs[:1].numel() + self.deltas[:1].numel()
        return self.inputs.element_size() * factors + self.work_bytes

    @cached_property
    def work_bytes(self) -> int:
        if self.inputs.shape[1] == 1:
            return 8 * (self.inputs[:1].numel() + self.deltas[:1].numel())
        return 8 * self.n_outputs * self._units * (self.inputs.shape[2] + self.inputs.shape[1])

    def squares(self, W: Tensor | None = None) -> Tensor:
        if self.inputs.shape[1] > 1:
            return torch.cat([panel_squares(J, W) for J in self.written_out(self.cuts)])
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
        (m, C), step = self.deltas.shape[:2], self.sizes.layer.picked_columns
        for t in range(positions):
            a = torch.ones(d_in + 1, m, dtype=torch.float64, device=into.device)
            a[:-1] = self.inputs[:, t].T  # transposed once: then a column is contiguous
            delta = self.deltas[:, :, t].double().permute(2, 0, 1).flatten(1).contiguous()  # (d_out, m·C)
            for left in range(0, len(into), step):
                some = slice(left, left + step)
                if t == 0:
                    torch.index_select(delta, 0, target[some], out=out[some])
                    out[some].view(-1, m, C).mul_(a.index_select(0, into[some]).unsqueeze(2))
                else:
                    picked = delta.index_select(0, target[some]).view(-1, m, C)
                    out[some].view(-1, m, C).addcmul_(picked, a.index_select(0, into[some]).unsqueeze(2))

    def add_gram(
        self, other: Block, prior: Prior, total: Tensor, strips: Strips | None = None, by: Arithmetic = FLOAT64
    ) -> None:
        v_weight, v_bias = self._priors(prior)
        if not isinstance(other, LinearBlock) or v_weight is None or not self._factored_is_cheaper(other):
            super().add_gram(other, prior, total, strips, by)
            return
        if self._add_by_kernel(other, (v_weight, v_bias), total, strips, by):
            return
        if by.digits:
            own_strips = narrow_strips(strips, self.n_rows, self.n_outputs, self.device)
            self._add_split(other, (v_weight, v_bias), total, own_strips, by.digits)
            return
        dtype = by.dtype
        if {*self.inputs.shape[1:2], *other.inputs.shape[1:2], self.n_outputs, other.n_outputs} == {1}:
            # (a·a′/v_W + 1/v_b)(δ·δ′) for one position and one output, in strips that stay in the CPU cache.
            a, delta = self._scaled_inputs(v_weight, v_bias).to(dtype), self.deltas[:, 0, 0].to(dtype)
            b, epsilon = a, delta
            if other is not self:
                b, epsilon = other._scaled_inputs(v_weight, v_bias).to(dtype), other.deltas[:, 0, 0].to(dtype)
            for top, end in narrow_strips(strips, len(a), 1, self.device):
                columns = slice(top if other is self else 0, None)
                inputs, gradients = a[top:end] @ b[columns].T, delta[top:end] @ epsilon[columns].T
                total[top:end, columns].addcmul_(inputs.double(), gradients.double())
            return
        own = self._in(dtype)
        met = own if other is self else other._in(dtype)
        for some, right, part in strip_pairs(own, met, total, strips):
            some._add_strip(right, v_weight, v_bias, part)

    def _add_by_kernel(
        self, other: "LinearBlock", priors: Priors, total: Tensor, strips: Strips | None, by: Arithmetic
    ) -> bool:
        """Whether it was done, in one launch per run of strips."""
        own, met = (LinearFactors(X.inputs[:, 0], X.deltas[:, :, 0]) for X in (self, other))
        one_position = self.inputs.shape[1] == other.inputs.shape[1] == 1
        if by.digits or not one_position or not takes_factors(own, met, by.dtype):
            return False
        numbers = 1 / priors[0], 0.0 if priors[1] is None else 1 / priors[1]
        for a, b in joined_strips([(0, self.n_rows)] if strips is None else strips):
            first = a if other is self else 0
            part = total[a * self.n_outputs : b * self.n_outputs, first * other.n_outputs :]
            outer_gram(part, own.rows(a, b), met.rows(first, None), numbers, by.dtype, other is self)
        return True

    def _add_split(self, other: "LinearBlock", priors: Priors, total: Tensor, strips: Strips, digits: int) -> None:
        own = SplitFactors.of(self.inputs, self.deltas, digits)
        met = own if other is self else SplitFactors.of(other.inputs, other.deltas, digits)
        for a, b in strips:
            first = a if other is self else 0
            part = total[a * self.n_outputs : b * self.n_outputs, first * other.n_outputs :]
            own.rows(a, b).add_products(met.rows(first, None), *priors, part)

    def is_factored(self, other: Block, prior: Prior) -> bool:
        if not isinstance(other, LinearBlock) or self._priors(prior)[0] is None:
            return False
        return any(each._factored_is_cheaper(self) for each in (self, other))

    @property
    def _units(self) -> int:
        """Output units that are written out at a time."""
        sizes = self.sizes.layer
        return min(self.deltas.shape[3], max(sizes.least_units, sizes.written_columns // self.inputs.shape[2]))

    @property
    def cuts(self) -> list[slice]:
        """Some output units each, then the bias."""
        (d_out, d_in), units = (self.deltas.shape[3], self.inputs.shape[2]), self._units
        cuts = [slice(left * d_in, min(left + units, d_out) * d_in) for left in range(0, d_out, units)]
        return [*cuts, slice(d_out * d_in, self.width)] if self.has_bias else cuts

    def written_out(self, cuts: Iterable[slice]) -> Iterator[Tensor]:
        (m, C, T, d_out), d_in = self.deltas.shape, self.inputs.shape[2]
        pieces = self._written_pieces
        a = self.inputs.double() if len(pieces) == 1 else self.inputs  # once for all cuts
        # One piece of memory for all of them: new memory for each costs as much as the product.
        room = torch.empty(0)
        for cut in cuts:
            if cut.start == d_out * d_in:
                yield self.deltas.sum(2, dtype=torch.float64).flatten(0, 1)
                continue
            units = slice(cut.start // d_in, cut.stop // d_in)
            n_units = C * (units.stop - units.start)
            if room.shape[1:] != (n_units, d_in):
                room = torch.empty(m, n_units, d_in, dtype=torch.float64, device=self.device)
            for rows in pieces:
                delta = self.deltas[rows, :, :, units].double()  # (rows, C, T, units)
                torch.bmm(delta.mT.reshape(-1, n_units, T), a[rows].double(), out=room[rows])
            yield room.view(m * C, -1)

    @property
    def _written_pieces(self) -> list[slice]:
        """Rows that are written out at a time: so that no float64 copy of all their factors exists."""
        step = max(1, self.sizes.layer.dense_bytes // (8 * max(1, self.inputs[:1].numel())))
        return [slice(a, min(a + step, self.n_rows)) for a in range(0, self.n_rows, step)]

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
        r, C, (d_out, d_in) = u.shape[1], self.n_outputs, (self.deltas.shape[3], self.inputs.shape[2])
        if self._written_out_is_cheaper(r):
            return torch.cat([J.to(u.dtype).T @ u for J in self.written_out(self.cuts)])
        weight = u.new_zeros(r, d_out, d_in, dtype=torch.float64)
        bias = u.new_zeros(r, d_out, dtype=torch.float64)
        for rows, vectors in self._pieces(r):
            own = u[rows.start * C : rows.stop * C, vectors].unflatten(0, (-1, C))
            delta = torch.einsum("ncr,ncto->ntro", own, self.deltas[rows].to(u.dtype)).flatten(0, 1)  # (m·T, r, d_out)
            add_product(weight[vectors].flatten(0, 1), delta.flatten(1).T, self.inputs[rows].to(u.dtype).flatten(0, 1))
            if self.has_bias:
                bias[vectors] += delta.sum(0)
        return torch.cat([weight.flatten(1), bias], dim=1).T if self.has_bias else weight.flatten(1).T

    def push(self, x: Tensor) -> Tensor:
        r, (d_out, d_in) = x.shape[1], (self.deltas.shape[3], self.inputs.shape[2])
        if self._written_out_is_cheaper(r):
            pairs = zip(self.cuts, self.written_out(self.cuts), strict=True)
            return torch.stack([J.to(x.dtype) @ x[cut] for cut, J in pairs]).sum(0)
        weight = x[: d_out * d_in].T.reshape(r, d_out, d_in)
        pushed = x.new_empty(self.n_rows, self.n_outputs, r)
        for rows, vectors in self._pieces(r):
            changes = self.inputs[rows].to(x.dtype) @ weight[vectors].flatten(0, 1).T  # of the outputs (m, T, r·d_out)
            if self.has_bias:
                changes += x[d_out * d_in :, vectors].T.flatten()
            by_unit = changes.unflatten(2, (-1, d_out))
            pushed[rows, :, vectors] = torch.einsum("ntro,ncto->ncr", by_unit, self.deltas[rows].to(x.dtype))
        return pushed.flatten(0, 1)

    def _written_out_is_cheaper(self, r: int) -> bool:
        """Whether products with r vectors cost less if the rows are written out first; never with one vector."""
        T, C, d_in = self.inputs.shape[1], self.n_outputs, self.inputs.shape[2]
        return T * r * (d_in + ELEMENTWISE * C) > C * d_in * (r + ELEMENTWISE * T)

    def _pieces(self, r: int) -> Iterator[tuple[slice, slice]]:
        """(rows, vectors) for which the changes of the layer's outputs are held at a time.

        Few vectors and many rows: then the sum over the rows, which every piece adds to, stays in the CPU cache.
        """
        sizes = self.sizes.layer
        for left in range(0, r, sizes.vectors):
            vectors = slice(left, min(left + sizes.vectors, r))
            row_bytes = 8 * (vectors.stop - left) * self.inputs.shape[1] * self.deltas.shape[3]
            step = max(1, sizes.dense_bytes // row_bytes)
            yield from ((slice(a, min(a + step, self.n_rows)), vectors) for a in range(0, self.n_rows, step))

    def dense(self) -> DenseBlock:
        deltas = self.deltas.double()
        weight = torch.einsum("ncto,nti->ncoi", deltas, self.inputs.double()).flatten(2)
        return DenseBlock(self.start, torch.cat([weight, deltas.sum(2)], dim=2) if self.has_bias else weight)

    def expanded(self) -> Block:
        factors = self.inputs[0].numel() + self.deltas[0].numel()
        if self.inputs.shape[1] == 1 or self.n_outputs * self.width > MOST_EXPANDED * factors:
            return self
        return DenseBlock(self.start, self.dense().values.to(self.inputs.dtype))

    def _priors(self, prior: Prior) -> tuple[float | None, float | None]:
        """(value of the weight, of the bias) where each has one; None, None if either varies."""
        n_weights = self.deltas.shape[3] * self.inputs.shape[2]
        parts = (prior, prior) if isinstance(prior, float) else (prior[:n_weights], prior[n_weights:])
        weight, bias = constant_of(parts[0]), constant_of(parts[1]) if self.has_bias else None
        return (weight, bias) if not self.has_bias or bias is not None else (None, None)
