"""Float32 passes at a kink: the rows that rounding puts on the wrong side are those of float64."""

from __future__ import annotations

import copy

import pytest
import reference
import torch
from cases import CASES
from core.problems import PLENTY, case_named
from torch import Tensor, nn

from sublaplace_cli.core.checked_pass import MOST_DIFFERENCE, CheckedPass, in_float64, relative_differences
from sublaplace_cli.core.jacobian.capture import Capture, Captured, prepare_capture
from sublaplace_cli.core.network.forward import Inputs, map_inputs, row_count
from sublaplace_cli.core.network.layout import Layout

NOISE, PRIOR = 0.25, 0.5


def ten_parameters(activation: nn.Module | None = None) -> nn.Sequential:
    """1-3-1, with relu(3x − 2.1) as its first unit: at x = 0.7 it is 0 in float32 and 6e-8 in float64."""
    model = nn.Sequential(nn.Linear(1, 3), activation or nn.ReLU(), nn.Linear(3, 1))
    values = [[3.0, 1.0, -1.0], [-2.1, 0.5, 0.2], [2.0, 0.5, 0.7], [0.1]]
    with torch.no_grad():
        for parameter, own in zip(model.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(own).reshape(parameter.shape))
    return model.eval()


def dense(captured: Captured) -> Tensor:
    return torch.cat([block.dense().values.double() for block in captured.blocks], dim=2)


def doubled(inputs: Inputs) -> Inputs:
    return map_inputs(lambda t: t.double() if t.is_floating_point() else t, inputs)


def some(inputs: Inputs, rows: list[int]) -> Inputs:
    return map_inputs(lambda t: t[rows], inputs)


def checked(model: nn.Module, exact_inputs: Inputs, sampled: list[int]) -> CheckedPass:
    inputs = map_inputs(lambda t: t.float() if t.is_floating_point() else t, exact_inputs)
    capture = prepare_capture(model, Layout.of(model), inputs, PLENTY)
    return CheckedPass.of(capture, in_float64(capture), some(inputs, sampled), some(exact_inputs, sampled))


def corrected(passes: CheckedPass, exact_inputs: Inputs, step: int = 10**6) -> tuple[Tensor, list[int], list[int]]:
    """(J, rows near a kink, rows that were replaced), in passes of `step` rows."""
    J, near, replaced = [], [], []
    for start in range(0, row_count(exact_inputs), step):
        part = map_inputs(lambda t: t[start : start + step], exact_inputs)  # noqa: B023
        captured, rows = passes(map_inputs(lambda t: t.float() if t.is_floating_point() else t, part))
        wrong: list[int] = []
        if rows:
            captured, wrong = passes.corrected(captured, rows, some(part, rows))
        J.append(dense(captured))
        near += [start + row for row in rows]
        replaced += [start + row for row in wrong]
    return torch.cat(J), near, replaced


def oracle(model: nn.Module, inputs: Inputs) -> Tensor:
    return reference.jacobian(copy.deepcopy(model).double(), doubled(inputs), row_count(inputs))[1]


def variances(J: Tensor) -> Tensor:
    """Of the full posterior at its own training rows."""
    H = reference.output_hessian("regression", torch.zeros(J.shape[:2]), NOISE)
    omega = reference.precision(J, H, torch.full((J.shape[2],), PRIOR, dtype=torch.float64))
    return reference.subnet_variance(J, omega, torch.arange(J.shape[2])).flatten()


X = torch.tensor([[0.1], [0.7], [0.35], [0.9], [0.25], [0.55]], dtype=torch.float64)


def test_ten_parameters_at_the_kink():
    model = ten_parameters()
    J, near, replaced = corrected(checked(model, X, [0, 3]), X)
    assert near == replaced == [1]
    expected, plain = oracle(model, X), reference.jacobian(model, X.float(), len(X))[1]
    assert float(relative(plain, expected)[1]) > 0.3  # what float32 alone gives
    assert float((variances(plain) / variances(expected) - 1).abs().max()) > 0.3
    torch.testing.assert_close(J, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variances(J), variances(expected), rtol=1e-5, atol=0)


def relative(J: Tensor, expected: Tensor) -> Tensor:
    return (J - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)


@pytest.mark.parametrize("step", [1, 2, 4, 5, 6])
def test_the_pass_size_does_not_matter(step):
    model = ten_parameters()
    J, _, replaced = corrected(checked(model, X, [0, 3]), X, step)
    assert replaced == [1]
    torch.testing.assert_close(J, oracle(model, X), rtol=1e-6, atol=1e-6)


def test_rows_that_float32_cannot_tell_apart():
    """Many rows around the kink, all one number in float32: whatever its kernels make of it, the sides are right."""
    kink = float(torch.tensor(2.1)) / 3
    x = torch.cat([X, (kink + torch.linspace(-4e-9, 4e-9, 20, dtype=torch.float64)).reshape(-1, 1)])
    model = ten_parameters()
    J, near, replaced = corrected(checked(model, x, [0, 3]), x)
    assert set(near) >= set(range(6, 26))
    assert len(set(replaced) & set(range(6, 26))) == 10
    assert float(relative(J, oracle(model, x)).max()) < 1e-5


