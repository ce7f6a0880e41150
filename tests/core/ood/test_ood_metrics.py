"""Test rows and out-of-distribution rows told apart: against scikit-learn, with and without ties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from sublaplace_cli.commands.scoring.measuring import measured_row
from sublaplace_cli.core.gaussian import Gaussian, diagonal_covariance
from sublaplace_cli.core.likelihoods.binary import Binary
from sublaplace_cli.core.likelihoods.heteroscedastic import Heteroscedastic
from sublaplace_cli.core.likelihoods.multiclass import Multiclass
from sublaplace_cli.core.likelihoods.regression import Regression
from sublaplace_cli.core.ood.metrics import fpr95
from sublaplace_cli.core.prediction import Comparison, OodSet, Prediction
from sublaplace_cli.core.ranks import auroc
from sublaplace_cli.core.tuning.calibration import Calibration, Factor

SETS = ("std", "entropy", "mi")


def by_sklearn(test, ood) -> tuple[float, float]:
    """(AUROC, FPR95): of the second, the test rows are the positives, as most papers have it."""
    values, is_ood = np.concatenate([test, ood]), np.repeat([0, 1], [len(test), len(ood)])
    fpr, tpr, _ = roc_curve(1 - is_ood, -values, drop_intermediate=False)
    return roc_auc_score(is_ood, values), float(fpr[np.argmax(tpr >= 0.95)])


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=45),
    st.lists(st.integers(2, 9), min_size=1, max_size=45),
    st.sampled_from([1.0, 1 / 3, 1e-30]),
)
def test_ties_are_those_of_scikit_learn(test, ood, unit):
    a, b = (torch.tensor(values, dtype=torch.float64) * unit for values in (test, ood))
    assert (auroc(a, b), fpr95(a, b)) == pytest.approx(by_sklearn(test, ood), abs=1e-12)


@pytest.mark.parametrize("count", [1, 19, 20, 21, 40, 100, 1000, 1001])
def test_distinct_values_are_those_of_scikit_learn(count):
    rng = np.random.default_rng(count)
    test, ood = rng.normal(size=count), rng.normal(1, 2, size=77)
    found = auroc(torch.tensor(test), torch.tensor(ood)), fpr95(torch.tensor(test), torch.tensor(ood))
    assert found == pytest.approx(by_sklearn(test, ood), abs=1e-12)


def test_rounding_decides_nothing():
    equal = torch.full((50,), 0.1, dtype=torch.float64)
    noisy = equal * (1 + 1e-15 * torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert auroc(equal, noisy) == 0.5
    assert fpr95(equal, noisy) == 1.0


def gaussian(seed: int, scale: float, rows: int = 30, outputs: int = 3) -> Gaussian:
    draw = torch.randn(rows, outputs, outputs + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    root = draw[:, :, 1:]
    return Gaussian(2 * draw[:, :, 0], scale * root @ root.mT)


def known(likelihood, prediction: Prediction, **sets: Gaussian) -> Comparison:
    test = {prediction.outputs: prediction.comparable}
    ood = tuple(OodSet(name, test, {prediction.outputs: outputs}) for name, outputs in sets.items())
    return Comparison(likelihood, 50, None, None, ood=ood)


def expected(likelihood, test: Gaussian, ood: Gaussian) -> dict[str, tuple[float, float]]:
    def scores(outputs: Gaussian) -> dict[str, torch.Tensor]:
        columns = likelihood.row_columns(outputs)
        std = outputs.covariance.diagonal(dim1=1, dim2=2).sqrt()[:, likelihood.means(outputs.mean.shape[1])]
        return {"std": std.mean(1), "entropy": columns.get("entropy"), "mi": columns.get("mutual_information")}

    pairs = {name: (scores(test)[name], scores(ood)[name]) for name in SETS}
    return {name: by_sklearn(*pair) for name, pair in pairs.items() if pair[0] is not None}


LIKELIHOODS = {
    "regression": (Regression(), 3),
    "own noise": (Heteroscedastic(), 4),
    "binary": (Binary(), 1),
    "multiclass": (Multiclass(), 3),
    "mean-field": (Multiclass("mean-field"), 3),
}


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_every_score_of_every_likelihood(kind):
    likelihood, outputs = LIKELIHOODS[kind]
    test, near, far = (gaussian(i, scale, outputs=outputs) for i, scale in enumerate((0.2, 0.4, 4.0)))
    prediction = Prediction("gradient", 5, test, 1.0)
    row = measured_row(prediction, known(likelihood, prediction, near=near, far=far))
    by_set = [expected(likelihood, test, ood) for ood in (near, far)]
    for name in SETS:
        found = row.value(f"ood_auroc_{name}"), row.value(f"ood_fpr95_{name}")
        if name in by_set[0]:  # the worst of the sets
            worst = min(own[name][0] for own in by_set), max(own[name][1] for own in by_set)
            assert found == pytest.approx(worst, abs=1e-12)
        else:
            assert found == (None, None)
            assert row.why[f"ood_auroc_{name}"] == "a metric of classification"


def test_without_such_rows_there_is_a_reason():
    prediction = Prediction("gradient", 5, gaussian(0, 1.0), 1.0)
    row = measured_row(prediction, known(Multiclass(), prediction))
    for name in SETS:
        assert row.why[f"ood_auroc_{name}"] == row.why[f"ood_fpr95_{name}"] == "there are no out-of-distribution rows"


def test_a_network_alone_has_an_entropy_but_no_spread():
    test, ood = (Gaussian.certain(gaussian(seed, 1.0).mean) for seed in range(2))
    prediction = Prediction("map", None, test, 0.0)
    row = measured_row(prediction, known(Multiclass(), prediction, ood=ood))
    assert row.value("ood_auroc_entropy") == pytest.approx(expected(Multiclass(), test, ood)["entropy"][0])
    for name in ("std", "mi"):
        assert row.value(f"ood_auroc_{name}") is None
        assert "no variance" in row.why[f"ood_auroc_{name}"]


def test_one_variance_for_all_rows_tells_nothing_apart():
    test, ood = (Gaussian(g.mean, diagonal_covariance(torch.full_like(g.mean, 0.3))) for g in map(wide, range(2)))
    prediction = Prediction("constant", None, test, None)
    row = measured_row(prediction, known(Regression(), prediction, ood=ood))
    assert (row.value("ood_auroc_std"), row.value("ood_fpr95_std")) == (0.5, 1.0)


def wide(seed: int) -> Gaussian:
    return gaussian(seed, 1.0)


def test_folds_do_not_disturb_the_order():
    """A factor for each fold changes the size of σ from row to row; what is compared has one factor for all."""
    common, ood = gaussian(0, 1.0), gaussian(1, 3.0)
    by_fold = common.scaled(torch.linspace(0.01, 100, 30, dtype=torch.float64))
    prediction = Prediction("gradient", 5, by_fold, 1.0)
    calibrated = replace(prediction, calibration=Calibration(Factor(1.0, False), (), common))
    row = measured_row(calibrated, known(Multiclass(), calibrated, ood=ood))
    for name, (area, _) in expected(Multiclass(), common, ood).items():
        assert row.value(f"ood_auroc_{name}") == pytest.approx(area, abs=1e-12)
