"""Passes through combinations of the outputs: Uᵀ J of plain autograd, by as many backward passes as combinations."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import reference
import torch
from cases import CASES
from core.problems import PLENTY, assert_close, capture_of, random_matrix
from torch import nn

from sublaplace_cli.core import combined_pass
from sublaplace_cli.core.checked_pass import CheckedPass, in_float64
from sublaplace_cli.core.combined_pass import prepare_combined
from sublaplace_cli.core.jacobian.capture import Captured, prepare_capture
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.errors import NumericsError

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def dense(captured: Captured) -> torch.Tensor:
    return torch.cat([block.dense().values.double() for block in captured.blocks], dim=2)


@each_case
@pytest.mark.parametrize("batched", [True, False], ids=["vmap", "row-by-row"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_jacobian_of_combinations_equals_that_of_all_outputs_combined(case, batched, count):
    capture, train = capture_of(case)
    f, J = reference.jacobian(capture.model, train, case.n_train)
    U = random_matrix(case.n_train, case.n_outputs, count)
    captured = dataclasses.replace(capture, batched=batched)(train, U=U)
    assert_close(captured.f, f, 1e-12)
    assert_close(dense(captured), torch.einsum("ncs,ncp->nsp", U, J), 1e-9)


@each_case
def test_the_templates_are_those_of_a_pass_with_combinations(case):
    capture, train = capture_of(case)
    prepared = prepare_combined(capture, 2, train, PLENTY)
    assert {block.n_outputs for block in prepared.templates} == {2}
    blocks = prepared(train, U=random_matrix(case.n_train, case.n_outputs, 2)).blocks
    for template, block in zip(prepared.templates, blocks, strict=True):
        assert type(template) is type(block)
        assert [t.shape[1:] for t in template.tensors().values()] == [t.shape[1:] for t in block.tensors().values()]


def test_rows_at_a_kink_are_compared_and_replaced_with_their_own_combinations():
    """1-3-40 with relu(3x − 2.1) as its first unit: at x = 0.7 it is 0 in float32 and 6e-8 in float64."""
    x = torch.tensor([[0.1], [0.7], [0.35], [0.9], [0.25], [0.55]], dtype=torch.float64)
    U, other_U = random_matrix(6, 40, 4), random_matrix(6, 40, 4).flip(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 40)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0], [1.0], [-1.0]]))
        model[0].bias.copy_(torch.tensor([-2.1, 0.5, 0.2]))
    capture = prepare_capture(model, Layout.of(model), x.float(), PLENTY)
    passes = CheckedPass.of(capture, in_float64(capture), x[[0, 3]].float(), x[[0, 3]], U[[0, 3]])
    assert max(passes.sample_differences) < 1e-5
    captured, near = passes(x.float(), U)
    assert near == [1]
    expected = torch.einsum("ncs,ncp->nsp", U, reference.jacobian(copy.deepcopy(model).double(), x, 6)[1])
    assert not torch.allclose(dense(captured), expected, rtol=1e-2)
    rows = [1, 2]
    captured, replaced = passes.corrected(captured, rows, x[rows], U[rows])
    assert replaced == [1]
    assert_close(dense(captured), expected, 1e-5)
    assert (
        passes.corrected(captured, rows, x[rows], other_U[rows])[1] == rows
    )  # others would be a difference of their own


def test_wrong_gradients_of_combinations_are_refused(monkeypatch):
    capture, train = capture_of(CASES[1])
    right = combined_pass.combined_gradients

    def wrong(*args: Any) -> Any:
        return {name: 1.01 * tensor for name, tensor in right(*args).items()}

    monkeypatch.setattr(combined_pass, "combined_gradients", wrong)
    with pytest.raises(NumericsError, match="not that of a plain backward pass"):
        prepare_combined(capture, 2, train, PLENTY)