ACTIVATIONS = {
    "leaky": (nn.LeakyReLU(0.1), 0.0),
    "relu6": (nn.ReLU6(), 6.0),
    "hardtanh": (nn.Hardtanh(), -1.0),
    "threshold": (nn.Threshold(0.5, 0.5), 0.5),
    "hardswish": (nn.Hardswish(), 3.0),
    "hardsigmoid": (nn.Hardsigmoid(), -3.0),
    "elu": (nn.ELU(0.3), 0.0),
    "selu": (nn.SELU(), 0.0),
    "prelu": (nn.PReLU(init=0.2), 0.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_kinks_of_other_activations(name):
    activation, at = ACTIVATIONS[name]
    model = ten_parameters()
    model[1] = activation
    kink = (at + float(torch.tensor(2.1))) / 3
    x = torch.cat([X, kink + torch.tensor([[-3e-9], [3e-9]], dtype=torch.float64)])
    J, near, replaced = corrected(checked(model, x, [0, 3]), x)
    assert set(near) >= {6, 7}
    assert len(set(replaced) & {6, 7}) == 1  # in float32 both are the same number, so that one of them is wrong
    assert float(relative(J, oracle(model, x)).max()) < 1e-5


class Written(nn.Module):
    """relu as a function, on a parameter that only the general path can differentiate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.tensor([3.0, 1.0])), nn.Parameter(torch.tensor([-2.1, 0.4]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * self.weight + self.bias).sum(1)


def test_networks_without_a_formula():
    model = Written().eval()
    J, near, replaced = corrected(checked(model, X, [0, 3]), X)
    assert near == replaced == [1]
    torch.testing.assert_close(J, oracle(model, X), rtol=1e-6, atol=1e-6)


class BothWays(nn.Sequential):
    """An activation as a module, and one as a function."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x)).sum(1)


@pytest.mark.parametrize("build", [nn.Sequential, BothWays], ids=["modules", "functions too"])
def test_hooks_are_used_only_where_they_see_everything(build):
    model = build(*ten_parameters()).eval()
    passes = checked(model, X, [0, 3])
    assert (passes.kinks.modules is None) == (build is BothWays)
    _, near, replaced = corrected(passes, X)
    assert near == replaced == [1]


@pytest.fixture
def exact_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each float64 pass."""
    rows, whole = [], Capture.__call__

    def counted(self: Capture, inputs: Inputs, *args, **named) -> Captured:
        if next(self.model.parameters()).dtype == torch.float64:
            rows.append(row_count(inputs))
        return whole(self, inputs, *args, **named)

    monkeypatch.setattr(Capture, "__call__", counted)
    return rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_a_kink_nearby_nothing_changes(case, exact_passes):
    """One float64 pass for the sample; the rows are those of a plain float32 pass, to the bit."""
    model, train, *_ = case_named(case.name).make(torch.float32)
    passes = checked(model, doubled(train), [0, 9])
    J, near, replaced = corrected(passes, doubled(train))
    assert near == replaced == []
    assert exact_passes == [2]
    assert max(passes.sample_differences) < 1e-4
    assert torch.equal(J, dense(passes.capture(train)))


def test_a_sample_that_differs_without_a_kink():
    """1e4 + x is rounded to about 1e-3 in float32: the network is not one for float32, and no kink explains it."""

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear((x + 1e4) - 1e4)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Large().eval()
    passes = checked(model, torch.linspace(0.011, 0.021, 8, dtype=torch.float64).reshape(-1, 1), [0, 3, 6])
    assert max(passes.sample_differences) < MOST_DIFFERENCE  # its gradient is [x, 1]: the bias hides it
    model.linear.bias = None
    passes = checked(model, torch.linspace(0.011, 0.021, 8, dtype=torch.float64).reshape(-1, 1), [0, 3, 6])
    assert max(passes.sample_differences) > MOST_DIFFERENCE
    assert passes.sample_near == ()


def test_a_sample_that_is_at_a_kink():
    passes = checked(ten_parameters(), X, [1, 4])
    assert passes.sample_differences[0] > MOST_DIFFERENCE > passes.sample_differences[1]
    assert passes.sample_near == (0,)


def test_differences_are_relative_to_the_larger_norm():
    model = ten_parameters()
    capture = prepare_capture(model, Layout.of(model), X.float(), PLENTY)
    one = capture(X.float())
    nothing = one.with_rows(
        range(len(X)),
        Captured(one.f, [b.with_tensors({n: t * 0 for n, t in b.tensors().items()}) for b in one.blocks]),
    )
    assert relative_differences(one, one).tolist() == [0.0] * len(X)
    assert relative_differences(nothing, nothing).tolist() == [0.0] * len(X)


def test_the_caller_keeps_its_network():
    model = ten_parameters()
    passes = checked(model, X, [0])
    assert {parameter.dtype for parameter in passes.capture.model.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in passes.exact.model.parameters()} == {torch.float64}
