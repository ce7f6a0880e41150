"""Features of blocks: structured paths equal the dense map, bits do not depend on the cut, the kernel is unbiased."""

from __future__ import annotations

import math

import pytest
import torch
from cases import CASES
from core.features.dense_maps import assert_rows_close, features_of
from core.features.test_pieces import torch_threads
from core.jacobian.test_blocks import KINDS, START
from core.problems import assert_close, capture_of, case_named, dense, prior_of, random_matrix, solved, subset
from torch import Tensor

from sublaplace_cli.core.features import sketch
from sublaplace_cli.core.features.beside import Beside
from sublaplace_cli.core.features.sketch import Sketch
from sublaplace_cli.core.features.subset import Subset
from sublaplace_cli.core.jacobian.blocks import Block, DenseBlock
from sublaplace_cli.core.jacobian.conv import ConvBlock
from sublaplace_cli.core.jacobian.embedding import EmbeddingBlock
from sublaplace_cli.core.jacobian.linear import LinearBlock
from sublaplace_cli.core.network.footprint import PeakMemory
from sublaplace_cli.core.network.layout import Layout

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
THREADS = 1, 2, 3
PATHS = {"transformed": True, "written out": False, "cheaper": None}


def layout_of(block: Block) -> Layout:
    """The block's own parameters between two others."""
    if isinstance(block, LinearBlock):
        d_in, d_out = block.inputs.shape[2], block.deltas.shape[3]
        own = [("weight", (d_out, d_in)), *([("bias", (d_out,))] if block.has_bias else [])]
    elif isinstance(block, EmbeddingBlock):
        own = [("weight", (block.n_entries, block.deltas.shape[3]))]
    elif isinstance(block, ConvBlock):
        own = [("weight", block.geometry.weight_shape)]
    else:
        own = [("weight", (block.width // 2, 2))]
    return Layout.from_shapes([("before", (START,)), *own, ("after", (4,))])


def prior_by_tensor(layout: Layout) -> Tensor:
    return torch.cat([torch.full((one.size,), 0.3 + i, dtype=torch.float64) for i, one in enumerate(layout.parameters)])


def maps_for(layout: Layout) -> list:
    some = subset(layout.size, layout.size // 2, seed=4)
    return [Sketch(7, 3), Sketch(64, 1), Sketch(1), Subset(some), Beside(Subset(some), Sketch(9, 2))]


def whole(block: Block, layout: Layout) -> Tensor:
    """J (m, C, p) of one block."""
    J = torch.zeros(block.n_rows, block.n_outputs, layout.size, dtype=torch.float64)
    J[:, :, block.span] = block.dense().values
    return J


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("prior", ["by tensor", "unequal"])
@each_kind
def test_the_features_of_a_block_are_those_of_the_dense_map(kind, prior, path, monkeypatch):
    if PATHS[path] is not None:
        monkeypatch.setattr(sketch, "transform_is_cheaper", lambda *_: PATHS[path])
    block = kind(5, 11)
    layout = layout_of(block)
    v = prior_by_tensor(layout) if prior == "by tensor" else prior_of("unequal", layout.size)
    for feature_map in maps_for(layout):
        found = feature_map.on(layout, v).rows([block])
        assert_rows_close(found, features_of(feature_map, layout, v, whole(block, layout)))


@each_kind
def test_the_map_does_not_depend_on_the_form_of_the_block(kind):
    block = kind(5, 11)
    layout = layout_of(block)
    v = prior_by_tensor(layout)
    for feature_map in maps_for(layout):
        features = feature_map.on(layout, v)
        for other in (block.dense(), block.expanded()):
            assert_rows_close(features.rows([other]), features.rows([block]))


@pytest.mark.parametrize("k", [6, 37, 1000])
@each_kind
def test_a_row_has_the_same_bits_however_the_rows_are_cut(kind, k, monkeypatch):
    if k != 1000:
        monkeypatch.setattr(sketch, "transform_is_cheaper", lambda *_: True)
    block = kind(67, 5)
    layout = layout_of(block)
    v = prior_by_tensor(layout)
    for feature_map in (Sketch(k, 3), Beside(Subset(subset(layout.size, 3)), Sketch(k, 2))):
        features = feature_map.on(layout, v)
        together = features.rows([block])
        for step in (1, 3, 16, 64):
            parts = [features.rows([block.rows(a, min(a + step, 67))]) for a in range(0, 67, step)]
            assert torch.equal(torch.cat(parts), together)


@pytest.mark.parametrize(("m", "C", "T", "d_in", "d_out", "k"), [(300, 1, 1, 40, 50, 200), (41, 3, 5, 60, 70, 126)])
def test_transformed_rows_have_the_same_bits_for_any_threads(m, C, T, d_in, d_out, k):
    block = LinearBlock(0, random_matrix(m, T, d_in).float(), random_matrix(m, C, T, d_out, seed=1).float(), True)
    layout = Layout.from_shapes([("weight", (d_out, d_in)), ("bias", (d_out,))])
    features = Sketch(k).on(layout, prior_by_tensor(layout))
    assert features.parts[0].transforms(block)
    found = []
    for threads in THREADS:
        with torch_threads(threads):
            found.append(features.rows([block]))
            parts = [features.rows([block.rows(a, min(a + 7, m))]) for a in range(0, m, 7)]
        assert torch.equal(torch.cat(parts), found[0])
    assert all(torch.equal(other, found[0]) for other in found)


@pytest.mark.parametrize("path", PATHS)
@each_kind
def test_a_block_has_the_same_bits_for_any_threads(kind, path, monkeypatch):
    if PATHS[path] is not None:
        monkeypatch.setattr(sketch, "transform_is_cheaper", lambda *_: PATHS[path])
    block = kind(67, 5)
    layout = layout_of(block)
    for feature_map in (Sketch(37, 3), Beside(Subset(subset(layout.size, 3)), Sketch(37, 2))):
        found = []
        for threads in THREADS:
            features = feature_map.on(layout, prior_by_tensor(layout))  # what is made once is made again
            with torch_threads(threads):
                found.append(features.rows([block]))
        assert all(torch.equal(other, found[0]) for other in found)


@pytest.mark.parametrize("name", ["mlp", "conv", "token-block", "attention"])
def test_a_network_has_the_same_bits_for_any_threads(name):
    capture, train = capture_of(case_named(name), torch.float32)
    blocks, layout = capture(train).blocks, capture.layout
    found = []
    for threads in THREADS:
        features = Sketch(50, 4).on(layout, prior_by_tensor(layout))
        with torch_threads(threads):
            found.append(features.rows(blocks))
    assert all(torch.equal(other, found[0]) for other in found)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_features_of_a_network_are_those_of_its_dense_jacobian(name):
    capture, train = capture_of(case_named(name))
    blocks, layout = capture(train).blocks, capture.layout
    J = torch.cat([block.dense().values for block in blocks], dim=2)
    for v in (prior_by_tensor(layout), prior_of("unequal", layout.size)):
        for feature_map in maps_for(layout):
            found = feature_map.on(layout, v).rows(blocks)
            assert_rows_close(found, features_of(feature_map, layout, v, J))


@pytest.mark.parametrize("name", ["mlp", "conv", "token-block"])
@pytest.mark.parametrize("half", [False, True])
def test_the_kernel_is_unbiased(name, half):
    """The mean over seeds of ΦΦᵀ is the Gram matrix of the rows within the standard error."""
    problem, seeds, k = solved(name), 400, 40
    layout, blocks = problem.precision.layout, problem.test.load(0, 4)
    G = torch.cat([block.dense().values for block in blocks], dim=2).flatten(0, 1) * problem.v.rsqrt()
    S = Subset(subset(layout.size, 10))
    kernels = []
    for seed in range(seeds):
        feature_map = Beside(S, Sketch(k, seed)) if half else Sketch(k, seed)
        phi = feature_map.on(layout, problem.v).rows(blocks).flatten(0, 1)
        kernels.append(phi @ phi.T)
    stacked = torch.stack(kernels)
    error = (stacked.mean(0) - G @ G.T) / (stacked.std(0) / math.sqrt(seeds)).clamp(min=1e-12)
    assert float(error.abs().max()) < 5  # standard errors, the largest of a few hundred entries
    size = G.square().sum(1)
    spread = stacked.std(0).diagonal() / size
    assert float(spread.max()) < 3 * math.sqrt(2 / k)  # and it is as narrow as k sums allow


def test_a_wide_layer_over_positions_takes_less_memory_than_its_row():
    T, d_in, d_out, k = 128, 768, 3072, 1000
    block = LinearBlock(0, random_matrix(1, T, d_in).float(), random_matrix(1, 1, T, d_out, seed=1).float(), False)
    features = Sketch(k).on(Layout.from_shapes([("weight", (d_out, d_in))]), torch.ones(d_in * d_out).double())
    features.rows([block])
    with PeakMemory() as memory:
        features.rows([block])
    assert 0 < memory.peak < 8 * d_in * d_out


def test_all_parameters_as_a_subset_keep_the_metric():
    problem = solved("mlp", "unequal")
    found = Subset(torch.arange(problem.p)).on(problem.precision.layout, problem.v).rows(problem.test.blocks)
    assert_close(found, dense(problem.test) * problem.v.rsqrt(), 1e-13)


def test_blocks_hold_whole_parameters():
    layout = Layout.from_shapes([("w", (4,))])
    features = Sketch(3).on(layout, torch.ones(4, dtype=torch.float64))
    with pytest.raises(AssertionError, match="whole"):
        features.rows([DenseBlock(0, random_matrix(2, 1, 3))])
