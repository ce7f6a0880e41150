"""Preconditioners of certified intervals: P ⪯ I + K, from a part of the Gram matrix K."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from core.posterior.test_certified import KINDS, NAMES, each_kind
from core.posterior.test_conditioning import SHAPES, conditioned
from core.problems import assert_close, solved, subset

from sublaplace_cli.core.posterior.certified.preconditioners import (
    cholesky_preconditioner,
    partial_cholesky,
    subnet_preconditioner,
)
from sublaplace_cli.errors import Reason, RunError


@each_kind
@pytest.mark.parametrize("name", NAMES)
def test_preconditioners_are_not_larger_than_the_system(name, kind):
    precision = solved(name, "unequal").precision
    K, preconditioner = precision.gram(), KINDS[kind](precision)
    part = preconditioner.B @ preconditioner.B.T
    assert float(torch.linalg.eigvalsh(K - part)[0]) >= -1e-13 * float(K.trace())
    if kind == "subnet":
        A_S = precision.columns(subset(len(precision.prior), 10))
        assert_close(part, A_S.T @ A_S, 1e-9)
    else:
        assert float(part.trace()) >= (0.2 if kind == "cholesky" else 0.0) * float(K.trace())


@pytest.mark.parametrize("condition", [1e4, 1e8])
@pytest.mark.parametrize("shape", SHAPES)
def test_partial_cholesky_factors_of_nearly_singular_matrices(shape, condition):
    precision = conditioned(shape, condition).precision
    K = precision.gram()
    for rank in (1, 4, 11, 12):
        L = partial_cholesky(precision, rank)
        assert L.shape[1] <= rank
        assert float(torch.linalg.eigvalsh(K - L @ L.T)[0]) >= -1e-13 * float(K.trace())
    left = K - L @ L.T
    assert float(left.diagonal().max()) <= 1e-8 * float(K.diagonal().max())


def test_a_preconditioner_must_fit():
    precision = replace(solved("mlp").precision, memory=10)
    with pytest.raises(RunError) as refused:
        cholesky_preconditioner(precision, 5)
    assert refused.value.reason == Reason.NO_ROOM_FOR_FULL
    with pytest.raises(RunError) as refused:
        subnet_preconditioner(precision, subset(5, 5))
    assert refused.value.reason == Reason.NO_ROOM_FOR_SUBNET
