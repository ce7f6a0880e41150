"""Layers with a formula: their part of the Jacobian equals plain autograd, a row and an output at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import reference
import torch
from core.problems import PLENTY, random_matrix
from torch import Tensor, nn

from sublaplace_cli.core.jacobian import formulas as layers
from sublaplace_cli.core.jacobian.capture import Capture, prepare_capture
from sublaplace_cli.core.jacobian.conv import ConvBlock
from sublaplace_cli.core.network.layout import Layout

ROWS = 6


class Around(nn.Module):
    """tanh and a fixed mixture around one layer, so that every place of its output has a gradient of its own."""

    def __init__(self, layer: nn.Module, example: Tensor, n_outputs: int) -> None:
        super().__init__()
        self.layer = layer
        with torch.no_grad():
            size = layer(example).flatten(1).shape[1]
        self.register_buffer("mixture", random_matrix(size, n_outputs, seed=8) / size**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)).flatten(1) @ self.mixture


@dataclass(frozen=True)
class LayerCase:
    name: str
    build: object
    shape: tuple[int, ...]
    tokens: int = 0  # entries of the table where the inputs are tokens

    def make(self, n_outputs: int) -> tuple[nn.Module, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            layer = lived_in(self.build()).double().eval()
            if self.tokens:
                x = torch.randint(0, self.tokens, (ROWS, *self.shape))
                x[0] = 2  # the same token at every position
            else:
                x = torch.randn(ROWS, *self.shape, dtype=torch.float64)
            return Around(layer, x, n_outputs).eval(), x


def lived_in(module: nn.Module) -> nn.Module:
    """Statistics and affine parameters that are not the trivial ones."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            nn.init.normal_(part.running_mean, 0.3, 0.5)
            nn.init.uniform_(part.running_var, 0.3, 2.0)
        if isinstance(part, (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)):
            for tensor in part.parameters():
                nn.init.uniform_(tensor, 0.5, 1.5)
    return module


def frozen(build, name: str):
    def made() -> nn.Module:
        layer = build()
        getattr(layer, name).requires_grad_(False)
        return layer

    return made


