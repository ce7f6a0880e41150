"""The built-in architectures and the log-odds wrap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from sublaplace_cli.architectures.binary_logodds import add_binary_logodds
from sublaplace_cli.architectures.cifar_resnet import cifar_resnet
from sublaplace_cli.architectures.mlp import ACTIVATIONS, mlp
from sublaplace_cli.errors import UserError


def trainable(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def test_mlp_is_a_plain_sequential() -> None:
    net = mlp(**{"in": 3, "hidden": [5, 4], "out": 2, "act": "tanh"})
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
    assert [type(layer) for layer in net] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert net(torch.zeros(7, 3)).shape == (7, 2)


def test_mlp_without_hidden_layers_or_bias() -> None:
    net = mlp(**{"in": 3, "hidden": [], "bias": False})
    assert list(net.state_dict()) == ["0.weight"]
    assert net(torch.zeros(7, 3)).shape == (7, 1)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_every_activation_runs(act: str) -> None:
    assert mlp(**{"in": 2, "hidden": [3], "act": act})(torch.zeros(1, 2)).isfinite().all()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"hidden": [3]}, "needs the argument 'in'"),
        ({"in": 2}, "needs the argument 'hidden'"),
        ({"in": 2, "hidden": 3}, "expected a list of widths"),
        ({"in": 2, "hidden": [3, 0]}, r"hidden\[1\]"),
        ({"in": 2, "hidden": [1] * 1001}, "found '1001 widths', expected at most 1000"),
        ({"in": True, "hidden": [3]}, "found True"),
        ({"in": 10**30, "hidden": [3]}, "whole number"),
        ({"in": 2, "hidden": [3], "act": "rellu"}, "did you mean 'relu'"),
        ({"in": 2, "hidden": [3], "acts": "relu"}, "did you mean 'act'"),
        ({"in": 2, "hidden": [3], "bias": 1}, "true or false"),
    ],
)
def test_mlp_explains_bad_arguments(args: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        mlp(**args)


@pytest.mark.parametrize(
    ("depth", "shortcut", "outputs", "count"),
    [
        (20, "B", 1, 271_889),
        (32, "B", 1, 466_321),
        (56, "B", 1, 855_185),
        (110, "B", 1, 1_730_129),
        (20, "B", 10, 272_474),
        (32, "B", 10, 466_906),
        (56, "B", 10, 855_770),
        (110, "B", 10, 1_730_714),
        (20, "A", 10, 269_722),
        (56, "A", 10, 853_018),
    ],
)
def test_resnet_parameter_counts(depth: int, shortcut: str, outputs: int, count: int) -> None:
    with torch.device("meta"):
        assert trainable(cifar_resnet(depth=depth, shortcut=shortcut, out=outputs)) == count


def test_resnet_keys() -> None:
    with torch.device("meta"):
        names = set(cifar_resnet(depth=20, shortcut="B").state_dict())
        names_a = set(cifar_resnet(depth=20, shortcut="A").state_dict())
    assert {"conv1.weight", "bn1.running_var", "layer1.0.conv1.weight", "layer2.0.shortcut.0.weight"} <= names
    assert {"layer3.2.bn2.bias", "layer2.0.shortcut.1.running_mean", "linear.weight", "linear.bias"} <= names
    assert {name for name in names if "shortcut" not in name} == names_a


@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_resnet_under_vmap(shortcut: str) -> None:
    torch.manual_seed(0)
    net = cifar_resnet(depth=20, out=3, shortcut=shortcut).eval()
    x = torch.randn(4, 3, 16, 16)
    one = vmap(lambda row: functional_call(net, dict(net.named_parameters()), (row[None],))[0])(x)
    torch.testing.assert_close(one, net(x), rtol=1e-4, atol=1e-5)  # float32 convolutions in another order


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "needs the argument 'depth'"),
        ({"depth": 21}, "expected one of 20"),
        ({"depth": "20"}, "found '20'"),
    ]
    + [
        ({"depth": 20, "shortcut": "C"}, "expected one of A, B"),
        ({"depth": 20, "width": 2}, "no argument 'width'"),
    ],
)
def test_resnet_explains_bad_arguments(args: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        cifar_resnet(**args)


def test_logodds_are_the_log_of_the_odds_and_keep_the_names() -> None:
    torch.manual_seed(0)
    net = mlp(**{"in": 3, "hidden": [5], "out": 4}).double()
    names = [name for name, _ in net.named_parameters()]
    x = torch.randn(6, 3, dtype=torch.float64)
    p = net(x).softmax(-1)
    add_binary_logodds(net, [1, 3], 4)
    odds = p[:, [1, 3]].sum(-1) / p[:, [0, 2]].sum(-1)
    torch.testing.assert_close(net(x), odds.log()[:, None], rtol=1e-12, atol=1e-12)
    assert [name for name, _ in net.named_parameters()] == names


def test_logodds_under_functional_call_and_vmap() -> None:
    torch.manual_seed(0)
    net = add_binary_logodds(mlp(**{"in": 3, "hidden": [5], "out": 4}).double(), [0])
    x = torch.randn(6, 3, dtype=torch.float64)
    parameters = dict(net.named_parameters())
    J = vmap(jacrev(lambda p, row: functional_call(net, p, (row[None],))[0]), (None, 0))(parameters, x)
    for n in range(6):
        g = torch.autograd.grad(net(x[n : n + 1])[0, 0], list(parameters.values()))
        for name, expected in zip(parameters, g, strict=True):
            torch.testing.assert_close(J[name][n, 0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ([4], "there is no class 4,"),
        ([0, 1, 2, 3], "all 4 outputs"),
        ([-1], "counted from 0"),
        ([], "different"),
    ]
    + [([1, 1], "different class numbers")],
)
def test_logodds_refuse_impossible_classes(classes: list[int], words: str) -> None:
    net = mlp(**{"in": 3, "hidden": [5], "out": 4})
    with pytest.raises(UserError, match=words):
        add_binary_logodds(net, classes, 4)
    if classes and min(classes) >= 0 and len(set(classes)) == len(classes):
        with pytest.raises(UserError, match=words):  # unknown K: said at the first call
            add_binary_logodds(net, classes)(torch.zeros(1, 3))
