"""Which layers get a formula and which take the general path; the Jacobian is right in every case."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from core.jacobian.test_formulas import assert_right, prepared
from core.problems import random_matrix
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from sublaplace_cli.core.jacobian.capture import CHECKED_ROWS
from sublaplace_cli.core.jacobian.layer_io import layer_blocks
from sublaplace_cli.core.jacobian.recognition import recognise
from sublaplace_cli.core.network.forward import map_inputs
from sublaplace_cli.core.network.layout import Layout

ROWS = 7


class Net(nn.Module):
    """tanh layers 4 → 4 and an output layer 4 → 2; the sub-classes differ in what they do with them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


class TiedWeight(Net):
    def __init__(self) -> None:
        super().__init__()
        self.second.weight = self.first.weight


class SharedModule(Net):
    def __init__(self) -> None:
        super().__init__()
        self.second = self.first


class CalledTwice(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.tanh(self.first(x)))


class UsedFunctionally(Net):
    """The layer itself runs once, and its weight once more by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(x, self.first.weight)[:, :2]


class BiasUsedElsewhere(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + self.first.bias.sum())


class WeightPenalty(Net):
    """A use that no row's activations show: the output depends on the norm of a weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.second.weight.square().sum()


class OnlyFunctional(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(F.linear(x, self.first.weight, self.first.bias))
        return self.out(torch.tanh(self.second(h)))


class Parametrized(Net):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.first)
        parametrizations.orthogonal(self.second)


class ParametrizedBias(Net):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrize.register_parametrization(self.first, "bias", nn.Tanh())


class OldWeightNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.weight_norm(self.first)


class HookedOutput(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda _m, _args, out: out * 2)


