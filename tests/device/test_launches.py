"""How many operators a Gram matrix takes, i.e. kernels that a GPU has to launch: counted on tensors without numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sublaplace_cli.architectures.cifar_resnet import cifar_resnet
from sublaplace_cli.core.jacobian.blocks import DenseBlock
from sublaplace_cli.core.jacobian.linear import LinearBlock
from sublaplace_cli.core.jacobian.rows import HeldJacobian
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega import gram
from sublaplace_cli.core.panels import sizes

MEMORY = 40 * 2**30
WIDTH, DEEP, LAYERS = 768, 3072, 12  # of a transformer of the size of BERT


class Launches(TorchDispatchMode):
    """Counts the operators that compute something: views and allocations launch no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_view = any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)
        self.count += not is_view and not func._schema.name.startswith(("aten::empty", "aten::new_empty"))
        return func(*args, **(kwargs or {}))


def resnet110(rows: int) -> HeldJacobian:
    """The rows of all its parameters, written out, a block per tensor as the layers' formulas give them."""
    with torch.device("meta"):
        layout = Layout.of(cifar_resnet(depth=110, out=1, shortcut="B"))
    parts = [torch.empty(rows, 1, part.size, device="meta") for part in layout.parameters]
    blocks = [DenseBlock(part.offset, values) for part, values in zip(layout.parameters, parts, strict=True)]
    return HeldJacobian(layout, torch.empty(rows, 1, dtype=torch.float64, device="meta"), tuple(blocks))


def transformer(rows: int, positions: int = 128) -> HeldJacobian:
    """The linear layers of a transformer: four for attention and two that follow it, in each of its layers."""
    shapes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, DEEP), (DEEP, WIDTH)]
    layers = [nn.Linear(*shape, device="meta") for _ in range(LAYERS) for shape in shapes]
    blocks, start = [], 0
    for layer in layers:
        inputs = torch.empty(rows, positions, layer.in_features, device="meta")
        deltas = torch.empty(rows, 1, positions, layer.out_features, device="meta")
        blocks.append(LinearBlock(start, inputs, deltas, has_bias=True))
        start += blocks[-1].width
    layout = Layout.from_shapes([("all", (start,))])
    return HeldJacobian(layout, torch.empty(rows, 1, dtype=torch.float64, device="meta"), tuple(blocks))


def launches(jacobian: HeldJacobian, monkeypatch: pytest.MonkeyPatch, cut: sizes.Sizes) -> int:
    monkeypatch.setattr(sizes, "CPU", cut)
    monkeypatch.setattr(gram, "constants_of", lambda _, spans: [1.0] * len(spans))  # it asks for numbers
    prior = torch.empty(jacobian.layout.size, dtype=torch.float64, device="meta")
    with Launches() as counted:
        gram.gram_strips(jacobian, jacobian, prior, MEMORY, True, False)
    return counted.count


@pytest.mark.parametrize(
    ("network", "rows", "most"), [(resnet110, 2000, 1_800), (transformer, 400, 7_000), (transformer, 2000, 14_000)]
)
def test_a_gpu_gets_few_launches(
    network: Callable[[int], HeldJacobian], rows: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jacobian = network(rows)
    found, on_a_cpu = (launches(jacobian, monkeypatch, cut) for cut in (sizes.CUDA, sizes.CPU))
    assert found <= most
    assert 10 * found <= on_a_cpu
