"""Entropy and mutual information of uncertain classes: against scipy, numerical integration, draws and each other."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from core.likelihoods.test_links import CLASSES, LINKS, doubles, logits
from scipy import stats

from sublaplace_cli.core.gaussian import Gaussian
from sublaplace_cli.core.likelihoods.binary import Binary
from sublaplace_cli.core.likelihoods.links import expected_sigmoid_entropy
from sublaplace_cli.core.likelihoods.multiclass import Multiclass


def one_logit(f: float, std: float) -> Gaussian:
    return Gaussian(doubles(f).unsqueeze(1), doubles(std * std).reshape(1, 1, 1))


@pytest.mark.parametrize("std", [0.0, 1e-4, 0.5, 1.0, 1.0001, 2.9, 31.9, 100.0])
@pytest.mark.parametrize("f", [-30.0, -4.0, 0.0, 0.7, 12.0])
def test_one_logit_to_ten_digits(f, std):
    found = float(expected_sigmoid_entropy(doubles(f), doubles(std)))
    assert found == pytest.approx(reference.expected_binary_entropy(f, std), abs=1e-10)


def test_a_very_wide_logit_is_nearly_always_certain():
    """∫ H(sigmoid(x)) dx = π²/3, times the density at 0."""
    found = float(expected_sigmoid_entropy(doubles(0.0), doubles(1e6)))
    assert found == pytest.approx(math.pi**2 / 3 / (math.sqrt(2 * math.pi) * 1e6), rel=1e-10)


@pytest.mark.parametrize("C", CLASSES)
def test_several_classes_are_those_of_the_reference(C):
    outputs = logits(C, rows=3)
    found = Multiclass().expected_entropy(outputs)
    for row, (f, covariance) in enumerate(zip(outputs.mean, outputs.covariance, strict=True)):
        expected = stats.entropy(reference.softmax_draws(f, covariance), axis=1).mean()
        # Two classes are one sigmoid, which is integrated to more digits than over the fixed points.
        assert float(found[row]) == pytest.approx(expected, abs=2e-3 if C == 2 else 1e-12)


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_a_million_plain_draws_agree(scale):
    outputs, n = logits(5, scale, rows=3), 10**6
    z = torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = Multiclass().mutual_information(outputs)
    for row, root in enumerate(torch.linalg.cholesky(outputs.covariance)):
        p = torch.softmax(outputs.mean[row] + z @ root.T, 1)
        expected = stats.entropy(p.mean(0)) - torch.special.entr(p).sum(1).mean()
        # The fixed points are off by about 1e-3 in total variation, and so are the draws.
        assert float(found[row]) == pytest.approx(float(expected), abs=3e-3)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, 1.0, 30.0])
@pytest.mark.parametrize("C", [1, *CLASSES])
def test_information_is_at_least_0_and_at_most_the_entropy_of_the_integral(C, scale, link):
    likelihood = Binary(link) if C == 1 else Multiclass(link)
    outputs = logits(C, scale)
    columns, plain = (one.row_columns(outputs) for one in (likelihood, likelihood.with_link("integral")))
    assert bool((columns["mutual_information"] >= 0).all())
    assert bool((columns["mutual_information"] <= plain["entropy"] + 1e-14).all())
    assert torch.equal(columns["mutual_information"], plain["mutual_information"]), "whatever the link"
    if scale == 0:
        assert bool((columns["mutual_information"] < 1e-14).all())


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("C", [1, *CLASSES])
def test_entropy_and_confidence_are_of_the_probabilities(C, link):
    likelihood = Binary(link) if C == 1 else Multiclass(link)
    outputs = logits(C)
    p, columns = likelihood.log_probabilities(outputs).exp(), likelihood.row_columns(outputs)
    assert columns["entropy"].tolist() == pytest.approx(stats.entropy(p, axis=1).tolist(), abs=1e-12)
    assert columns["confidence"].tolist() == p.max(1).values.tolist()


def test_two_classes_are_one_logit():
    outputs = logits(2, scale=2.0)
    contrast = doubles(-1.0, 1.0)
    one = Gaussian((outputs.mean @ contrast).unsqueeze(1), (contrast @ outputs.covariance @ contrast).reshape(-1, 1, 1))
    for name, expected in Binary().row_columns(one).items():
        torch.testing.assert_close(Multiclass().row_columns(outputs)[name], expected, rtol=1e-10, atol=1e-12)


def test_a_certain_row_has_no_entropy():
    columns = Binary().row_columns(one_logit(800.0, 0.0))
    assert {name: float(values) for name, values in columns.items()} == {
        "entropy": 0.0,
        "mutual_information": 0.0,
        "confidence": 1.0,
    }


def test_little_variance_has_the_information_of_its_first_term():
    """½·p(1 − p)·σ² as σ → 0."""
    found = float(Binary().mutual_information(one_logit(0.7, 1e-3)))
    p = 1 / (1 + math.exp(-0.7))
    assert found == pytest.approx(0.5 * p * (1 - p) * 1e-6, rel=1e-5)