class HookedInput(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_pre_hook(lambda _m, args: (args[0] * 2,))


class HookedGradient(Net):
    """A backward hook that changes gradients is part of what autograd gives."""

    def __init__(self) -> None:
        super().__init__()
        self.second.register_full_backward_hook(
            lambda _m, into, _out: tuple(None if g is None else 3.0 * g for g in into)
        )


class OwnForward(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.weight, self.bias)


class SubclassWithItsOwnForward(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = OwnForward(4, 4)


class SameForward(nn.Linear):
    """A sub-class that changes nothing about the forward keeps the formula."""


class SubclassWithoutOwnForward(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = SameForward(4, 4)


class PatchedForward(Net):
    """The forward of one object replaced."""

    def __init__(self) -> None:
        super().__init__()
        layer = self.first
        layer.forward = lambda x: F.linear(x, 3 * layer.weight, layer.bias)


class ExtraParameter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.first.scale


class InPlaceActivation(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu_(self.first(x))
        h = F.relu(self.second(h), inplace=True)
        return self.out(h)


class InPlaceOnTheLayerInput(Net):
    """What a layer got is changed in place after it ran, which autograd allows where the weight is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2.0
        z = self.first(h)
        h.add_(5.0)
        y = self.second(torch.tanh(z) + h)
        y += 1.0
        return self.out(torch.sigmoid(y))


class InPlaceOnTheModelInput(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        x.mul_(3.0)
        return self.out(torch.tanh(self.second(torch.tanh(z)) + x))


class InPlaceResidual(Net):
    """The shortcut is added to a layer's output in place."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h += x
        g = self.second(torch.tanh(h))
        g += h
        return self.out(g)


class InPlaceThroughAView(Net):
    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        z[:, :2] = z[:, :2] * 2.0
        z.view(-1, 2, 2)[:, 0].sin_()
        return self.out(torch.tanh(self.second(z)))


class InPlaceOnTheOutput(Net):
    """The last layer's output, changed in place, is what the network returns."""

    def forward(self, x: Tensor) -> Tensor:
        f = super().forward(x)
        return f.mul_(2.0).sigmoid_()


class ReshapedBatch(Net):
    """Tokens on the first axis: the layer sees rows × tokens."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.reshape(-1, 4)))
        h = h.reshape(len(x), -1, 4).mean(1)
        return self.out(torch.tanh(self.second(h)))


class TokensFirst(Net):
    """As many tokens as rows that are checked, and the tokens on the first axis: the length alone would fool one."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.transpose(0, 1))).transpose(0, 1).mean(1)
        return self.out(torch.tanh(self.second(h)))


class ShuffledRows(Net):
    """A layer that sees the rows in another order."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flip(0))).flip(0)
        return self.out(torch.tanh(self.second(h)))


class UnusedOutput(Net):
    """`second` runs and nothing comes of it."""

    def forward(self, x: Tensor) -> Tensor:
        self.second(x)
        return self.out(torch.tanh(self.first(x)))


class NeverRun(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(x)))


class WithoutGradient(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = torch.tanh(self.first(x))
        return self.out(torch.tanh(self.second(h)))


class Detached(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)).detach() + x)))


class KeywordInput(Net):
    """The layer gets its input by name: hooks see no positional argument."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.second(torch.tanh(self.first(input=x)))))


class UnusedPositions(Net):
    """Only the last position matters to the output."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x))))[:, -1])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x)[0][:, -1])


class Attending(nn.Module):
    """MultiheadAttention uses its output projection's weight without running that layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.MultiheadAttention(4, 2, batch_first=True), nn.LayerNorm(4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x + self.body(x, x, x, need_weights=False)[0]).mean(1))


class Encoder(nn.Module):
    """A transformer layer of torch itself, which has a fast path of its own in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, dropout=0.0)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x).mean(1))


class Convolutions(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.first, self.out = nn.Conv1d(4, 3, 3, **options), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(x.transpose(1, 2))).mean(2))


class UnbatchedConvolution(nn.Module):
    """A convolution on what has no row axis: (channels, rows)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Conv1d(4, 4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(x.T)).T)


class KeyProjection(nn.Module):
    """Attention written out. The key's bias shifts all scores alike: its gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return self.out((torch.softmax(scores, dim=2) @ self.value(x)).mean(1))


class ShiftedAway(nn.Module):
    """Norm by channel right behind a convolution with a bias, which has no gradient but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.out = nn.Conv1d(4, 3, 3), nn.GroupNorm(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.first(x.transpose(1, 2)))).mean(2))


class TiedEmbedding(nn.Module):
    """A table that is also the output layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x[:, :, 0] * 10).abs().long() % 5
        return self.head(self.norm(self.embed(tokens)).mean(1))


class Scalars(Net):
    """Parameters of the network itself beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale + self.shift


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)
        self.out.bias.requires_grad_(False)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Net(), Net()])
        self.head = nn.Sequential(nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([block(x) for block in self.blocks], dim=1))


