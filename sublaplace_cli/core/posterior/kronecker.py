"""Kronecker-factored Laplace: each layer's part of Ω is B ⊗ A + V, and all that lies between layers is left out.

A is the mean outer product of a layer's inputs, B the sum of those of its output gradients. In their eigenvectors
the precision of a weight is diagonal, so that a row's variance is a sum of squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..jacobian.blocks import dense_pieces
from ..jacobian.rows import Jacobian, row_tiles
from ..network.layout import Parameter


@dataclass(frozen=True)
class Factors:
    """Of a weight: A (d_in, d_in) and B (d_out, d_out); of a bias: B alone."""

    A: Tensor | None
    B: Tensor


@dataclass(frozen=True)
class _Turned:
    """Eigenvectors, and the data's part of the precision in them (d_out, d_in) or (d_out, 1)."""

    into: Tensor | None
    out: Tensor
    data: Tensor


def kronecker_variance(test: Jacobian, factors: Mapping[str, Factors], prior: Tensor, memory: int) -> Tensor:
    """gᵀ(KFAC + V)⁻¹g at every row and output (M, C); parameters without factors stay at their prior."""
    M, C = test.outputs.shape
    turned = {name: _turn(q) for name, q in factors.items()}
    variance = torch.zeros(M * C, dtype=torch.float64, device=test.outputs.device)
    for a, b in row_tiles(test, memory):
        for block in test.load(a, b):
            inside = [q for q in test.layout.parameters if q.size and _within(q.span, block.span)]
            done = a
            for piece in dense_pieces(block, C):
                rows = slice(done * C, (done + piece.n_rows) * C)
                for q in inside:
                    g = piece.flat[:, q.offset - block.start : q.span.stop - block.start].double()
                    variance[rows] += _quadratic(g, q, turned.get(q.name), prior[q.span])
                done += piece.n_rows
    return variance.reshape(M, C)


def kronecker_freedom(factors: Mapping[str, Factors], prior: Mapping[str, float]) -> float:
    """tr((KFAC + V)⁻¹ KFAC)."""
    total = 0.0
    for name, q in factors.items():
        data = _turn(q).data
        total += float((data / (data + prior[name])).sum())
    return total


def _turn(factors: Factors) -> _Turned:
    beta, out = torch.linalg.eigh(factors.B.double())
    beta = beta.clamp(min=0.0)
    if factors.A is None:
        return _Turned(None, out, beta.unsqueeze(1))
    alpha, into = torch.linalg.eigh(factors.A.double())
    return _Turned(into, out, torch.outer(beta, alpha.clamp(min=0.0)))


def _quadratic(g: Tensor, parameter: Parameter, turned: _Turned | None, prior: Tensor) -> Tensor:
    """gᵀ(…)⁻¹g of one parameter for rows g (m, size) → (m,)."""
    if turned is None:
        return (g.square() / prior).sum(1)
    G = g.reshape(len(g), len(turned.out), -1)  # (m, d_out, d_in)
    G = torch.einsum("oi,moj->mij", turned.out, G)
    G = G if turned.into is None else G @ turned.into
    return (G.square() / (turned.data + prior[0])).sum(dim=(1, 2))


def _within(inner: slice, outer: slice) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop
