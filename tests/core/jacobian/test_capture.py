"""Capture: outputs and Jacobians of any module equal plain autograd, a row and an output at a time."""

from __future__ import annotations

import dataclasses
import math

import pytest
import reference
import torch
from cases import CASES
from core.problems import PLENTY, assert_close, capture_of, dtypes_kept
from torch import nn

from sublaplace_cli.core.jacobian.autograd import batched_jacobian, rowwise_jacobian
from sublaplace_cli.core.jacobian.capture import MOST_ROWS_PER_PASS, Captured, prepare_capture
from sublaplace_cli.core.network.forward import last_linear, map_inputs
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.errors import NumericsError, UserError

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
both_paths = pytest.mark.parametrize("batched", [True, False], ids=["vmap", "row-by-row"])


def dense(captured: Captured) -> torch.Tensor:
    return torch.cat([block.dense().values for block in captured.blocks], dim=2)


def captured_rows(model: nn.Module, inputs, batched: bool | None = None, memory: int = PLENTY):
    """(capture, f, J) of a module in float64, the path forced where `batched` says so."""
    capture = prepare_capture(model, Layout.of(model), inputs, memory)
    if batched is not None:
        capture = dataclasses.replace(capture, batched=batched)
    captured = capture(inputs)
    return capture, captured.f, dense(captured)


def made(build, *, seed: int = 5) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