CASES = [
    LayerCase("linear-2d", lambda: nn.Linear(4, 3), (4,)),
    LayerCase("linear-3d", lambda: nn.Linear(4, 3), (5, 4)),
    LayerCase("linear-3d-wide", lambda: nn.Linear(13, 12), (2, 13)),
    LayerCase("linear-3d-one-position", lambda: nn.Linear(4, 3), (1, 4)),
    LayerCase("linear-4d", lambda: nn.Linear(4, 3), (2, 3, 4)),
    LayerCase("linear-no-bias", lambda: nn.Linear(4, 3, bias=False), (4,)),
    LayerCase("linear-3d-no-bias", lambda: nn.Linear(4, 3, bias=False), (5, 4)),
    LayerCase("linear-weight-frozen", frozen(lambda: nn.Linear(4, 3), "weight"), (4,)),
    LayerCase("linear-3d-weight-frozen", frozen(lambda: nn.Linear(4, 3), "weight"), (5, 4)),
    LayerCase("linear-bias-frozen", frozen(lambda: nn.Linear(4, 3), "bias"), (4,)),
    LayerCase("linear-3d-bias-frozen", frozen(lambda: nn.Linear(4, 3), "bias"), (5, 4)),
    LayerCase("linear-one-by-one", lambda: nn.Linear(1, 1), (1,)),
    LayerCase("conv1d", lambda: nn.Conv1d(2, 3, 3), (2, 8)),
    LayerCase("conv1d-all", lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), (4, 11)),
    LayerCase("conv1d-depthwise", lambda: nn.Conv1d(3, 6, 2, groups=3, bias=False), (3, 7)),
    LayerCase("conv1d-one-place", lambda: nn.Conv1d(5, 6, 4), (5, 4)),
    LayerCase("conv2d", lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 5, 5)),
    LayerCase("conv2d-no-bias", lambda: nn.Conv2d(2, 3, 3, bias=False), (2, 5, 5)),
    LayerCase("conv2d-pointwise", lambda: nn.Conv2d(4, 5, 1), (4, 3, 3)),
    LayerCase("conv2d-groups", lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 5, 4)),
    LayerCase("conv2d-depthwise", lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1, bias=False), (4, 4, 4)),
    LayerCase("conv2d-stride", lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 6, 7)),  # a row is left over
    LayerCase("conv2d-dilation", lambda: nn.Conv2d(2, 3, 2, dilation=3), (2, 7, 6)),
    LayerCase(
        "conv2d-non-square",
        lambda: nn.Conv2d(2, 4, (3, 2), stride=(1, 3), padding=(2, 0), dilation=(2, 1), groups=2),
        (2, 6, 9),
    ),
    LayerCase("conv2d-one-place", lambda: nn.Conv2d(7, 8, 3), (7, 3, 3)),  # kept as (inputs, gradients)
    LayerCase("conv2d-wide", lambda: nn.Conv2d(12, 12, 3, padding=1), (12, 4, 4)),
    LayerCase("conv2d-weight-frozen", frozen(lambda: nn.Conv2d(2, 3, 3), "weight"), (2, 5, 5)),
    LayerCase("conv2d-bias-frozen", frozen(lambda: nn.Conv2d(2, 3, 3), "bias"), (2, 5, 5)),
    LayerCase("batchnorm1d", lambda: nn.BatchNorm1d(4), (4,)),
    LayerCase("batchnorm1d-3d", lambda: nn.BatchNorm1d(4), (4, 5)),
    LayerCase("batchnorm2d", lambda: nn.BatchNorm2d(3), (3, 4, 2)),
    LayerCase("batchnorm3d", lambda: nn.BatchNorm3d(3), (3, 2, 2, 3)),
    LayerCase("batchnorm2d-eps", lambda: nn.BatchNorm2d(3, eps=0.5), (3, 4, 2)),
    LayerCase("batchnorm2d-weight-frozen", frozen(lambda: nn.BatchNorm2d(3), "weight"), (3, 4, 2)),
    LayerCase("batchnorm2d-bias-frozen", frozen(lambda: nn.BatchNorm2d(3), "bias"), (3, 4, 2)),
    LayerCase("layernorm", lambda: nn.LayerNorm(5), (5,)),
    LayerCase("layernorm-positions", lambda: nn.LayerNorm(5), (3, 5)),
    LayerCase("layernorm-two-positions-axes", lambda: nn.LayerNorm(5), (2, 3, 5)),
    LayerCase("layernorm-several-axes", lambda: nn.LayerNorm((3, 5)), (3, 5)),
    LayerCase("layernorm-several-axes-positions", lambda: nn.LayerNorm((3, 5), eps=0.1), (4, 3, 5)),
    LayerCase("layernorm-no-bias", lambda: nn.LayerNorm(5, bias=False), (3, 5)),
    LayerCase("layernorm-weight-frozen", frozen(lambda: nn.LayerNorm(5), "weight"), (3, 5)),
    LayerCase("groupnorm", lambda: nn.GroupNorm(2, 6), (6, 4)),
    LayerCase("groupnorm-2d", lambda: nn.GroupNorm(3, 6, eps=0.1), (6, 2, 3)),
    LayerCase("groupnorm-vector", lambda: nn.GroupNorm(2, 6), (6,)),
    LayerCase("groupnorm-bias-frozen", frozen(lambda: nn.GroupNorm(2, 6), "bias"), (6, 4)),
    LayerCase("embedding", lambda: nn.Embedding(7, 3), (4,), tokens=7),
    LayerCase("embedding-padding", lambda: nn.Embedding(7, 3, padding_idx=2), (4,), tokens=7),
    LayerCase("embedding-one-token", lambda: nn.Embedding(7, 3), (), tokens=7),
    LayerCase("embedding-grid", lambda: nn.Embedding(7, 3, padding_idx=0), (2, 3), tokens=7),
]


def prepared(model: nn.Module, x: Tensor) -> Capture:
    return prepare_capture(model, Layout.of(model), x, PLENTY)


