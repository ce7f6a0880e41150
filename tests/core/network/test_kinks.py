"""Which activations are watched for pre-activations near a kink, and what counts as near."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sublaplace_cli.core.network.kinks import (
    LEAST_ROUNDING,
    MOST_UNITS,
    FunctionWatch,
    ModuleWatch,
    NearKinks,
    Rounding,
    activation_modules,
    measured_rounding,
)

aten = torch.ops.aten
SEEN = {
    "ReLU": (nn.ReLU(), (0.0,)),
    "ReLU in place": (lambda z: nn.ReLU(inplace=True)(z.clone()), (0.0,)),
    "ReLU6": (nn.ReLU6(), (0.0, 6.0)),
    "LeakyReLU": (nn.LeakyReLU(0.1), (0.0,)),
    "PReLU": (nn.PReLU(), (0.0,)),
    "RReLU": (nn.RReLU().eval(), (0.0,)),
    "Hardtanh": (nn.Hardtanh(-2.0, 3.0), (-2.0, 3.0)),
    "Threshold": (nn.Threshold(0.25, 0.0), (0.25,)),
    "Hardswish": (nn.Hardswish(), (-3.0, 3.0)),
    "Hardsigmoid": (nn.Hardsigmoid(), (-3.0, 3.0)),
    "SELU": (nn.SELU(), (0.0,)),
    "ELU that jumps": (nn.ELU(0.5), (0.0,)),
    "Softshrink": (nn.Softshrink(0.2), (-0.2, 0.2)),
    "torch.relu": (torch.relu, (0.0,)),
    "F.relu": (F.relu, (0.0,)),
    "F.relu6": (F.relu6, (0.0, 6.0)),
    "Tensor.relu": (lambda z: z.relu(), (0.0,)),
    "Tensor.relu_": (lambda z: z.clone().relu_(), (0.0,)),
    "clamp below": (lambda z: z.clamp(min=0.5), (0.5,)),
    "clamp": (lambda z: torch.clamp(z, -1, 2), (-1.0, 2.0)),
    "clamp_min": (lambda z: z.clamp_min(0.0), (0.0,)),
    "abs": (abs, (0.0,)),
    "a node of an exported graph": (aten.relu.default, (0.0,)),
    "another": (lambda z: aten.hardtanh.default(z, 0, 6), (0.0, 6.0)),
}
SMOOTH = {
    "ELU": nn.ELU(),
    "CELU": nn.CELU(),
    "GELU": nn.GELU(),
    "SiLU": nn.SiLU(),
    "Tanh": nn.Tanh(),
    "Softplus": nn.Softplus(),
    "bounds by tensors": lambda z: torch.clamp(z, torch.zeros(()), torch.ones(())),
    "integers": lambda z: z.long().clamp(0, 3),
    "rows not first": lambda z: torch.relu(z.T),
    "very many units": lambda z: torch.relu(z.repeat(1, MOST_UNITS)),
}


def kinks_seen(function) -> list[tuple[float, ...]]:
    z = torch.linspace(-1, 1, 12).reshape(4, 3)
    with torch.no_grad(), FunctionWatch(4, lambda _number, _z, kinks: kinks) as watch:
        function(z)
    return watch.seen


@pytest.mark.parametrize("name", SEEN)
def test_activations_with_a_kink_are_seen_once(name):
    function, kinks = SEEN[name]
    assert kinks_seen(function) == [kinks]


@pytest.mark.parametrize("name", SMOOTH)
def test_others_are_not(name):
    assert kinks_seen(SMOOTH[name]) == []


def test_modules_are_known_with_their_kinks():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Tanh(), nn.PReLU(2), nn.Sequential(nn.Hardtanh(-2.0, 3.0)))
    found = activation_modules(model)
    assert found == {model[1]: (0.0,), model[3]: (0.0,), model[4][0]: (-2.0, 3.0)}
    with torch.no_grad(), ModuleWatch(found, 4, lambda number, z, kinks: (number, z.shape, kinks)) as watch:
        model(torch.ones(4, 3))
    assert watch.seen == [(0, (4, 2), (0.0,)), (1, (4, 2), (0.0,)), (2, (4, 2), (-2.0, 3.0))]
    assert not any(module._forward_pre_hooks for module in model.modules())


def near(z: torch.Tensor, rounding: Rounding | None = None, activation=torch.relu) -> list[int]:
    kinks = NearKinks([] if rounding is None else [rounding])
    with kinks.watch(len(z)) as watch:
        activation(z)
    return kinks.rows(watch)


def rows_of(*values: float) -> torch.Tensor:
    """Rows whose first pre-activation is one of these values, with a root mean square of 1."""
    return torch.stack([torch.tensor([value, 1.5, -1.5, value / 2 - 0.7]) for value in values])


def test_near_is_relative_to_the_row():
    eps = LEAST_ROUNDING
    assert near(rows_of(0.3, 2 * eps, -0.2)) == []
    assert near(rows_of(0.3, 0.5 * eps, 0.0, -0.5 * eps)) == [1, 2, 3]
    assert near(torch.cat([rows_of(5 * eps), 100 * rows_of(0.2)])) == []  # a large row does not widen the others
    assert near(100 * rows_of(0.5 * eps)) == [0]


def test_no_number_is_too_small_or_too_large():
    assert near(rows_of(1e-45, 1e-30, -1e-38, 1.0)) == [0, 1, 2]
    assert near(torch.full((2, 3), 1e18)) == []


def test_a_layer_of_one_unit_is_measured_by_the_sample():
    z = torch.tensor([[1e-7], [0.4]])
    assert near(z) == []
    assert near(z, Rounding(scale=2.0)) == [0]


def test_other_kinks_than_zero():
    assert near(rows_of(3.0, 3.0 + 1e-3, -3.0 + 1e-7, 0.0), activation=F.hardswish) == [0, 2]


def test_ties_that_are_exact_in_both_precisions_do_not_count():
    z = torch.relu(torch.tensor([[0.5, -0.3], [0.2, 0.6]]))
    (rounding,) = measured_rounding([(z, (0.0,))], [z.double()])
    assert rounding.has_ties
    assert near(z) == [0]
    assert near(z, rounding) == []
    assert near(torch.tensor([[0.0, 1e-9], [0.2, 0.6]]), rounding) == [0]


def test_cancelling_terms_widen_what_counts_as_near():
    exact = torch.tensor([[0.5, -0.5]], dtype=torch.float64)
    (rounding,) = measured_rounding([((exact + 1e-4).float(), (0.0,))], [exact])
    assert rounding.share == pytest.approx(8 * 1e-4 / 0.5, rel=1e-2)
    assert near(torch.tensor([[7e-4, 0.7], [9e-4, 0.7]]), rounding) == [0]


def test_a_network_that_branches_has_no_measured_rounding():
    z = torch.ones(2, 3)
    assert measured_rounding([(z, (0.0,))], []) == ()
