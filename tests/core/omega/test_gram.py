"""Gram matrices of the training rows, alone and together with the products of the rows to predict."""

from __future__ import annotations

import pytest
import torch
from cases import CASES
from core.problems import PRIORS, random_matrix, solved

from sublaplace_cli.core.jacobian.linear import LinearBlock
from sublaplace_cli.core.jacobian.rows import HeldJacobian
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.posterior.full import fit_full

NAMES = [case.name for case in CASES]
each_problem = pytest.mark.parametrize(("name", "prior"), [(name, prior) for name in NAMES for prior in PRIORS])


@each_problem
def test_k_and_the_products_beside_it_have_the_bits_of_each_alone(name, prior):
    precision, test = solved(name, prior).precision, solved(name, prior).test
    K, cross = precision.gram_and_cross(test)
    assert torch.equal(K, precision.gram())
    assert torch.equal(cross, precision.cross_gram(test))


def test_a_layer_is_written_out_once_for_k_and_the_products_beside_it(monkeypatch):
    counted, whole = [], LinearBlock.written_out

    def count(self, *arguments):
        counted.append(self.n_rows)
        return whole(self, *arguments)

    monkeypatch.setattr(LinearBlock, "written_out", count)

    def rows(m, seed):
        block = LinearBlock(0, random_matrix(m, 8, 3, seed=seed), random_matrix(m, 1, 8, 2, seed=seed + 1), True)
        layout = Layout.from_shapes([("weight", (2, 3)), ("bias", (2,))])
        return HeldJacobian(layout, torch.zeros(m, 1, dtype=torch.float64), (block,))

    root = torch.linspace(0.5, 1.0, 6, dtype=torch.float64).reshape(6, 1, 1)
    precision, others = Precision(rows(6, 1), root, torch.ones(8, dtype=torch.float64), 2**30), rows(4, 3)
    full = fit_full(precision, others)
    assert counted == [6, 4]
    found = full.covariance(others)
    assert counted == [6, 4]
    assert full.known == []  # given up: it takes no memory any longer
    assert torch.equal(found, fit_full(precision).covariance(others))
