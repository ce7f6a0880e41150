"""The one table of metrics: what is derived from it, and that its entries exist."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sublaplace_cli.catalog import load
from sublaplace_cli.results.metric_table import LISTED, METRICS, ROW_KEYS


def test_the_keys_of_a_row_are_the_metrics():
    assert {key for key in ROW_KEYS if not key.endswith("_se")} == set(METRICS) == set(LISTED)
    assert len(set(ROW_KEYS)) == len(ROW_KEYS)
    assert len(set(LISTED)) == len(LISTED)


def test_the_order_of_a_row():
    assert (
        *("rescale", "remainder", "mean_std", "w2", "w2_se", "w2_relative", "rank", "w2_total"),
        *("coverage95", "coverage95_total", "ipv", "discrepancy", "retained"),
        *("nll", "rmse", "crps", "accuracy", "ece", "brier", "aurc", "error_rank", "ence"),
        *("smooth_ece", "signed_ece", "conformal_coverage", "conformal_size"),
        *("ood_auroc_std", "ood_auroc_entropy", "ood_auroc_mi"),
        *("ood_fpr95_std", "ood_fpr95_entropy", "ood_fpr95_mi", "w2_low", "w2_high"),
    ) == ROW_KEYS


def test_directions():
    found = {direction: {name for name in METRICS if METRICS[name].better == direction} for direction in DIRECTIONS}
    assert found == DIRECTIONS


DIRECTIONS = {
    "lower": {"w2", "w2_relative", "w2_total", "w2_low", "w2_high", "discrepancy", "nll", "rmse", "crps", "ece"}
    | {"brier", "aurc", "ence", "smooth_ece", "conformal_size", "ood_fpr95_std", "ood_fpr95_entropy", "ood_fpr95_mi"},
    "higher": {"accuracy", "retained", "rank", "error_rank", "ood_auroc_std", "ood_auroc_entropy", "ood_auroc_mi"},
    "nominal": {"coverage95", "coverage95_total", "signed_ece"},
    "level": {"conformal_coverage"},
    None: {"mean_std", "ipv", "rescale", "remainder"},
}


def test_means_over_rows_have_a_standard_error():
    with_error = {name for name, metric in METRICS.items() if metric.per_row}
    assert with_error == {
        *("w2", "coverage95", "coverage95_total", "nll", "crps", "accuracy", "brier", "signed_ece"),
        *("conformal_coverage", "conformal_size"),
    }


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_a_name_a_definition_and_a_function(name):
    metric = METRICS[name]
    assert metric.name == name
    assert metric.definition
    assert "\n" not in metric.definition
    assert callable(load(f"{metric.module}:{metric.name}"))


def test_results_need_neither_torch_nor_numpy():
    modules = "baseline, gate, limits, metric_table, result, sweep"
    heavy = ("torch", "numpy", "pydantic", "rich")
    code = f"import sys\nfrom sublaplace_cli.results import {modules}\nprint([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
