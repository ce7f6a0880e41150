"""The two sentences under a table, from predictions made by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sublaplace_cli.commands.scoring.verdict import verdict
from sublaplace_cli.core.features.sketch import Sketch
from sublaplace_cli.core.features.subset import Subset
from sublaplace_cli.core.gaussian import Gaussian, diagonal_covariance
from sublaplace_cli.core.likelihoods.regression import Regression
from sublaplace_cli.core.prediction import Comparison, FullNumbers, Prediction
from sublaplace_cli.core.tuning.calibration import Calibration, Factor

ROWS, PARAMETERS = 200, 1234
NORMAL = torch.randn(ROWS, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def made(method: str, variance: Tensor | float, k: int | None = None, **more) -> Prediction:
    f = torch.zeros(ROWS, 1, dtype=torch.float64)
    outputs = Gaussian(f, diagonal_covariance(torch.zeros_like(f) + variance))
    return Prediction(method, k, outputs, None, features=None if k is None else Subset(torch.arange(k)), **more)


def known(
    std: float = 1.0, full: Tensor | float | None = None, targets: bool = True, ipv: float | None = None
) -> Comparison:
    std_full = None if full is None else torch.zeros(ROWS, 1, dtype=torch.float64) + full
    return Comparison(Regression(1.0), 50, std * NORMAL if targets else None, None, FullNumbers(std_full, ipv=ipv))


def said(asked: list[Prediction], others: list[Prediction], against: Comparison) -> list[str]:
    return verdict(asked, others, against, PARAMETERS).get("text", [])


MAP = made("map", 0.0)


def test_targets_that_vary_more_than_the_noise_are_predicted_better_by_a_posterior():
    (text,) = said([made("gradient", 3.0, 1000)], [MAP], known(std=2.0))
    assert text.startswith("The posterior makes the predictions better here: NLL ")
    assert "(gradient, k = 1,000; " in text
    assert "--rescale" not in text


def test_a_posterior_that_is_too_wide_is_worse_and_may_be_calibrated():
    (text,) = said([made("gradient", 9.0, 1000)], [MAP], known())
    assert text.startswith("The posterior makes the predictions worse here: NLL ")
    assert text.endswith("Try --rescale calibrated before you decide.")


def test_a_difference_within_its_error_is_no_difference():
    (text,) = said([made("gradient", 1e-6, 1000)], [MAP], known())
    assert text.startswith("The posterior makes no clear difference to the predictions here: NLL ")
    assert "0.0 standard errors" in text


def test_nothing_more_is_advised_once_it_is_calibrated():
    fitted = Calibration(Factor(1.0, at_a_bound=False), (), made("a", 0.1).outputs)
    (text,) = said([made("gradient", 1e-6, 1000, calibration=fitted)], [MAP], known())
    assert "--rescale" not in text
    assert "Only the order of the rows by uncertainty can justify a posterior here" in text


def test_a_rival_without_a_posterior_is_named():
    rivals = [MAP, made("temperature", 3.0)]
    (text,) = said([made("gradient", 3.0, 1000)], rivals, known(std=2.0))
    assert "temperature needs no posterior and is as good: " in text


def test_others_that_are_worse_are_named_and_counted():
    asked = [made("gradient", 3.0, 1000), *(made(f"m{i}", 5000.0 + i, 10) for i in range(5))]
    (text,) = said(asked, [MAP], known(std=2.0))
    assert "best of 6" in text
    assert "Worse than the network alone: m4 (k = 10) by " in text
    assert text.endswith(" and 2 more.")


@pytest.mark.parametrize(
    ("std", "words"),
    [
        (0.912, "With 1,000 of 1,234 parameters the uncertainty σ of gradient is within 9 % of the full posterior's"),
        (0.379, "is 63 % off the full posterior's, averaged over the test rows: raise --k."),
    ],
)
def test_the_distance_to_the_full_posterior(std: float, words: str):
    (text,) = said([made("gradient", std**2, 1000)], [MAP], known(full=1.0, targets=False))
    assert words in text


@pytest.mark.parametrize(
    ("std", "how"),
    [
        (0.5, "further off: 50 %"),
        (0.95, "closer: 5 %"),
        (1 + 0.123 * NORMAL.abs(), "not clearly closer: 10 %"),
        (1 + 0.132 * NORMAL.abs(), "not clearly further off: 11 %"),
        (1 + 0.1 * NORMAL.sign(), "as close: 10 %"),
    ],
)
def test_a_reference_without_a_sub_network_beside_it(std: Tensor | float, how: str):
    own = made("gradient", (1 + 0.1 * NORMAL.flip(0).sign()) ** 2, 1000)
    norm = made("norm", torch.as_tensor(std, dtype=torch.float64) ** 2)
    (text,) = said([own], [MAP, norm], known(full=1.0, targets=False))
    assert f"norm, which needs no sub-network, is {how}." in text


def test_after_a_calibration_orders_are_compared():
    fitted = Calibration(Factor(1.0, at_a_bound=False), (), made("a", (NORMAL.abs() + 1).square()).outputs)
    own = made("gradient", (NORMAL.abs() + 1).square(), 1000, calibration=fitted)
    (text,) = said([own], [MAP], known(full=NORMAL.abs() + 5, targets=False))
    assert (
        "gradient orders the test rows by uncertainty like the full posterior with a rank correlation of 1.00" in text
    )


def test_nothing_is_said_of_nothing():
    assert verdict([MAP], [], known(), PARAMETERS) == {}
    assert verdict([made("gradient", 1.0, 5)], [MAP], known(targets=False), PARAMETERS) == {}
    assert verdict([made("gradient", 1.0, PARAMETERS)], [MAP], known(full=1.0, targets=False), PARAMETERS) == {}


def test_a_network_that_has_learnt_nothing_is_checked_first():
    found = verdict([made("gradient", 9.0, 1000)], [MAP], known(), PARAMETERS, has_learnt=False)
    (text,) = found["text"]
    assert text.startswith("The posterior makes the predictions worse here: NLL ")
    assert "First check the network" in text
    assert "--rescale" not in text


def test_a_distance_below_one_percent_has_digits():
    text = " ".join(said([made("gradient", 0.9983**2, 1000)], [MAP], known(full=1.0, targets=False)))
    assert "is within 0.17 % of the full posterior's" in text


@pytest.mark.parametrize(
    ("freedom", "std", "expected"),
    [
        (136.0, 0.3, 7),  # 70 % off, where sums would be 7 %
        (136.0, 0.88, None),  # 12 % off: 7 % is not much closer
        (700.0, 0.1, None),  # 35 % would be too far to be sure of
    ],
)
def test_sums_that_would_be_much_closer_are_hinted_at(freedom: float, std: float, expected: int | None):
    against = known(full=1.0, ipv=freedom / 50)  # 50 training rows, noise variance 1
    *_, last = said([made("gradient", std**2, 1000)], [MAP], against)
    hint = f"Hint: --method sketch with the same k = 1,000 is expected to be within about {expected} %."
    assert (last == hint) == (expected is not None)
    assert last.startswith("Hint") == (expected is not None)


def test_nothing_is_hinted_at_that_was_asked_for():
    against = known(full=1.0, ipv=136.0 / 50)
    sums = Prediction("sketch", 1000, made("sketch", 0.9).outputs, None, features=Sketch(1000))
    text = said([made("gradient", 0.09, 1000), sums], [MAP], against)
    assert not any(line.startswith("Hint") for line in text)
    assert "With 1,000 features of 1,234 parameters the uncertainty σ of sketch is within 6 %" in text[-1]