def assert_right(capture: Capture, x: Tensor, model: nn.Module | None = None) -> None:
    """Outputs and Jacobian equal the reference (of an equal model) to 1e-10 of the largest number."""
    f, J = reference.jacobian(model or capture.model, x.clone(), len(x))
    captured = capture(x)
    blocks = captured.blocks
    assert [block.start for block in blocks] == [0, *(block.span.stop for block in blocks)][:-1]
    assert blocks[-1].span.stop == capture.layout.size
    found = torch.cat([block.dense().values for block in blocks], dim=2)
    assert found.shape == J.shape
    assert float((captured.f - f).abs().max()) <= 1e-12 * (1.0 + float(f.abs().max()))
    assert float((found - J).abs().max()) <= 1e-10 * float(J.abs().max())


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_formula(case, n_outputs):
    model, x = case.make(n_outputs)
    capture = prepared(model, x)
    assert [layer.name for layer in capture.layers] == ["layer"]
    assert capture.rest == ()
    assert capture.notes == ()
    assert_right(capture, x)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_formula_in_float32(case):
    """Within single precision of the float64 formula."""
    model, x = case.make(2)
    wide = torch.cat([block.dense().values for block in prepared(model, x)(x).blocks], dim=2)
    narrow_x = x.float() if x.is_floating_point() else x
    capture = prepared(model.float(), narrow_x)
    assert not capture.notes
    narrow = torch.cat([block.dense().values for block in capture(narrow_x).blocks], dim=2)
    # eps is 6e-8; sums of up to ~100 products, and a standardisation.
    assert float((narrow - wide).abs().max()) <= 2e-5 * float(wide.abs().max())


def test_there_is_a_case_for_every_formula():
    assert {next(kind for kind in layers.FORMULAS if isinstance(case.build(), kind)) for case in CASES} == set(
        layers.FORMULAS
    )


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (lambda: nn.BatchNorm1d(4, affine=False), (4,)),
        (lambda: nn.BatchNorm2d(3, affine=False), (3, 2, 2)),
        (lambda: nn.LayerNorm(4, elementwise_affine=False), (4,)),
        (lambda: nn.GroupNorm(2, 4, affine=False), (4, 2)),
    ],
    ids=["batchnorm1d", "batchnorm2d", "layernorm", "groupnorm"],
)
def test_a_norm_without_parameters_has_no_block(norm, shape):
    size = torch.Size(shape).numel()
    layer = lived_in(nn.Sequential(norm(), nn.Flatten(), nn.Linear(size, 2))).double().eval()
    x = random_matrix(ROWS, *shape)
    capture = prepared(layer, x)
    assert [layer.name for layer in capture.layers] == ["2"]
    assert_right(capture, x)


def test_the_padding_entry_has_no_gradient():
    model, x = CASES[[case.name for case in CASES].index("embedding-padding")].make(2)
    assert bool((x == 2).any())
    block = prepared(model, x)(x).blocks[0]
    assert not block.dense().values.reshape(ROWS, 2, 7, 3)[:, :, 2].any()
    assert block.dense().values.any()


def test_a_network_that_is_one_layer_itself():
    model, x = nn.Linear(4, 3).double(), random_matrix(ROWS, 4)
    capture = prepared(model, x)
    assert [layer.parameters for layer in capture.layers] == [("weight", "bias")]
    assert_right(capture, x)


def test_a_bias_that_does_not_lie_right_behind_the_weight():
    """The flat order is that of registration, which may put the bias first."""
    layer = nn.Linear(4, 3)
    bias = layer.bias
    del layer.bias
    weight = layer.weight
    del layer.weight
    layer.bias, layer.weight = bias, weight
    x = random_matrix(ROWS, 2, 4)
    model = Around(layer.double(), x, 2)
    assert [name for name, _ in model.named_parameters()] == ["layer.bias", "layer.weight"]
    assert_right(prepared(model, x), x)


def test_a_convolution_is_kept_as_the_smaller_of_its_two_forms():
    """One place: 63 + 8 numbers a row against 504. Many: more inputs than weights."""
    by_name = {case.name: case for case in CASES}
    model, x = by_name["conv2d-one-place"].make(1)
    assert isinstance(prepared(model, x)(x).blocks[0], ConvBlock)
    model, x = by_name["conv2d-no-bias"].make(1)
    assert not isinstance(prepared(model, x)(x).blocks[0], ConvBlock)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
        nn.Conv1d(2, 3, 3, padding="same"),
        nn.Conv2d(2, 3, 3, padding="same"),
        nn.Conv3d(2, 3, 3),
        nn.ConvTranspose2d(2, 3, 3),
        nn.BatchNorm2d(3).train(),
        nn.BatchNorm2d(3, track_running_stats=False).eval(),
        nn.Embedding(5, 2, max_norm=1.0),
        nn.Embedding(5, 2, scale_grad_by_freq=True),
        nn.Bilinear(2, 3, 4),
        nn.PReLU(),
        nn.Sequential(nn.Linear(2, 2)),
    ],
    ids=lambda layer: str(layer).split("\n")[0],
)
def test_a_layer_without_a_formula(layer):
    assert layers.formula_of(layer) is None