def rows(n: int, *shape: int) -> torch.Tensor:
    return torch.randn(n, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@each_case
@both_paths
def test_outputs_and_jacobian_equal_plain_autograd(case, batched):
    capture, train = capture_of(case)
    captured = dataclasses.replace(capture, batched=batched)(train)
    f, J = reference.jacobian(capture.model, train, case.n_train)
    assert captured.f.dtype == torch.float64
    assert_close(captured.f, f, 1e-12)
    assert_close(dense(captured), J, 1e-9)


@each_case
@pytest.mark.parametrize("path", [batched_jacobian, rowwise_jacobian], ids=["vmap", "row-by-row"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_general_path_alone_equals_plain_autograd(case, path, dtype):
    model, train, *_ = case.make(dtype)
    layout = Layout.of(model)
    f, gradients = path(model, [q.name for q in layout.parameters], case.n_outputs, train)
    J = torch.cat([gradients[q.name].flatten(2) if q.shape else gradients[q.name] for q in layout.parameters], dim=2)
    wide, same_rows, *_ = case.make(torch.float64)  # drawn in float32 and widened: the same numbers
    expected_f, expected_J = reference.jacobian(wide, same_rows, case.n_train)
    assert f.dtype == J.dtype == dtype
    if dtype == torch.float64:
        assert_close(f, expected_f, 1e-12)
        assert_close(J, expected_J, 1e-9)
    else:  # as above: eps is 6e-8
        assert float((f - expected_f).abs().max()) <= 1e-5 * float(expected_f.abs().max())
        assert float((J - expected_J).abs().max()) <= 1e-5 * float(expected_J.abs().max())


@each_case
def test_every_case_takes_the_batched_path(case):
    assert capture_of(case)[0].batched


@each_case
@both_paths
def test_float32_passes_lose_no_more_than_single_precision(case, batched):
    capture, train = capture_of(case, torch.float32)
    captured = dataclasses.replace(capture, batched=batched)(train)
    model, same_rows, *_ = case.make(torch.float64)  # drawn in float32 and widened: the same numbers
    f, J = reference.jacobian(model, same_rows, case.n_train)
    assert dtypes_kept(captured.blocks) == {torch.float32}
    # eps is 6e-8; a gradient here is a sum of up to ~100 such products of numbers near its own size.
    assert float((captured.f - f).abs().max()) <= 1e-5 * float(f.abs().max())
    assert float((dense(captured) - J).abs().max()) <= 1e-5 * float(J.abs().max())


@each_case
def test_rows_do_not_depend_on_the_pass_they_are_in(case):
    capture, train = capture_of(case)
    whole = dense(capture(train))
    one_by_one = torch.cat([dense(capture(map_inputs(lambda t: t[i : i + 1], train))) for i in range(case.n_train)])  # noqa: B023
    # An entry may be a millionth of the largest, and kernels for other batch sizes round in another order.
    assert_close(one_by_one, whole, 1e-10)


def test_little_memory_means_fewer_rows_a_pass():
    case = CASES[1]
    assert capture_of(case)[0].rows_per_pass == MOST_ROWS_PER_PASS
    assert capture_of(case, memory=1)[0].rows_per_pass == 1


class Branching(nn.Module):
    """Data-dependent control flow, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return torch.cat([self.a(row) if row.sum() > 0 else self.b(row) for row in x.unsqueeze(1)])


class BranchingScalar(nn.Module):
    """The same with one output, and with a parameter that has no formula."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)
        self.scale = nn.Parameter(torch.tensor([0.8]))

    def forward(self, x):
        if bool(x.sum() > 1e9):
            return x[:, :1]
        return torch.tanh(self.body(x)) * self.scale


class BranchingLayer(nn.Module):
    """The same with nothing but a layer that has a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)

    def forward(self, x):
        if bool(x.sum() > 1e9):
            return x[:, :1]
        return torch.tanh(self.body(x))


class Recurrent(nn.Module):
    """An LSTM returns (outputs, (hidden, cell)), and updates its gates in place, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.lstm(x.unsqueeze(2))[0][:, -1])


@pytest.mark.parametrize("build", [Branching, BranchingScalar, Recurrent])
def test_a_network_that_vmap_cannot_take_is_differentiated_row_by_row(build):
    model, x = made(build), rows(8, 3)
    capture, f, J = captured_rows(model, x)
    assert not capture.batched
    expected_f, expected_J = reference.jacobian(model, x, 8)
    assert_close(f, expected_f, 1e-12)
    assert_close(J, expected_J, 1e-12)


def test_a_network_of_formulas_alone_needs_no_vmap():
    model, x = made(BranchingLayer), rows(8, 3)
    capture, f, J = captured_rows(model, x)
    assert capture.batched
    assert not capture.rest
    assert not capture.notes
    expected_f, expected_J = reference.jacobian(model, x, 8)
    assert_close(f, expected_f, 1e-12)
    assert_close(J, expected_J, 1e-12)


class Positional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, a, b):
        return self.out(torch.tanh(self.left(a) * self.right(b)))


class AnyKeywords(Positional):
    def forward(self, **inputs):
        return super().forward(inputs["a"], inputs["b"])


class OneTuple(Positional):
    def forward(self, pair):
        return super().forward(*pair)


class OneDict(Positional):
    def forward(self, inputs):
        return super().forward(inputs["a"], inputs["b"])


@both_paths
@pytest.mark.parametrize(
    ("build", "shape"),
    [(Positional, tuple), (Positional, dict), (AnyKeywords, dict), (OneTuple, tuple), (OneDict, dict)],
    ids=["positions", "keywords", "any-keywords", "one-tuple", "one-dict"],
)
def test_several_input_arrays(build, shape, batched):
    a, b = rows(7, 3), rows(7, 2)
    _, f, J = captured_rows(made(build), (a, b) if shape is tuple else {"a": a, "b": b}, batched)
    expected_f, expected_J = reference.jacobian(made(OneDict), {"a": a, "b": b}, 7)
    assert_close(f, expected_f, 1e-12)
    assert_close(J, expected_J, 1e-12)


def test_keywords_go_by_name_and_not_by_order():
    a, b = rows(7, 3), rows(7, 2)
    f = captured_rows(made(Positional), {"b": b, "a": a})[1]
    assert torch.equal(f, captured_rows(made(Positional), {"a": a, "b": b})[1])


class OneDimensional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)

    def forward(self, x):
        return self.body(x)[:, 0]


class Unused(nn.Module):
    """A parameter in the middle of the flat vector that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.idle, self.last = nn.Linear(3, 3), nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class Buffered(nn.Module):
    """Buffers are constants, also where they multiply parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2)
        self.register_buffer("scale", torch.tensor([2.0, -3.0]))

    def forward(self, x):
        return self.body(x) * self.scale


