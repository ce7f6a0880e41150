"""Kronecker-factored variances against the matrix written out."""

from __future__ import annotations

import pytest
import torch
from core.problems import PLENTY, assert_close, capture_of, case_named, random_matrix

from sublaplace_cli.core.jacobian.rows import HeldJacobian
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.posterior.kronecker import Factors, KroneckerPosterior


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
    for i, parameter in enumerate(capture.layout.parameters):
        v[parameter.span] = 0.3 + i  # one prior per parameter, as globs give it
        if parameter.name.endswith("weight") and len(parameter.shape) > 1:
            A, B = covariance(parameter.size // parameter.shape[0], i), covariance(parameter.shape[0], 100 + i)
            factors[parameter.name] = Factors(A, B)
            data[parameter.span, parameter.span] = torch.kron(B, A)
        elif parameter.name.endswith("bias") and i % 4 == 1:
            factors[parameter.name] = Factors(None, covariance(parameter.size, i))
            data[parameter.span, parameter.span] = factors[parameter.name].B
    inverse = torch.linalg.inv(data + torch.diag(v))
    W = random_matrix(len(made.f), J.shape[1] ** 2, seed=7).reshape(len(made.f), J.shape[1], J.shape[1])
    posterior = KroneckerPosterior(factors, Precision(rows, W, v, PLENTY))
    A = torch.einsum("ncd,ncp->ndp", W, J.double()).flatten(0, 1)  # the weighted rows
    assert_close(posterior.covariance(rows), torch.einsum("mcp,pq,mdq->mcd", J, inverse, J), 1e-7)
    assert_close(posterior.variance(rows), torch.einsum("mcp,pq,mcq->mc", J, inverse, J), 1e-8)
    assert posterior.freedom == pytest.approx(float((inverse * (A.T @ A)).sum()), rel=1e-8)
    small = KroneckerPosterior(factors, Precision(rows, W, v, 1))
    assert small.freedom == pytest.approx(posterior.freedom, rel=1e-10)
