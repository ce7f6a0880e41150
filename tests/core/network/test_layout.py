"""The flat vector: named_parameters() order, row-major, frozen parameters left out."""

from __future__ import annotations

import pytest
import torch
from cases import CASES
from core.problems import case_named

from sublaplace_cli.core.network.layout import Layout


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_positions_follow_the_trainable_parameters(case):
    model = case.make()[0]
    layout = Layout.of(model)
    trainable = [(name, q) for name, q in model.named_parameters() if q.requires_grad]
    theta = layout.flatten(model)
    assert [q.name for q in layout.parameters] == [name for name, _ in trainable]
    assert layout.size == len(theta) == sum(q.numel() for _, q in trainable)
    for place, (_, q) in zip(layout.parameters, trainable, strict=True):
        assert torch.equal(theta[place.span].reshape(place.shape), q.detach())


def test_frozen_parameters_have_no_place():
    names = [q.name for q in Layout.of(case_named("frozen").make()[0]).parameters]
    assert names == ["0.weight", "0.bias", "4.weight", "4.bias"]


def test_a_shared_weight_has_one_place():
    names = [q.name for q in Layout.of(case_named("tied").make()[0]).parameters]
    assert names == ["first.weight", "first.bias", "second.bias", "out.weight", "out.bias"]


def test_describe_names_tensor_and_position():
    layout = Layout.from_shapes([("a", (2, 3)), ("s", ()), ("b", (2, 1, 2))])
    assert [layout.describe(i) for i in (0, 5, 6, 7, 10)] == ["a[0, 0]", "a[1, 2]", "s[0]", "b[0, 0, 0]", "b[1, 0, 1]"]
    with pytest.raises(IndexError, match=r"outside 0\.\.10"):
        layout.describe(11)


def test_indices_of_a_glob_are_in_flat_order():
    layout = Layout.from_shapes([("l1.weight", (2, 2)), ("l1.bias", (2,)), ("l2.weight", (1, 2)), ("l2.bias", (1,))])
    assert layout.indices(layout.matching("*.bias")).tolist() == [4, 5, 8]
    assert layout.indices(layout.matching("l2.*")[::-1]).tolist() == [6, 7, 8]
    assert layout.indices(layout.matching("nothing")).tolist() == []