class NonContiguous(nn.Module):
    """A weight that lies column-major in memory; its flat order is row-major all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3).T)

    def forward(self, x):
        return torch.tanh(x @ self.weight)[:, :2]


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))

    def forward(self, x):
        h = self.body(x)
        h += 1.0
        return h.mul_(2.0)


class InPlaceOnInput(nn.Module):
    """Changes the tensor that it is given, as a network that normalises its input may."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2)

    def forward(self, x):
        return self.body(x.sub_(1.0))


class Scalar(nn.Module):
    """A parameter without dimensions, such as a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.7))
        self.body = nn.Linear(3, 2)

    def forward(self, x):
        return self.body(x) * self.temperature


@both_paths
@pytest.mark.parametrize("build", [OneDimensional, Unused, Buffered, NonContiguous, InPlace, InPlaceOnInput, Scalar])
def test_unusual_modules(build, batched):
    model = made(build)
    _, f, J = captured_rows(model, rows(6, 3), batched)
    expected_f, expected_J = reference.jacobian(model, rows(6, 3), 6)
    assert_close(f, expected_f, 1e-12)
    assert_close(J, expected_J, 1e-12)


@both_paths
def test_a_parameter_that_nothing_uses_has_zero_gradient(batched):
    model, x = made(Unused), rows(6, 3)
    _, _, J = captured_rows(model, x, batched)
    idle = Layout.of(model).indices(Layout.of(model).matching("idle.*"))
    assert len(idle) == 9
    assert not J[:, :, idle].any()
    assert J.abs().sum() > 0


def test_the_flat_order_of_a_column_major_weight_is_row_major():
    model = made(NonContiguous)
    assert not model.weight.is_contiguous()
    assert torch.equal(Layout.of(model).flatten(model), torch.stack([w for row in model.weight for w in row]).detach())


@both_paths
def test_capture_leaves_the_model_and_the_rows_alone(batched):
    model, x = made(InPlace), rows(6, 3)
    before, inputs = {n: t.clone() for n, t in model.state_dict().items()}, x.clone()
    captured_rows(model, x, batched)
    assert torch.equal(x, inputs)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(q.grad is None for q in model.parameters())


def test_a_network_that_draws_at_random_is_refused():
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double().train()
    with pytest.raises(UserError, match=r"in two runs.*1 \(Dropout\)"):
        captured_rows(model, rows(8, 3))


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.BatchNorm1d, (3,)), (nn.BatchNorm2d, (3, 2, 2))],
    ids=["one-value-a-row", "several-values-a-row"],
)
def test_a_network_that_mixes_rows_is_refused(norm, shape):
    body = nn.Flatten(), nn.Linear(math.prod(shape), 1)
    model = made(lambda: nn.Sequential(norm(3, track_running_stats=False), *body))
    with pytest.raises(UserError, match=rf"(other rows of its batch|a batch of one row).*0 \({norm.__name__}"):
        captured_rows(model, rows(8, *shape))


class Exploding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calm, self.wild = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.wild(self.calm(x))


def test_a_non_finite_output_names_its_row_and_the_first_layer():
    model, x = made(Exploding), rows(5, 3)
    x[3] = float("inf")
    with pytest.raises(NumericsError, match=r"row 3 .*'calm'"):
        captured_rows(model, x)


class RootOfZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return torch.sqrt((x * self.w).square().sum(1, keepdim=True))


def test_a_non_finite_gradient_names_its_parameter_and_row():
    x = rows(5, 3)
    x[2] = 0.0
    with pytest.raises(NumericsError, match=r"'w'.*row 2"):
        captured_rows(made(RootOfZero), x)


def test_an_output_of_three_dimensions_is_refused():
    with pytest.raises(UserError, match=r"shape \(5, 3, 2\)"):
        captured_rows(made(lambda: nn.Linear(4, 2)), rows(5, 3, 4))


class OutOfOrder(nn.Module):
    """Registered in another order than run; the last to run is `first`, without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 1, bias=False), nn.Linear(3, 4)
        self.idle = nn.Linear(2, 2)

    def forward(self, x):
        return self.first(torch.relu(self.second(x)))


def test_the_last_linear_layer_is_the_last_that_runs():
    assert last_linear(made(OutOfOrder), rows(4, 3)) == ["first.weight"]


def test_a_network_without_a_linear_layer_has_no_last_one():
    assert last_linear(made(NonContiguous), rows(4, 3)) == []
