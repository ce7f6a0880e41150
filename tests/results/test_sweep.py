"""Several runs as one result: means, their errors, and what the runs have in common."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from results.made_results import SETUP, complete_row, result, row

from sublaplace_cli.results.metric_table import LISTED, METRIC_VERSION
from sublaplace_cli.results.result import Listing
from sublaplace_cli.results.sweep import combine, combine_plans

A, B = ("a.pt", 0), ("b.pt", 0)


def test_sets_of_test_rows_have_means_of_their_own():
    def run(clean, shifted):
        change = {"set": "b", "reference": "a", "method": "gradient", "k": 5, "metric": "nll"}
        change |= {"difference": shifted - clean, "standard_error": 0.5, "paired": True}
        rows = (dataclasses.replace(row(nll=value), set=name) for name, value in (("a", clean), ("b", shifted)))
        return result(*rows, details={"differences": [change], "test_sets": [{"name": "a", "rows": 2}]})

    found = combine([A, B], [run(1.0, 4.0), run(3.0, 5.0)])
    assert [(mean.set, mean.value("nll"), mean.error("nll")) for mean in found.mean] == [
        *(("a", 2.0, 1.0), ("b", 4.5, pytest.approx(0.5)))
    ]
    (change,) = found.differences
    assert (change.difference, change.standard_error) == (2.5, pytest.approx(0.5))
    assert found.test_sets == {"a": 2}


def test_the_json_of_a_sweep():
    first = dataclasses.replace(
        result(row(w2=1.0, w2_se=0.5, nll=2.0), full=row("full", 9, nll=1.0), details={"tuned": {"x": 1}}),
        artifacts={"scores": "/r/scores.x"},
        seconds={"fit": 0.1, "rows": 1.0},
    )
    second = dataclasses.replace(
        result(row(w2=3.0, w2_se=0.5, nll=None, why={"nll": "no"}), full=row("full", 9, nll=3.0), weights_sha256="v"),
        setup=dataclasses.replace(SETUP, noise_variance=0.25),
        seconds={"fit": 0.2, "tune": 0.5},
    )
    found = combine([A, B], [first, second])
    assert json.dumps(found.as_dict()) == json.dumps(
        {
            **{"schema": 1, "task": "regression", "n_train": 3, "n_test": 2, "n_params": 9, "n_outputs": 1},
            **{"noise_variance": None, "prior_precision": 1.0, "device": "cpu", "workers": 1},
            "provenance": {
                **{"weights_sha256": None, "fingerprint": "f", "metrics": METRIC_VERSION, "rows_sha256": "d"},
                **{"oracle_sha256": None, "rescale": "none", "link": None, "hessian": "exact", "conformal": None},
            },
            "full": {"method": "full", "k": 9, "n": 2, "nll": 2.0, "nll_se": 1.0, "why": {}},
            "rows": [
                {"checkpoint": "a.pt", "seed": 0, "method": "gradient", "k": 5, "w2": 1.0, "w2_se": 0.5, "nll": 2.0}
                | {"why": {}},
                {"checkpoint": "b.pt", "seed": 0, "method": "gradient", "k": 5, "w2": 3.0, "w2_se": 0.5, "nll": None}
                | {"why": {"nll": "no"}},
            ],
            "references": [],
            "mean": [
                {"method": "gradient", "k": 5, "n": 2, "w2": 2.0, "w2_se": 1.0, "nll": None, "nll_se": None}
                | {"why": {"nll": "no"}}
            ],
            "checkpoints": [
                {
                    **{"checkpoint": "a.pt", "seed": 0, "weights_sha256": "w", "fingerprint": "f"},
                    **{"noise_variance": 0.5, "prior_precision": 1.0},
                    "full": {"method": "full", "k": 9, "nll": 1.0, "why": {}},
                    "tuned": {"x": 1},
                    "artifacts": {"scores": "/r/scores.x"},
                },
                {
                    **{"checkpoint": "b.pt", "seed": 0, "weights_sha256": "v", "fingerprint": "f"},
                    **{"noise_variance": 0.25, "prior_precision": 1.0},
                    "full": {"method": "full", "k": 9, "nll": 3.0, "why": {}},
                    "artifacts": {},
                },
            ],
            "gate": None,
            "artifacts": {},
            "seconds": {"fit": 0.3, "rows": 1.0, "tune": 0.5},
        }
    )
    assert found.compared_rows == found.mean
    assert found.bracket == [None, None]


def test_means_list_every_metric_with_its_error():
    found = combine([A, B], [result(complete_row()), result(complete_row())])
    names = [name for name in LISTED if name not in ("w2_low", "w2_high")]
    assert list(found.mean[0].values) == [key for name in names for key in (name, f"{name}_se")]
    assert set(found.mean[0].values.values()) == {0.25, 0.0}


def test_bounds_are_in_the_means_where_they_are_in_the_rows():
    bracket = {"bracket": {"rows": 5, "sets": 2}}
    results = [result(row(w2_low=low, w2_high=2.0), details=bracket) for low in (0.0, 1.0)]
    found = combine([A, B], results)
    assert found.mean[0].values == {"w2_low": 0.5, "w2_low_se": 0.5, "w2_high": 2.0, "w2_high_se": 0.0}
    assert found.bracket == [{"rows": 5, "sets": 2}] * 2


def test_seeds_of_one_checkpoint_are_no_further_trainings():
    labels = [("a.pt", 0), ("a.pt", 1), ("b.pt", 0), ("b.pt", 1)]
    found = combine(labels, [result(row(w2=value)) for value in (1.0, 3.0, 4.0, 8.0)]).mean[0]
    assert (found.value("w2"), found.error("w2"), found.n) == (4.0, 2.0, 4)  # the means 2 and 6, over √2
    seeds = combine(labels[:2], [result(row(w2=value)) for value in (1.0, 3.0)]).mean[0]
    assert seeds.error("w2") == pytest.approx(math.sqrt(2) / math.sqrt(2))


def test_one_run_has_no_standard_error():
    found = combine([A], [result(row(w2=1.0))]).mean[0]
    assert (found.value("w2"), found.error("w2")) == (1.0, None)
    assert found.why == {"w2_se": "one run has no standard error"}


def test_runs_that_differ_in_k():
    found = combine([A, B], [result(row(k=3, w2=1.0)), result(row(k=4, w2=1.0))]).mean[0]
    assert (found.k, found.ks) == (None, (3, 4))
    assert found.why["k"] == "it differs between the runs: 3, 4"


def test_a_value_that_one_run_lacks_without_a_reason():
    found = combine([A, B], [result(row(w2=1.0)), result(row(w2=None))]).mean[0]
    assert found.value("w2") is None
    assert found.why == {"w2": "not known in every run"}


def test_no_full_posterior_in_one_run_is_none_in_all():
    assert combine([A, B], [result(row(), full=row("full")), result(row())]).full is None


def test_plans_add_up():
    plans = [
        Listing(
            {"schema": 1, "dry_run": True, "run_dir": name, "memory_limit": 9, "memory_estimate": size}
            | {"seconds_estimate": size, "seconds_by_step": {name: 1, "full": size - 1}, "estimate": "about 1 s"}
            | {"bytes_to_write": size, "files": {"scores": size}, "reused": ["old"]}
        )
        for name, size in (("x", 5), ("y", 3))
    ]
    assert json.dumps(combine_plans(["a.pt", "b.pt"], plans).as_dict()) == json.dumps(
        {
            **{"schema": 1, "dry_run": True, "run_dir": ["x", "y"], "memory_limit": 9, "memory_estimate": 5},
            **{"seconds_estimate": 8, "seconds_by_step": {"x": 1.0, "full": 6.0, "y": 1.0}},
            **{"bytes_to_write": 8, "files": {"1/scores": 5, "2/scores": 3}, "reused": ["1/old", "2/old"]},
            **{"runs": 2, "checkpoints": ["a.pt", "b.pt"]},
        }
    )
