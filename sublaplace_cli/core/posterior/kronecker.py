"""Kronecker-factored Laplace: each layer's part of Ω is B ⊗ A + V; the parts between layers are dropped.

A is the mean outer product of a layer's inputs, B the sum of the outer products of its output gradients. In their
eigenvectors the precision of a weight is diagonal, so that the variance of a row is a sum of squares.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..jacobian.rows import Jacobian, row_tiles
from ..network.layout import Layout

# Eigenvectors of A and B, and the data's part of the precision in them (d_out, d_in) or (d_out, 1).
Turned = tuple[Tensor | None, Tensor, Tensor]


@dataclass(frozen=True)
class Factors:
    """For a weight: A (d_in, d_in) and B (d_out, d_out); for a bias: B alone."""

    A: Tensor | None
    B: Tensor


@dataclass(frozen=True)
class KroneckerPosterior:
    """B ⊗ A + V per weight, B + V per bias; parameters without factors stay at their prior."""

    factors: Mapping[str, Factors]  # by parameter name
    layout: Layout
    prior: Tensor  # v (p,)
    memory: int

    @property
    def freedom(self) -> float:
        """tr((KFAC + V)⁻¹ KFAC)."""
        priors = {parameter.name: float(self.prior[parameter.offset]) for parameter in self.layout.parameters}
        total = 0.0
        for name, factors in self.factors.items():
            _, _, data = _turned(factors)
            total += float((data / (data + priors[name])).sum())
        return total

    def variance(self, jacobian: Jacobian) -> Tensor:
        """gᵀ(KFAC + V)⁻¹g."""
        M, C = jacobian.outputs.shape
        turned = {name: _turned(factors) for name, factors in self.factors.items()}
        variance = torch.zeros(M * C, dtype=torch.float64, device=jacobian.outputs.device)
        for a, b in row_tiles(jacobian, self.memory):
            for block in jacobian.load(a, b):
                start, stop = block.start, block.span.stop
                inside = [p for p in self.layout.parameters if start <= p.offset and p.span.stop <= stop]
                done = a
                for piece in block.dense_pieces():
                    rows = slice(done * C, (done + piece.n_rows) * C)
                    for parameter in inside:
                        span = parameter.span
                        g = piece.flat[:, span.start - start : span.stop - start].double()
                        variance[rows] += _quadratic(g, turned.get(parameter.name), self.prior[span])
                    done += piece.n_rows
        return variance.reshape(M, C)


def _turned(factors: Factors) -> Turned:
    beta, out = torch.linalg.eigh(factors.B.double())
    beta = beta.clamp(min=0.0)
    if factors.A is None:
        return None, out, beta.unsqueeze(1)
    alpha, into = torch.linalg.eigh(factors.A.double())
    return into, out, torch.outer(beta, alpha.clamp(min=0.0))


def _quadratic(g: Tensor, turned: Turned | None, prior: Tensor) -> Tensor:
    """gᵀ(…)⁻¹g of one parameter for rows g (m, size) → (m,)."""
    if turned is None:
        return (g.square() / prior).sum(1)
    into, out, data = turned
    G = torch.einsum("oi,moj->mij", out, g.reshape(len(g), len(out), -1))  # (m, d_out, d_in)
    G = G if into is None else G @ into
    return (G.square() / (data + prior[0])).sum(dim=(1, 2))
