"""Kronecker-factored Laplace: each layer's part of Ω is B ⊗ A + V; the parts between layers are dropped.

A is the mean outer product of a layer's inputs, B the sum of the outer products of its output gradients. In their
eigenvectors the precision of a weight is diagonal, so that the covariance of a row is a sum of products.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..jacobian.rows import Jacobian, n_outputs, row_tiles
from ..linalg import row_products
from ..network.layout import Layout
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

    def covariance(self, jacobian: Jacobian) -> Tensor:
        """G(KFAC + V)⁻¹Gᵀ."""
        M, C = len(jacobian.outputs), n_outputs(jacobian)
        turned = {name: _turned(factors) for name, factors in self.factors.items()}
        covariance = torch.zeros(M, C, C, dtype=torch.float64, device=jacobian.outputs.device)
        for a, b in row_tiles(jacobian, self.memory):
            for block in jacobian.load(a, b):
                start, stop = block.start, block.span.stop
                inside = [p for p in self.layout.parameters if start <= p.offset and p.span.stop <= stop]
                done = a
                for piece in block.dense_pieces():
                    rows = slice(done, done + piece.n_rows)
                    for parameter in inside:
                        span = parameter.span
                        g = piece.flat[:, span.start - start : span.stop - start].double()
                        whitened = _whitened(g, turned.get(parameter.name), self.prior[span])
                        covariance[rows] += row_products(whitened.T, C)
                    done += piece.n_rows
        return covariance


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
