"""Kronecker-factored Laplace: each layer's part of Ω is B ⊗ A + V; the parts between layers are dropped.

A is the mean outer product of a layer's inputs, B the sum of the outer products of its output gradients. In their
eigenvectors the precision of a weight is diagonal, so that the covariance of a row is a sum of products.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..jacobian.blocks import Block
from ..jacobian.rows import Jacobian, n_outputs, row_tiles
from ..linalg import row_products
from ..omega.precision import Precision
from . import Posterior

# Eigenvectors of A and B, and the data's part of the precision in them (d_out, d_in) or (d_out, 1).
Turned = tuple[Tensor | None, Tensor, Tensor]


@dataclass(frozen=True)
class Factors:
    """For a weight: A (d_in, d_in) and B (d_out, d_out); for a bias: B alone."""

    A: Tensor | None
    B: Tensor


@dataclass(frozen=True)
class KroneckerPosterior(Posterior):
    """B ⊗ A + V per weight, B + V per bias; parameters without factors stay at their prior."""

    factors: Mapping[str, Factors]  # by parameter name
    omega: Precision  # of the training rows, with V

    @property
    def freedom(self) -> float:
        """tr((KFAC + V)⁻¹ AᵀA), over the training rows as they are: KFAC itself is only close to AᵀA."""
        total = 0.0
        for a, b, covariance in self._tiles(self.omega.jacobian):
            W = self.omega.root[a:b]
            total += float(torch.einsum("ncd,nce,ned->", W, covariance, W))
        return total

    def covariance(self, jacobian: Jacobian) -> Tensor:
        """G(KFAC + V)⁻¹Gᵀ."""
        return torch.cat([covariance for _, _, covariance in self._tiles(jacobian)])

    def _tiles(self, jacobian: Jacobian) -> Iterator[tuple[int, int, Tensor]]:
        """(first row, last row, covariance), a tile of rows at a time."""
        C, turned = n_outputs(jacobian), {name: _turned(factors) for name, factors in self.factors.items()}
        for a, b in row_tiles(jacobian, self.omega.memory):
            covariance = torch.zeros(b - a, C, C, dtype=torch.float64, device=jacobian.outputs.device)
            for block in jacobian.load(a, b):
                self._add(block, turned, covariance)
            yield a, b, covariance

    def _add(self, block: Block, turned: Mapping[str, Turned], covariance: Tensor) -> None:
        """Add the part of a block's parameters."""
        start, stop, done = block.start, block.span.stop, 0
        inside = [p for p in self.omega.layout.parameters if start <= p.offset and p.span.stop <= stop]
        for piece in block.dense_pieces():
            for parameter in inside:
                span = parameter.span
                g = piece.flat[:, span.start - start : span.stop - start].double()
                whitened = _whitened(g, turned.get(parameter.name), self.omega.prior[span])
                covariance[done : done + piece.n_rows] += row_products(whitened.T, covariance.shape[1])
            done += piece.n_rows


def _turned(factors: Factors) -> Turned:
    beta, out = torch.linalg.eigh(factors.B.double())
    beta = beta.clamp(min=0.0)
    if factors.A is None:
        return None, out, beta.unsqueeze(1)
    alpha, into = torch.linalg.eigh(factors.A.double())
    return into, out, torch.outer(beta, alpha.clamp(min=0.0))


def _whitened(g: Tensor, turned: Turned | None, prior: Tensor) -> Tensor:
    """(…)^(−½)g of one parameter for rows g (m·C, size), up to a rotation."""
    if turned is None:
        return g * prior.rsqrt()
    into, out, data = turned
    G = torch.einsum("oi,moj->mij", out, g.reshape(len(g), len(out), -1))  # (m·C, d_out, d_in)
    G = G if into is None else G @ into
    return (G * (data + prior[0]).rsqrt()).flatten(1)
