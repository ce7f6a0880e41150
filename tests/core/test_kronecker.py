"""Kronecker-factored variances against the matrix written out."""

from __future__ import annotations

import pytest
import torch
from core.problems import PLENTY, assert_close, capture_of, case_named, random_matrix

from sublaplace_cli.core.jacobian.rows import HeldJacobian
from sublaplace_cli.core.posterior.kronecker import Factors, kronecker_freedom, kronecker_variance


def covariance(size: int, seed: int) -> torch.Tensor:
    X = random_matrix(size, size + 2, seed=seed)
    return X @ X.T


@pytest.mark.parametrize("name", ["mlp", "mlp-3-outputs", "conv", "mlp-multiclass"])
def test_variance_and_freedom_are_those_of_the_matrix_written_out(name):
    capture, train = capture_of(case_named(name))
    made = capture(train)
    rows = HeldJacobian(capture.layout, made.f, tuple(made.blocks))
    J = torch.cat([block.dense().values for block in made.blocks], dim=2)
    data = torch.zeros(capture.layout.size, capture.layout.size, dtype=torch.float64)
    factors, v = {}, torch.empty(capture.layout.size, dtype=torch.float64)
    for i, q in enumerate(capture.layout.parameters):
        v[q.span] = 0.3 + i  # one prior a parameter, as globs give it
        if q.name.endswith("weight") and len(q.shape) > 1:
            A, B = covariance(q.size // q.shape[0], i), covariance(q.shape[0], 100 + i)
            factors[q.name] = Factors(A, B)
            data[q.span, q.span] = torch.kron(B, A)
        elif q.name.endswith("bias") and i % 4 == 1:
            factors[q.name] = Factors(None, covariance(q.size, i))
            data[q.span, q.span] = factors[q.name].B
    inverse = torch.linalg.inv(data + torch.diag(v))
    found = kronecker_variance(rows, factors, v, PLENTY)
    assert_close(found, torch.einsum("mcp,pq,mcq->mc", J, inverse, J), 1e-8)
    priors = {q.name: float(v[q.offset]) for q in capture.layout.parameters}
    assert kronecker_freedom(factors, priors) == pytest.approx(float((inverse * data.T).sum()), rel=1e-8)
