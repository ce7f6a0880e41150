"""ResNet-110 with N = 2000 and k = 10,000 under FakeTensorMode on device "meta": every shape and device, no numbers.

What decides by its numbers (safe_cholesky, the residual form, the places of S) cannot run here; those run with
numbers in test_second_device.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from core.problems import columns_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from sublaplace_cli.architectures.cifar_resnet import cifar_resnet
from sublaplace_cli.core.jacobian import conv
from sublaplace_cli.core.jacobian.blocks import Block
from sublaplace_cli.core.jacobian.capture import Capture
from sublaplace_cli.core.jacobian.layer_io import Layer, layer_blocks
from sublaplace_cli.core.jacobian.recognition import recognise
from sublaplace_cli.core.jacobian.rows import HeldJacobian, block_groups, row_tiles
from sublaplace_cli.core.likelihoods.binary import Binary
from sublaplace_cli.core.linalg import solve_lower, solve_lower_transposed
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega import gram
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.omega.row_sums import own_products, weigh_columns
from sublaplace_cli.core.panels import products
from sublaplace_cli.core.posterior.diagonal import DiagonalPosterior
from sublaplace_cli.core.posterior.subnet_primal import SubnetPrimal

N, M, P, K = 2000, 1000, 1_730_129, 10_000
MEMORY = 8 * 2**30
FEW = 16
MIXED = "Expected all tensors to be on the same device"


@dataclass(frozen=True)
class Problem:
    model: nn.Module
    layers: list[Layer]
    precision: Precision
    test: HeldJacobian


@pytest.fixture(autouse=True)
def rows_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single columns of a convolution are sorted by their numbers, which nothing here has."""
    monkeypatch.setattr(conv, "SINGLE_COLUMN_COST", 10**9)
    monkeypatch.setattr(products, "is_constant", lambda prior: False)  # so is whether a prior is one number
    monkeypatch.setattr(gram, "constants_of", lambda prior, spans: [prior[span] for span in spans])


@pytest.fixture(scope="module")
def problem() -> Iterator[Problem]:
    """Inside the mode for all tests of this file: tensors of one mode cannot go with those of another."""
    with torch.device("meta"):
        model = cifar_resnet(depth=110, out=1, shortcut="B").eval()
    with FakeTensorMode() as mode:
        _without_numbers(model, mode)
        layout = Layout.of(model)
        assert layout.size == P
        layers = recognise(model, layout, on_device(2, 3, 32, 32)).layers
        train, test = (_held(model, layers, layout, rows) for rows in (N, M))
        prior = on_device(P, dtype=torch.float64)
        yield Problem(model, layers, Unread(train, Binary().root(train.outputs), prior, MEMORY), test)


class Unread(Precision):
    """Whether all rows share a weight is a question of numbers, and there are none here."""

    common_weight = None


def _without_numbers(model: nn.Module, mode: FakeTensorMode) -> None:
    for module in model.modules():
        for name, tensor in module._parameters.items():
            module._parameters[name] = None if tensor is None else nn.Parameter(mode.from_tensor(tensor))
        for name, tensor in module._buffers.items():
            module._buffers[name] = mode.from_tensor(tensor)


def _held(model: nn.Module, layers: list[Layer], layout: Layout, rows: int) -> HeldJacobian:
    f, blocks = layer_blocks(model, layers, 1, on_device(rows, 3, 32, 32))
    blocks.sort(key=lambda block: block.start)
    return HeldJacobian(layout, f.double(), tuple(blocks))


