"""Every number of a result row: against the reference, against scipy and quadrature, and at its edges."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import reference
import torch
from core.problems import random_matrix
from scipy import integrate, stats

from sublaplace_cli.core.metrics import ECE_BINS, Predictive, calibration_error, log_probabilities, score

M = 40
TASKS = {"regression": 1, "regression-3": 3, "binary": 1, "multiclass": 4}
MEANS_WITH_ERRORS = ("w2", "coverage95", "coverage95_total", "nll", "crps", "accuracy", "brier")
EVERY_KEY = {"mean_std", "w2_relative", "w2_total", "rmse", "ece"} | {
    key for name in MEANS_WITH_ERRORS for key in (name, f"{name}_se")
}


def known(kind: str, rows: int = M) -> tuple[torch.Tensor, Predictive]:
    """(std of a method, all that is known of the test rows)."""
    task, C = kind.partition("-")[0], TASKS[kind]
    f = 1.5 * random_matrix(rows, C, seed=1)
    classes = 2 if task == "binary" else C
    targets = random_matrix(rows, C, seed=2) if task == "regression" else (torch.arange(rows) * 7 % 5) % classes
    full = random_matrix(rows, C, seed=3).abs() + 0.1
    std = full * torch.rand(rows, C, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    oracle = f + 0.8 * random_matrix(rows, C, seed=5)
    sigma2 = 0.4 if task == "regression" else None
    return std, Predictive(task, f, sigma2, targets, oracle, full)


def expected(std: torch.Tensor, given: Predictive) -> dict[str, float]:
    values = reference.closeness(given.std_full, std, given.sigma2)
    values["mean_std"] = float(std.mean())
    values["coverage95"] = float(((given.oracle - given.f).abs() <= 1.96 * std).double().mean())
    if given.task == "regression":
        return values | reference.regression_metrics(given.targets, given.f, std, given.sigma2)
    return values | reference.classification_metrics(given.task, given.targets, given.f, std)


@pytest.mark.parametrize("kind", TASKS)
def test_every_metric_is_that_of_the_reference(kind):
    std, given = known(kind)
    found, wanted = score(std, given).values, expected(std, given)
    assert set(found) == EVERY_KEY
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-10), name


@pytest.mark.parametrize("kind", TASKS)
def test_what_does_not_apply_is_none_with_a_reason(kind):
    std, given = known(kind)
    scores = score(std, given)
    absent = (
        {"accuracy", "accuracy_se", "brier", "brier_se", "ece"}
        if given.task == "regression"
        else {"coverage95_total", "coverage95_total_se", "crps", "crps_se", "rmse", "w2_total"}
    )
    assert {name for name, value in scores.values.items() if value is None} == absent
    assert set(scores.why) == absent
    assert all(scores.why.values())


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize(
    ("missing", "reason", "lost"),
    [
        ("targets", "no_targets", {"nll", "nll_se", "rmse", "crps", "coverage95_total", "accuracy", "brier_se", "ece"}),
        ("std_full", "no_full", {"w2", "w2_se", "w2_relative", "w2_total"}),
        ("oracle", "no_oracle", {"coverage95", "coverage95_se"}),
    ],
)
def test_what_is_not_known_is_none_with_its_own_reason(kind, missing, reason, lost):
    std, given = known(kind)
    before = score(std, given)
    after = score(std, replace(given, **{missing: None, reason: "because"}))
    for name in lost:
        assert after.values[name] is None
        assert after.why[name] in {"because", before.why.get(name)}
    kept = {name for name, value in after.values.items() if value is not None}
    assert kept == {name for name in kept if after.values[name] == before.values[name]}
    assert kept.isdisjoint(lost)
    assert "mean_std" in kept


@pytest.mark.parametrize("kind", TASKS)
def test_standard_errors_are_by_row_with_ddof_1(kind):
    """Repeating every output of a row must not shrink them: outputs of one row are not independent."""
    std, given = known(kind)
    values = score(std, given).values
    rows = (given.std_full - std).abs().mean(1)
    assert values["w2_se"] == pytest.approx(float(stats.sem(rows.numpy(), ddof=1)), rel=1e-12)
    inside = ((given.oracle - given.f).abs() <= 1.96 * std).double().mean(1)
    assert values["coverage95_se"] == pytest.approx(float(stats.sem(inside.numpy(), ddof=1)), rel=1e-12)


def test_repeated_outputs_do_not_shrink_the_standard_error():
    std, given = known("regression")
    tripled = replace(given, **{n: getattr(given, n).expand(-1, 3) for n in ("f", "targets", "oracle", "std_full")})
    once, thrice = score(std, given).values, score(std.expand(-1, 3), tripled).values
    for name in ("w2_se", "nll_se", "crps_se", "coverage95_se", "coverage95_total_se", "rmse"):
        assert thrice[name] == pytest.approx(once[name], rel=1e-12)


@pytest.mark.parametrize("kind", TASKS)
def test_one_row_has_no_standard_error(kind):
    std, given = known(kind, rows=1)
    scores = score(std, given)
    assert scores.values["w2"] == pytest.approx(float((given.std_full - std).abs().mean()))
    for name in MEANS_WITH_ERRORS:
        assert scores.values[f"{name}_se"] is None
        if scores.values[name] is not None:
            assert scores.why[f"{name}_se"] == "one row has no standard error"


def test_nll_is_that_of_scipy():
    std, given = known("regression-3")
    total = (std.square() + given.sigma2).sqrt()
    logpdf = stats.norm.logpdf(given.targets.numpy(), given.f.numpy(), total.numpy())
    assert score(std, given).values["nll"] == pytest.approx(-logpdf.mean(), rel=1e-12)


def test_crps_is_the_integral_that_defines_it():
    """∫ (F(t) − 1[t ≥ y])² dt by quadrature on either side of y."""
    std, given = known("regression", rows=6)
    values = []
    for f, s, y in zip(given.f[:, 0].tolist(), std[:, 0].tolist(), given.targets[:, 0].tolist(), strict=True):
        normal = stats.norm(f, math.sqrt(s * s + given.sigma2))
        below = integrate.quad(lambda t: normal.cdf(t) ** 2, -60, y, epsabs=1e-13, epsrel=1e-13, limit=400)[0]  # noqa: B023
        above = integrate.quad(lambda t: normal.sf(t) ** 2, y, 60, epsabs=1e-13, epsrel=1e-13, limit=400)[0]  # noqa: B023
        values.append(below + above)
    assert score(std, given).values["crps"] == pytest.approx(sum(values) / 6, rel=1e-9)


def test_the_full_posterior_is_at_no_distance_from_itself():
    _, given = known("regression-3")
    values = score(given.std_full, given).values
    assert (values["w2"], values["w2_se"], values["w2_relative"], values["w2_total"]) == (0.0, 0.0, 0.0, 0.0)


def test_a_full_posterior_without_spread_has_no_relative_distance():
    std, given = known("regression")
    scores = score(std, replace(given, std_full=torch.zeros_like(std)))
    assert scores.values["w2_relative"] is None
    assert "no spread" in scores.why["w2_relative"]
    assert scores.values["w2"] == pytest.approx(float(std.mean()))


def test_numbers_that_are_not_finite_are_none():
    std, given = known("regression")
    scores = score(std, replace(given, targets=torch.full_like(std, 1e200)))
    assert scores.values["rmse"] is None
    assert scores.values["nll"] is None
    assert scores.why["rmse"] == "not a finite number"


def test_no_epistemic_spread_leaves_the_plain_probabilities():
    _, given = known("multiclass")
    p = log_probabilities(given.f, torch.zeros_like(given.f)).exp()
    torch.testing.assert_close(p, torch.softmax(given.f, 1), rtol=1e-13, atol=0)


def test_the_probit_correction_divides_every_logit():
    f, std = torch.tensor([[3.0, -1.0]], dtype=torch.float64), torch.tensor([[2.0, 0.5]], dtype=torch.float64)
    z = [3.0 / math.sqrt(1 + math.pi * 4.0 / 8), -1.0 / math.sqrt(1 + math.pi * 0.25 / 8)]
    assert float(log_probabilities(f, std).exp()[0, 0]) == pytest.approx(1 / (1 + math.exp(z[1] - z[0])), rel=1e-13)


def test_one_logit_is_two_classes():
    p = log_probabilities(torch.tensor([[1.2]], dtype=torch.float64), torch.tensor([[0.0]], dtype=torch.float64)).exp()
    assert p[0].tolist() == pytest.approx([1 / (1 + math.exp(1.2)), 1 / (1 + math.exp(-1.2))], rel=1e-13)


@pytest.mark.parametrize("y", [0, 1])
def test_nll_stays_finite_for_a_certain_logit(y):
    """−log σ(±800): a probability of 0 in float64, but not an infinite loss."""
    given = Predictive("binary", torch.tensor([[800.0]], dtype=torch.float64), None, torch.tensor([y]), None, None)
    assert score(torch.zeros(1, 1).double(), given).values["nll"] == pytest.approx(0.0 if y else 800.0)


def ece(confidence: list[float], correct: list[float]) -> float:
    return calibration_error(torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct, dtype=torch.float64))


def test_a_probability_of_one_lies_in_the_last_bin():
    assert ece([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 0]) == pytest.approx(0.25, rel=1e-14)
    assert ece([1.0, 1.0], [1, 1]) == 0.0


@pytest.mark.parametrize("edge", range(1, ECE_BINS))
def test_an_edge_belongs_to_the_bin_below_it(edge):
    """With its neighbour below in the same bin the gaps cancel; with that above they would add up."""
    at, half = edge / ECE_BINS, 0.5 / ECE_BINS
    below, above = at - half, at + half
    same = abs((1 - at) + (0 - below)) / 2
    apart = (abs(1 - at) + abs(0 - above)) / 2
    assert ece([at, below], [1, 0]) == pytest.approx(same, rel=1e-12)
    assert ece([at, above], [1, 0]) == pytest.approx(apart, rel=1e-12)
    assert same != pytest.approx(apart)


def test_a_probability_of_zero_is_counted():
    assert ece([0.0], [1]) == 1.0


def test_coverage_counts_the_edge_as_covered():
    one = torch.ones(4, 1).double()
    oracle = torch.tensor([[1.96], [-1.96], [1.9600001], [0.0]], dtype=torch.float64)
    given = Predictive("regression", torch.zeros(4, 1).double(), 1.0, None, oracle, None)
    assert score(one, given).values["coverage95"] == 0.75
