"""Passes through combinations of the outputs: Uᵀ J of plain autograd, by as many backward passes as combinations."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import reference
import torch
from cases import CASES
from core.problems import PLENTY, assert_close, capture_of, random_matrix

from sublaplace_cli.core import combined_pass
from sublaplace_cli.core.combined_pass import prepare_combined
from sublaplace_cli.errors import NumericsError

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
@pytest.mark.parametrize("batched", [True, False], ids=["vmap", "row-by-row"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_jacobian_of_combinations_equals_that_of_all_outputs_combined(case, batched, count):
    capture, train = capture_of(case)
    f, J = reference.jacobian(capture.model, train, case.n_train)
    U = random_matrix(case.n_train, case.n_outputs, count)
    captured = dataclasses.replace(capture, batched=batched)(train, U=U)
    assert_close(captured.f, f, 1e-12)
    found = torch.cat([block.dense().values for block in captured.blocks], dim=2)
    assert_close(found, torch.einsum("ncs,ncp->nsp", U, J), 1e-9)


@each_case
def test_the_templates_are_those_of_a_pass_with_combinations(case):
    capture, train = capture_of(case)
    prepared = prepare_combined(capture, 2, train, PLENTY)
    assert {block.n_outputs for block in prepared.templates} == {2}
    blocks = prepared(train, U=random_matrix(case.n_train, case.n_outputs, 2)).blocks
    for template, block in zip(prepared.templates, blocks, strict=True):
        assert type(template) is type(block)
        assert [t.shape[1:] for t in template.tensors().values()] == [t.shape[1:] for t in block.tensors().values()]


def test_wrong_gradients_of_combinations_are_refused(monkeypatch):
    capture, train = capture_of(CASES[1])
    right = combined_pass.combined_gradients

    def wrong(*args: Any) -> Any:
        return {name: 1.01 * tensor for name, tensor in right(*args).items()}

    monkeypatch.setattr(combined_pass, "combined_gradients", wrong)
    with pytest.raises(NumericsError, match="not that of a plain backward pass"):
        prepare_combined(capture, 2, train, PLENTY)