@dataclass(frozen=True)
class Recognition:
    """A network, and the layers whose formula is used."""

    build: object
    formulas: tuple[str, ...]
    shape: tuple[int, ...] = (4,)
    demoted: tuple[str, ...] = ()  # recognised, and found out by the comparison with autograd
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.build.__name__

    def make(self) -> tuple[nn.Module, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return self.build().double().eval(), random_matrix(ROWS, *self.shape)


ALL = ("first", "second", "out")
RECOGNITIONS = [
    Recognition(Net, ALL),
    Recognition(TiedWeight, ("out",)),
    Recognition(SharedModule, ("out",)),
    Recognition(CalledTwice, ("second", "out")),
    Recognition(UsedFunctionally, ("second", "out"), demoted=("first",)),
    Recognition(BiasUsedElsewhere, ("second", "out"), demoted=("first",)),
    Recognition(WeightPenalty, ("first", "out"), demoted=("second",)),
    Recognition(OnlyFunctional, ("second", "out")),
    Recognition(Parametrized, ("out",)),
    Recognition(ParametrizedBias, ("second", "out")),
    Recognition(OldWeightNorm, ("second", "out")),
    Recognition(HookedOutput, ("second", "out")),
    Recognition(HookedInput, ("second", "out")),
    Recognition(HookedGradient, ("first", "out")),
    Recognition(SubclassWithItsOwnForward, ("second", "out")),
    Recognition(SubclassWithoutOwnForward, ALL),
    Recognition(ExtraParameter, ("second", "out")),
    Recognition(InPlaceActivation, ALL),
    Recognition(InPlaceResidual, ALL),
    Recognition(InPlaceOnTheLayerInput, ALL),
    Recognition(InPlaceOnTheModelInput, ALL),
    Recognition(InPlaceThroughAView, ALL),
    Recognition(InPlaceOnTheOutput, ALL),
    Recognition(ReshapedBatch, ("second", "out"), (3, 4)),
    Recognition(ReshapedBatch, ALL, (1, 4), name="ReshapedBatch-one-token"),
    Recognition(TokensFirst, ("second", "out"), (CHECKED_ROWS, 4)),
    Recognition(TokensFirst, ("second", "out"), (3, 4), name="TokensFirst-three"),
    Recognition(ShuffledRows, ("second", "out"), demoted=("first",)),
    Recognition(UnusedOutput, ALL),
    Recognition(NeverRun, ("first", "out")),
    Recognition(WithoutGradient, ("second", "out")),
    Recognition(KeywordInput, ALL),
    Recognition(KeyProjection, ("query", "key", "value", "out"), (3, 4)),
    Recognition(ShiftedAway, ("first", "norm", "out"), (6, 4)),
    Recognition(UnusedPositions, ALL, (3, 4)),
    Recognition(Recurrent, ("out",), (3, 4)),
    Recognition(Attending, ("norm", "out"), (3, 4)),
    Recognition(Convolutions, ("first", "out"), (6, 4)),
    Recognition(
        lambda: Convolutions(padding=1, padding_mode="circular"), ("out",), (6, 4), name="Convolutions-circular"
    ),
    Recognition(lambda: Convolutions(padding="same"), ("out",), (6, 4), name="Convolutions-same"),
    Recognition(TiedEmbedding, ("norm",), (3, 4)),
    Recognition(Scalars, ALL),
    Recognition(Frozen, ("second", "out")),
    Recognition(Nested, (*(f"blocks.{i}.{name}" for i in (0, 1) for name in ALL), "head.0")),
]


@pytest.mark.parametrize("case", RECOGNITIONS, ids=str)
def test_recognition(case):
    model, x = case.make()
    capture = prepared(model, x)
    assert {layer.name for layer in capture.layers} == set(case.formulas)
    covered = {name for layer in capture.layers for name in layer.parameters}
    assert {q.name for q in capture.rest} == {q.name for q in capture.layout.parameters} - covered
    found_out = [note for note in capture.notes if "formula" in note]
    assert len(found_out) == len(case.demoted)
    assert all(f"'{name}'" in note for name, note in zip(case.demoted, found_out, strict=True))
    assert_right(capture, x, case.make()[0])


@pytest.mark.parametrize("case", RECOGNITIONS, ids=str)
def test_recognised_layers_leave_no_hook_behind(case):
    model, x = case.make()
    before = [len(module._forward_hooks) for module in model.modules()]
    prepared(model, x)(x)
    assert [len(module._forward_hooks) for module in model.modules()] == before
    assert all(tensor.grad is None for tensor in model.parameters())


@pytest.mark.parametrize("build", [PatchedForward, Detached, Encoder, UnbatchedConvolution])
def test_whatever_is_recognised_the_jacobian_is_right(build):
    shape = (3, 4) if build is Encoder else (4,)
    model, x = Recognition(build, (), shape).make()
    assert_right(prepared(model, x), x)


def test_hooks_are_removed_when_the_network_fails():
    model, x = Recognition(Net, ALL).make()
    layers = recognise(model, Layout.of(model), x).layers
    with pytest.raises(RuntimeError):
        layer_blocks(model, layers, 2, x[:, :3])
    assert all(not module._forward_hooks for module in model.modules())


def test_the_note_names_the_layer_and_its_parameters():
    model, x = Recognition(UsedFunctionally, ()).make()
    (note,) = prepared(model, x).notes
    assert "layer 'first'" in note
    assert "first.weight" in note
    assert "first.bias" not in note
    assert "general path" in note


class Experts(nn.Module):
    """Each row goes to one of two layers, by its own sign: how many rows a layer sees depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape)
        mask = x[:, 0] > 0
        for chosen, expert in ((mask, self.left), (~mask, self.right)):
            if bool(chosen.any()):
                h[chosen] = torch.tanh(expert(x[chosen]))
        return self.out(h)


@pytest.mark.parametrize("signs", ["++--+-+", "--+-++-", "+-+-+-+", "+++++++"])
def test_rows_that_take_different_ways_through_the_network(signs):
    """The rows that are checked may all take the same way; later ones do not."""
    model, x = Recognition(Experts, ()).make()
    x[:, 0] = x[:, 0].abs() * torch.tensor([1.0 if sign == "+" else -1.0 for sign in signs])
    assert_right(prepared(model, x), x)


class RunsTwiceForSome(Net):
    """A second round for a batch with a large number in it."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        large = x[:, 0] > 0
        if bool(large.any()):
            h = torch.where(large.unsqueeze(1), torch.tanh(self.first(h)), h)
        return self.out(torch.tanh(self.second(h)))


def test_a_layer_that_runs_twice_for_later_rows_only():
    model, x = Recognition(RunsTwiceForSome, ()).make()
    x[:, 0] = torch.tensor([-1.0, -2.0, 1.0, -1.0, 2.0, 3.0, -0.5])
    assert_right(prepared(model, x), x)


class OneColumn(Net):
    """Parameters without a formula and a layer whose output is not used: nothing that has a formula matters to f."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 2))
        del self.second, self.out

    def forward(self, x: Tensor) -> Tensor:
        self.first(x)
        return torch.tanh(x @ self.w)


def test_layers_that_matter_to_no_output():
    model, x = Recognition(OneColumn, ()).make()
    assert_right(prepared(model, x), x)


class DeadAtFirst(Net):
    """A second use of a weight that the rows which are checked do not show."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.relu(x[:, :1]) * F.linear(x, self.first.weight)[:, :2]


def test_a_second_use_that_shows_in_later_rows_only():
    model, x = Recognition(DeadAtFirst, ()).make()
    x[:, 0] = torch.tensor([-1.0, -2.0, 1.0, -1.0, 2.0, 3.0, -0.5])
    assert_right(prepared(model, x), x)


@pytest.mark.parametrize("build", [SharedModule, TiedWeight, CalledTwice, UsedFunctionally, Recurrent])
def test_the_network_holds_its_own_parameters_afterwards(build):
    model, x = Recognition(build, (), (3, 4) if build is Recurrent else (4,)).make()
    before = dict(model.named_parameters(remove_duplicate=False))
    prepared(model, x)(x)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert before.keys() == after.keys()
    assert all(after[name] is tensor for name, tensor in before.items())


@pytest.mark.parametrize("build", [KeyProjection, ShiftedAway])
def test_a_gradient_of_nothing_but_rounding_keeps_its_formula_in_float32(build):
    model, x = Recognition(build, (), (6, 4)).make()
    capture = prepared(model.float(), x.float())
    assert capture.notes == ()
    assert capture.rest == ()


@pytest.mark.parametrize("n_rows", [1, 2, 3])
def test_few_rows(n_rows):
    model, x = Recognition(Net, ALL).make()
    x = map_inputs(lambda t: t[:n_rows], x)
    assert_right(prepared(model, x), x)
