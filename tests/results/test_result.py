"""The JSON of a result, written out by hand: keys, their order, and what is left out."""

from __future__ import annotations

import dataclasses
import json

import pytest
from results.made_results import complete_row, result, row

from sublaplace_cli.results.metric_table import METRIC_VERSION
from sublaplace_cli.results.result import Listing, Row

ROW = {
    **{"method": "gradient", "k": 5, "rescale": 0.25, "remainder": 0.25, "mean_std": 0.25, "w2": 0.25, "w2_se": 0.125},
    **{"w2_relative": 0.25, "rank": 0.25, "w2_total": 0.25, "coverage95": 0.25, "coverage95_total": 0.25, "ipv": 0.25},
    **{"discrepancy": 0.25, "retained": 0.25, "nll": 0.25, "rmse": 0.25, "crps": 0.25, "accuracy": 0.25, "ece": 0.25},
    **{"brier": 0.25, "aurc": 0.25, "error_rank": 0.25, "ence": 0.25, "smooth_ece": 0.25, "signed_ece": 0.25},
    **{"conformal_coverage": 0.25, "conformal_size": 0.25},
    **{"ood_auroc_std": 0.25, "ood_auroc_entropy": 0.25, "ood_auroc_mi": 0.25},
    **{"ood_fpr95_std": 0.25, "ood_fpr95_entropy": 0.25, "ood_fpr95_mi": 0.25},
    **{"accuracy_se": 0.125, "brier_se": 0.125, "conformal_coverage_se": 0.125, "conformal_size_se": 0.125},
    **{"coverage95_se": 0.125, "coverage95_total_se": 0.125},
    **{"crps_se": 0.125, "nll_se": 0.125, "signed_ece_se": 0.125},
    "why": {"accuracy": "a", "w2_se": "b"},
}
HEAD = {
    **{"schema": 1, "task": "regression", "n_train": 3, "n_test": 2, "n_params": 9, "n_outputs": 1},
    **{"noise_variance": 0.5, "prior_precision": 1.0, "device": "cpu", "workers": 1},
    "provenance": {
        **{
            "weights_sha256": "w",
            "fingerprint": "f",
            "metrics": METRIC_VERSION,
            "rows_sha256": "d",
            "oracle_sha256": None,
        },
        "rescale": "none",
        "link": None,
        "conformal": None,
    },
}


def text(value) -> str:
    return json.dumps(value, allow_nan=False)


def test_a_row():
    assert text(complete_row().as_dict()) == text(ROW)


def test_a_row_with_bounds_has_them_before_the_other_errors():
    found = list(complete_row(w2_high=2.0, w2_low=1.0).as_dict())
    assert found[found.index("ood_fpr95_mi") :] == [
        *("ood_fpr95_mi", "w2_low", "w2_high", "accuracy_se", "brier_se", "conformal_coverage_se"),
        *("conformal_size_se", "coverage95_se", "coverage95_total_se", "crps_se", "nll_se", "signed_ece_se", "why"),
    ]


def test_a_row_of_a_run_of_a_sweep():
    found = dataclasses.replace(complete_row(), checkpoint="a.pt", seed=0)
    assert text(found.as_dict()) == text({"checkpoint": "a.pt", "seed": 0, **ROW})
    assert found.run == {"checkpoint": "a.pt", "seed": 0}


def test_a_mean_keeps_the_order_of_its_values_and_reasons():
    mean = Row("gradient", None, {"w2": 1.0, "w2_se": None, "ipv": 2.0}, {"w2_se": "b", "k": "a"}, n=2, ks=(3, 4))
    assert text(mean.as_dict()) == text(
        {
            **{"method": "gradient", "k": None, "n": 2, "ks": [3, 4], "w2": 1.0, "w2_se": None, "ipv": 2.0},
            "why": {"w2_se": "b", "k": "a"},
        }
    )
    assert "ks" not in dataclasses.replace(mean, k=3, ks=None).as_dict()


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (row(), "gradient (k = 5)"),
        (row(k=None), "gradient"),
        (Row("norm", None, {}, checkpoint="a.pt", seed=0), "a.pt: norm"),
        (Row("random", 3, {}, checkpoint="a.pt", seed=2), "a.pt, seed 2: random (k = 3)"),
    ],
)
def test_the_name_of_a_row(found, name):
    assert found.name == name


def test_values_and_errors_that_are_not_there():
    found = row(w2=1.0, w2_se=0.5, nll=None)
    assert (found.value("w2"), found.error("w2")) == (1.0, 0.5)
    assert found.value("nll") is found.error("nll") is found.value("crps") is None


def test_a_result():
    found = dataclasses.replace(
        result(complete_row(), full=complete_row("full", 9)), artifacts={"scores": "/r/scores.x"}, seconds={"fit": 0.5}
    )
    expected = {
        **HEAD,
        "full": {**ROW, "method": "full", "k": 9},
        "rows": [ROW],
        "references": [],
        "gate": None,
        "artifacts": {"scores": "/r/scores.x"},
        "seconds": {"fit": 0.5},
    }
    assert text(found.as_dict()) == text(expected)
    del expected["seconds"]
    reproducible = {**expected, "artifacts": {"scores": "scores.x"}}
    assert text(found.reproducible().as_dict()) == text(reproducible)


def test_details_stand_between_the_gate_and_the_artifacts():
    details = {"tuned": {"prior_precision": 2.0}, "bracket": {"rows": 50, "sets": 2}}
    found = result(complete_row(), details=details)
    expected = {**HEAD, "full": None, "rows": [ROW], "references": [], "gate": None, **details, "artifacts": {}}
    assert text(found.as_dict()) == text(expected)
    assert found.bracket == {"rows": 50, "sets": 2}
    assert result(complete_row()).bracket is None


def test_a_listing_is_its_values():
    values = {"schema": 1, "k": 5, "artifacts": {"a": "b"}, "tuned": {"x": 1.0}, "seconds": {}}
    assert text(Listing(values).as_dict()) == text(values)
    assert Listing(values).gate is None


@pytest.mark.parametrize("record", [row(), result(), Listing({})])
def test_records_are_frozen(record):
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.gate = None
