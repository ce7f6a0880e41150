"""Class probabilities of uncertain logits: against plain draws, numerical integration and each other."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import reference
import torch
from core.problems import random_matrix
from scipy.integrate import quad

from sublaplace_cli.core.gaussian import Gaussian
from sublaplace_cli.core.likelihoods.binary import Binary
from sublaplace_cli.core.likelihoods.links import log_expected_sigmoid, log_expected_softmax
from sublaplace_cli.core.likelihoods.multiclass import Multiclass

LINKS = ("integral", "mean-field", "probit")
CLASSES = (2, 3, 10, 50)


def logits(C: int, scale: float = 1.0, rows: int = 12, seed: int = 1) -> Gaussian:
    """Correlated logits whose standard deviations are of the order of `scale`."""
    root = scale * random_matrix(rows, C, C, seed=seed + 1) / math.sqrt(C)
    return Gaussian(2 * random_matrix(rows, C, seed=seed), root @ root.mT)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def probabilities(outputs: Gaussian, link: str = "integral") -> torch.Tensor:
    return Multiclass(link).log_probabilities(outputs).exp()


@pytest.mark.parametrize("std", [0.0, 1e-4, 0.5, 1.0, 2.9, 7.0, 31.9, 32.1, 100.0, 1e4])
@pytest.mark.parametrize("f", [-30.0, -4.0, 0.0, 0.7, 12.0])
def test_one_logit_to_ten_digits(f, std):
    """Numerical integration by scipy, cut where the sigmoid bends."""

    def integrand(z: float) -> float:
        x = f + std * z
        return math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / (1 + math.exp(-x)) if x > -700 else 0.0

    bend = 0.0 if std == 0 else -f / std
    cuts = sorted(
        {min(max(cut, -12.0), 12.0) for cut in (-12, 12, 0, *(bend + j / max(std, 1) for j in range(-30, 31, 6)))}
    )
    exact = sum(quad(integrand, a, b, epsabs=1e-14, epsrel=1e-12)[0] for a, b in pairwise(cuts))
    found = log_expected_sigmoid(doubles(f, -f), doubles(std, std)).exp()
    assert float(found[0]) == pytest.approx(exact, abs=1e-10)
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-13)


def test_a_certain_logit_keeps_its_digits_in_the_tail():
    found = log_expected_sigmoid(doubles(-800.0, -50.0), doubles(0.0, 0.1))
    assert found.tolist() == pytest.approx([-800.0, -50.0 + 0.1**2 / 2], rel=1e-12)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("C", [3, 10])
def test_a_million_plain_draws_agree(C, scale):
    outputs, n = logits(C, scale, rows=4), 10**6
    generator = torch.Generator().manual_seed(0)
    root = torch.linalg.cholesky(outputs.covariance)
    z = torch.randn(n, C, dtype=torch.float64, generator=generator)
    found = probabilities(outputs)
    for row in range(len(found)):
        draws = torch.softmax(outputs.mean[row] + z @ root[row].T, 1)
        error = 5 * draws.std(0) / math.sqrt(n)
        # The fixed points are off by about 1e-3 in total variation, more where the logits spread widely.
        assert bool(((found[row] - draws.mean(0)).abs() <= error + 1.5e-3 * max(1.0, scale)).all())


@pytest.mark.parametrize("C", CLASSES)
def test_the_integral_is_that_of_the_reference(C):
    outputs = logits(C, rows=3)
    expected = reference.class_probabilities("multiclass", outputs.mean, outputs.covariance)
    # Two classes are one sigmoid, which is integrated to more digits than over the fixed points.
    torch.testing.assert_close(probabilities(outputs), expected, rtol=0, atol=2e-3 if C == 2 else 1e-12)


@pytest.mark.parametrize("C", CLASSES)
@pytest.mark.parametrize("link", ["integral", "mean-field"])
def test_a_constant_added_to_all_logits_changes_nothing(link, C):
    outputs = logits(C)
    expected = probabilities(outputs, link)
    for shift in (-20.0, 3.0, 1000.0):
        shifted = Gaussian(outputs.mean + shift, outputs.covariance)
        torch.testing.assert_close(probabilities(shifted, link), expected, rtol=0, atol=1e-10)
    # Nor does an uncertain constant: variance along (1, …, 1) is not seen.
    common = Gaussian(outputs.mean, outputs.covariance + 5.0)
    torch.testing.assert_close(probabilities(common, link), expected, rtol=0, atol=1e-10)


def test_the_probit_form_depends_on_the_constant():
    """As it is in other tools: a guard on the test above, and the reason for the note."""
    outputs = logits(5)
    shifted = Gaussian(outputs.mean - 20.0, outputs.covariance)
    assert float((probabilities(shifted, "probit") - probabilities(outputs, "probit")).abs().max()) > 0.05


@pytest.mark.parametrize("link", LINKS)
def test_permuted_classes_have_permuted_probabilities(link):
    outputs = logits(7)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    permuted = Gaussian(outputs.mean[:, order], outputs.covariance[:, order][:, :, order])
    expected = probabilities(outputs, link)[:, order]
    torch.testing.assert_close(probabilities(permuted, link), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("link", ["integral", "mean-field"])
def test_two_classes_are_one_logit(link):
    outputs = logits(2, scale=2.0)
    contrast = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    one = Gaussian((outputs.mean @ contrast).unsqueeze(1), (contrast @ outputs.covariance @ contrast).reshape(-1, 1, 1))
    expected = Binary(link).log_probabilities(one)
    torch.testing.assert_close(Multiclass(link).log_probabilities(outputs), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("link", LINKS)
def test_probabilities_add_up_to_1_and_are_plain_without_variance(link):
    outputs = logits(6)
    torch.testing.assert_close(probabilities(outputs, link).sum(1), torch.ones(12).double(), rtol=0, atol=1e-13)
    certain = probabilities(Gaussian.certain(outputs.mean), link)
    torch.testing.assert_close(certain, torch.softmax(outputs.mean, 1), rtol=1e-13, atol=1e-16)


def test_the_closed_forms_are_what_they_say():
    outputs = logits(3)
    f, cov = outputs.mean[0], outputs.covariance[0]
    mean_field = torch.zeros(3, dtype=torch.float64)
    for i in range(3):
        gaps = [(f[i] - f[j]) / math.sqrt(1 + math.pi / 8 * (cov[i, i] + cov[j, j] - 2 * cov[i, j])) for j in range(3)]
        mean_field[i] = 1 / sum(math.exp(-gap) for gap in gaps)
    found = probabilities(outputs, "mean-field")[0]
    torch.testing.assert_close(found, mean_field / mean_field.sum(), rtol=1e-12, atol=0)
    probit = torch.softmax(f / torch.sqrt(1 + math.pi / 8 * cov.diagonal()), 0)
    torch.testing.assert_close(probabilities(outputs, "probit")[0], probit, rtol=1e-12, atol=0)


def test_a_singular_covariance_is_integrated():
    """Of one parameter: all logits move along one direction."""
    outputs = logits(4)
    direction = random_matrix(12, 4, 1, seed=9)
    line = Gaussian(outputs.mean, 4 * direction @ direction.mT)
    z = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    weight = torch.softmax(-0.5 * z.square(), 0)
    x = outputs.mean.unsqueeze(1) + 2 * z.reshape(1, -1, 1) * direction.mT
    exact = (torch.softmax(x, 2) * weight.reshape(1, -1, 1)).sum(1)
    assert float((probabilities(line) - exact).abs().sum(1).max()) / 2 < 2e-3


def test_an_improbable_class_has_a_finite_logarithm():
    mean = torch.tensor([[0.0, -900.0, -1000.0]], dtype=torch.float64)
    found = log_expected_softmax(mean, 0.01 * torch.eye(3, dtype=torch.float64).unsqueeze(0))
    assert found[0].tolist() == pytest.approx([0.0, -900.0, -1000.0], abs=0.1)


def test_probabilities_are_computed_once():
    outputs = logits(3)
    first = Multiclass().log_probabilities(outputs)
    assert Multiclass().log_probabilities(outputs) is first
    assert Multiclass("probit").log_probabilities(outputs) is not first