def on_device(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def dense(jacobian: HeldJacobian) -> HeldJacobian:
    """Written out: a linear layer's own Gram looks at the prior's numbers first."""
    return replace(jacobian, blocks=tuple(block.dense() for block in jacobian.blocks))


def first_rows(jacobian: HeldJacobian, count: int = FEW) -> HeldJacobian:
    """A few tiles: over all rows there would be thousands of operators more, each like these."""
    return replace(jacobian, outputs=jacobian.outputs[:count], blocks=tuple(jacobian.load(0, count)))


def every_eighth(jacobian: HeldJacobian) -> HeldJacobian:
    """Some of its layers, for the same reason."""
    return replace(jacobian, blocks=jacobian.blocks[::-8][::-1])


def holds(tensor: Tensor, *shape: int, dtype: torch.dtype = torch.float64) -> bool:
    assert isinstance(tensor, FakeTensor), "nothing of this size may have numbers"
    return tuple(tensor.shape) == shape and tensor.device.type == "meta" and tensor.dtype == dtype


def test_every_parameter_has_a_formula_and_the_blocks_cover_them_once(problem: Problem) -> None:
    blocks = problem.precision.jacobian.templates
    kinds = Counter(type(block).__name__ for block in blocks)
    assert kinds["ConvBlock"] > 0
    assert kinds["DenseBlock"] > 0
    assert kinds["LinearBlock"] == 1
    ends = [block.span.stop for block in blocks]
    assert [block.span.start for block in blocks] == [0, *ends[:-1]]
    assert ends[-1] == P
    for block in blocks:
        for tensor in block.tensors().values():
            assert holds(tensor, N, *tensor.shape[1:], dtype=torch.float32)


def test_written_out_blocks_have_the_shape_of_their_layer(problem: Problem) -> None:
    for block in problem.precision.jacobian.load(0, 64):
        for form in (block, block.expanded()):
            values = form.dense().values
            assert holds(values, 64, 1, block.width, dtype=values.dtype)


def test_squares(problem: Problem) -> None:
    assert holds(problem.precision.root, N, 1, 1)
    few = replace(problem.precision, jacobian=first_rows(problem.precision.jacobian), root=problem.precision.root[:FEW])
    assert holds(few.data_diagonal(), P)


def test_products_and_the_diagonal_posterior(problem: Problem) -> None:
    precision, test = problem.precision, dense(first_rows(problem.test))
    assert holds(own_products(test, precision.prior, MEMORY), FEW, 1, 1)
    assert holds(DiagonalPosterior(precision.prior, precision.prior, MEMORY).variance(test), FEW, 1)


def test_gram_over_several_tiles_and_cross_gram(problem: Problem) -> None:
    train, test = (every_eighth(dense(q)) for q in (first_rows(problem.precision.jacobian, 300), problem.test))
    little = 2**28
    tiles = [len(row_tiles(train, little, group)) for group in block_groups(train)]
    assert max(tiles) >= 2, "the widest layers take several tiles of rows"
    precision = replace(problem.precision, jacobian=train, root=problem.precision.root[:300], memory=little)
    assert holds(precision.gram(), 300, 300)
    assert holds(precision.cross_gram(test), 300, M)


def test_pulled_and_pushed_rows(problem: Problem) -> None:
    u = on_device(64, 3, dtype=torch.float64)
    for block in problem.precision.jacobian.load(0, 64):
        assert holds(block.pull(u), block.width, 3)
        assert holds(block.push(on_device(block.width, 3, dtype=torch.float64)), 64, 3)


def columns(blocks: list[Block], rows: int) -> Tensor:
    """Jᵀ at k indices spread over all blocks, as `column_chunks` puts them together."""
    share = [K * block.span.stop // P - K * block.span.start // P for block in blocks]
    assert sum(share) == K
    J_S = on_device(K, rows, dtype=torch.float64)
    left = 0
    for block, count in zip(blocks, share, strict=True):
        positions = torch.arange(left, left + count, device="meta")
        J_S[positions] = columns_of(block, on_device(count, dtype=torch.int64), rows)
        left += count
    return J_S


def test_columns_factor_and_variance_of_the_primal_form(problem: Problem) -> None:
    A = weigh_columns(columns(problem.precision.jacobian.load(0, N), N), problem.precision.root)
    assert holds(A, K, N)
    B = torch.addmm(torch.zeros(K, K, dtype=torch.float64, device=A.device), A, A.T)
    L, info = torch.linalg.cholesky_ex(B)
    assert holds(L, K, K)
    assert holds(info, dtype=torch.int32)
    S, prior = on_device(K, dtype=torch.int64), on_device(K, dtype=torch.float64)
    posterior = SubnetPrimal(S, prior, L, 0.0, lambda: 0.0, MEMORY)
    assert holds(posterior.column_covariance(columns(problem.test.load(0, M), M), 1), M, 1, 1)


def test_factor_and_solves_of_the_dual_form(problem: Problem) -> None:
    A = columns(problem.precision.jacobian.load(0, N), N)
    L = torch.linalg.cholesky_ex(A.T @ A).L
    cross = A.T @ columns(problem.test.load(0, M), M)
    assert holds(solve_lower_transposed(L, solve_lower(L, cross)), N, M)


def test_the_general_path_over_what_has_no_formula(problem: Problem) -> None:
    layout = problem.precision.layout
    rest = tuple(q for q in layout.parameters if q.name.startswith(("conv1", "linear")))
    capture = Capture(problem.model, layout, 1, (), rest)
    f, J = capture._by_general_path(on_device(8, 3, 32, 32))
    assert holds(f, 8, 1, dtype=torch.float32)
    for q in rest:
        assert holds(J[q.name], 8, 1, *q.shape, dtype=torch.float32)


def test_a_mix_of_devices_is_refused(problem: Problem) -> None:
    """Otherwise the tests above could not fail."""
    precision = problem.precision
    with pytest.raises(RuntimeError, match=MIXED):
        precision.prior + torch.zeros(P, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=MIXED):
        precision.prior[:3] * torch.zeros(3)
    with pytest.raises(RuntimeError, match=MIXED):
        replace(precision, root=torch.ones(N, 1, 1, dtype=torch.float64)).data_diagonal()  # in its first tile
    with pytest.raises(RuntimeError, match=MIXED):
        own_products(dense(first_rows(problem.test)), torch.ones(P, dtype=torch.float64), MEMORY)
    with pytest.raises(RuntimeError, match=MIXED):
        layer_blocks(problem.model, problem.layers, 1, torch.zeros(2, 3, 32, 32))
    with pytest.raises(RuntimeError, match=MIXED):
        precision.jacobian.load(0, 64)[0].put_columns(torch.zeros(3, dtype=torch.int64), torch.zeros(3, 64))
