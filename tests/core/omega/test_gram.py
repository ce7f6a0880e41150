"""Gram matrices of the training rows, alone and together with the products of the rows to predict."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases import CASES
from core.problems import PRIORS, assert_close, cut, random_matrix, solved

from sublaplace_cli.core.jacobian.linear import LinearBlock
from sublaplace_cli.core.jacobian.rows import TILE_SHARE, HeldJacobian, StoredJacobian
from sublaplace_cli.core.jacobian.sharded import some_rows
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.omega.row_sums import SquaresBeside, squared_gradients
from sublaplace_cli.core.panels import sizes
from sublaplace_cli.core.posterior.full import fit_full

NAMES = [case.name for case in CASES]
each_problem = pytest.mark.parametrize(("name", "prior"), [(name, prior) for name in NAMES for prior in PRIORS])


@each_problem
def test_k_and_the_products_beside_it_have_the_bits_of_each_alone(name, prior):
    precision, test = solved(name, prior).precision, solved(name, prior).test
    K, cross = precision.gram_and_cross(test)
    assert torch.equal(K, precision.gram())
    assert torch.equal(cross, precision.cross_gram(test))


@each_problem
def test_all_training_rows_as_other_rows(name, prior):
    """The same blocks by another way, as where all of a few rows are a sample: the lower half is computed too."""
    precision = solved(name, prior).precision
    everything = some_rows(precision.jacobian, range(len(precision.root)))
    expected = precision.cross_gram(precision.jacobian)
    assert_close(precision.cross_gram(everything), expected, 1e-12)
    assert_close(precision.gram_and_cross(everything)[1], expected, 1e-12)


@pytest.mark.parametrize("memory", [2**34, 2**21])
@each_problem
def test_squares_found_beside_k_have_the_bits_of_those_alone(name, prior, memory, monkeypatch):
    """In tiles of a few rows, as the sums by tiles have them, and where K takes several tiles."""
    monkeypatch.setattr(sizes, "CPU", cut(block_tile_bytes=4096))
    precision, test = replace(solved(name, prior).precision, memory=memory), solved(name, prior).test
    for root in (precision.root, None):
        beside = SquaresBeside(root)
        precision.gram_and_cross(test, beside)
        expected = squared_gradients(precision.jacobian, root, memory)
        assert torch.equal(beside.squared_gradients(precision.jacobian, memory), expected)
        assert not beside.found  # given up: they take no memory any longer
        assert torch.equal(beside.squared_gradients(precision.jacobian, memory), expected)


def test_a_layer_is_written_out_once_for_k_the_products_beside_it_and_its_squares(monkeypatch):
    counted, whole = [], LinearBlock.written_out

    def count(self, *arguments):
        counted.append(self.n_rows)
        return whole(self, *arguments)

    monkeypatch.setattr(LinearBlock, "written_out", count)
    precision, beside = precision_of(6, 8), SquaresBeside(None)
    precision.gram_and_cross(rows_of(4, 8, 3), beside)
    beside.squared_gradients(precision.jacobian, 2**30)
    assert counted == [6, 4]


def test_rows_that_are_held_are_written_out_once_however_many_tiles_they_would_take(monkeypatch):
    """Tiles of rows that are read meet each other, and each time they are written out again."""
    counted, whole = [], LinearBlock.written_out

    def count(self, *arguments):
        counted.append(self.n_rows)
        return whole(self, *arguments)

    monkeypatch.setattr(LinearBlock, "written_out", count)
    precision = precision_of(60, 64)
    block = precision.jacobian.blocks[0]
    memory = TILE_SHARE * block.row_bytes * 25
    found = {}
    for name, rows in {"held": precision.jacobian, "read": read_block_by_block(precision.jacobian)}.items():
        counted.clear()
        found[name] = replace(precision, jacobian=rows, memory=memory).gram(), sum(counted)
    assert found["held"][1] == 60
    assert found["read"][1] > 2 * 60
    assert_close(found["held"][0], found["read"][0], 1e-12)


def read_block_by_block(held):
    def read(i, start, stop):
        return held.blocks[i].rows(start, stop)

    return StoredJacobian(held.layout, held.outputs, tuple(block.rows(0, 1) for block in held.blocks), read)


def rows_of(m, positions, seed):
    inputs, deltas = random_matrix(m, positions, 3, seed=seed), random_matrix(m, 1, positions, 2, seed=seed + 1)
    layout = Layout.from_shapes([("weight", (2, 3)), ("bias", (2,))])
    block = LinearBlock(0, inputs, deltas, True)
    return HeldJacobian(layout, torch.zeros(m, 1, dtype=torch.float64), (block,))


def precision_of(m, positions):
    root = torch.linspace(0.5, 1.0, m, dtype=torch.float64).reshape(m, 1, 1)
    return Precision(rows_of(m, positions, 1), root, torch.ones(8, dtype=torch.float64), 2**30)


def test_a_layer_is_written_out_once_for_k_and_the_products_beside_it(monkeypatch):
    counted, whole = [], LinearBlock.written_out

    def count(self, *arguments):
        counted.append(self.n_rows)
        return whole(self, *arguments)

    monkeypatch.setattr(LinearBlock, "written_out", count)

    precision, others = precision_of(6, 8), rows_of(4, 8, 3)
    full = fit_full(precision, others)
    assert counted == [6, 4]
    found = full.covariance(others)
    assert counted == [6, 4]
    assert full.known == []  # given up: it takes no memory any longer
    assert torch.equal(found, fit_full(precision).covariance(others))
