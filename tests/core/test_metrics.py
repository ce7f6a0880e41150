"""Every number of a result row: against the reference, against scipy and quadrature, and at its edges."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import reference
import torch
from core.problems import random_matrix
from scipy import integrate, stats

from sublaplace_cli import catalog
from sublaplace_cli.commands.scoring.measuring import measured_row
from sublaplace_cli.core.gaussian import Gaussian
from sublaplace_cli.core.likelihoods.binary import Binary
from sublaplace_cli.core.likelihoods.classes import ECE_BINS, calibration_error
from sublaplace_cli.core.likelihoods.multiclass import Multiclass
from sublaplace_cli.core.likelihoods.regression import Regression
from sublaplace_cli.core.posterior.rescale import Rescale
from sublaplace_cli.core.prediction import Absent, Comparison, FullNumbers, Prediction
from sublaplace_cli.core.tuning.calibration import Calibration, Factor
from sublaplace_cli.results.result import Row

M = 40
TASKS = {"regression": 1, "regression-3": 3, "regression-own-noise": 2, "binary": 1, "multiclass": 4}
MEANS_WITH_ERRORS = ("w2", "coverage95", "coverage95_total", "nll", "crps", "accuracy", "brier", "signed_ece")
OF_THE_POSTERIOR = {"rescale", "remainder", "ipv", "discrepancy", "retained"}
NOT_ASKED_FOR = {f"conformal_{what}" for what in ("coverage", "coverage_se", "size", "size_se")}
OF_OOD_ROWS = {f"ood_{kind}_{score}" for kind in ("auroc", "fpr95") for score in ("std", "entropy", "mi")}
EVERY_KEY = {
    *OF_OOD_ROWS,  # tested with the other files of core/ood
    *("mean_std", "w2_relative", "rank", "w2_total", "rmse", "ece", "smooth_ece", "ence", "aurc", "error_rank"),
    *(key for name in MEANS_WITH_ERRORS for key in (name, f"{name}_se")),
    *NOT_ASKED_FOR,
}


@dataclass(frozen=True)
class Known:
    """Outputs of a network at the test rows, and what its predictions are compared with."""

    task: str
    f: torch.Tensor
    comparison: Comparison
    raw: torch.Tensor | None = None  # all outputs, if they are not those of f alone

    @property
    def sigma2(self) -> float | torch.Tensor | None:
        """The noise variance, of all rows or of each."""
        likelihood = self.comparison.likelihood
        return reference.own_noise(self.raw) if self.raw is not None else likelihood.noise_variance

    @property
    def targets(self) -> torch.Tensor:
        return self.comparison.targets

    @property
    def oracle(self) -> torch.Tensor:
        return self.comparison.oracle

    @property
    def std_full(self) -> torch.Tensor:
        return self.comparison.std_full

    def but(self, **changes) -> Known:
        if "std_full" in changes:
            changes["of_full"] = replace(self.comparison.of_full, std=changes.pop("std_full"))
        return replace(self, comparison=replace(self.comparison, **changes))


def made(kind: str, rows: int = M) -> tuple[torch.Tensor, Known]:
    """(std of a method, all that is known of the test rows)."""
    task, C = kind.partition("-")[0], TASKS[kind]
    f = 1.5 * random_matrix(rows, C, seed=1)
    classes = 2 if task == "binary" else C
    targets = random_matrix(rows, C, seed=2) if task == "regression" else (torch.arange(rows) * 7 % 5) % classes
    full = random_matrix(rows, C, seed=3).abs() + 0.1
    std = full * torch.rand(rows, C, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    oracle = f + 0.8 * random_matrix(rows, C, seed=5)
    outputs = "mean-and-log-variance" if kind.endswith("own-noise") else None
    likelihood = catalog.load(catalog.task_of(task, outputs).entry)().with_noise(0.4)
    raw = None if outputs is None else torch.cat([f, random_matrix(rows, C, seed=6)], 1)
    return std, Known(task, f, Comparison(likelihood, 50, targets, oracle, FullNumbers(full, ipv=0.25)), raw)


def spread(f: torch.Tensor, std: torch.Tensor | float) -> Gaussian:
    """Independent outputs."""
    return Gaussian(f, torch.diag_embed(torch.as_tensor(std, dtype=torch.float64).expand(f.shape).square()))


def score(std: torch.Tensor, known: Known, **changes) -> Row:
    # The square root of a square is the number itself in IEEE arithmetic, so that `std` arrives unchanged.
    outputs = spread(known.f, std)
    if known.raw is not None:  # the standard deviations of the log-variances must not matter
        outputs = spread(known.raw, torch.cat([std, 9 * torch.ones_like(std)], 1))
    prediction = Prediction("made", 7, outputs, freedom=6.5, rescale=Rescale(1.25, 0.5))
    return measured_row(known.comparison.about_targets(replace(prediction, **changes)), known.comparison)


def expected(std: torch.Tensor, known: Known) -> dict[str, float]:
    values = reference.closeness(known.std_full, std, known.sigma2)
    values["mean_std"] = float(std.mean())
    values["coverage95"] = float(((known.oracle - known.f).abs() <= 1.96 * std).double().mean())
    ipv = (known.comparison.likelihood.noise_variance or 1.0) / 50 * 6.5
    values |= {"rescale": 1.25, "remainder": 0.5, "ipv": ipv, "discrepancy": 0.25 - ipv, "retained": ipv / 0.25}
    if known.task == "regression":
        return values | reference.regression_metrics(known.targets, known.f, std, known.sigma2)
    return values | reference.classification_metrics(known.task, known.targets, known.f, torch.diag_embed(std.square()))


@pytest.mark.parametrize("kind", TASKS)
def test_every_metric_is_that_of_the_reference(kind):
    std, known = made(kind)
    found, wanted = score(std, known).values, expected(std, known)
    assert set(found) == EVERY_KEY | OF_THE_POSTERIOR
    for name, value in wanted.items():
        # The reference takes the integral behind this one, of a function with kinks, over 4,000 steps.
        assert found[name] == pytest.approx(value, rel=1e-6 if name == "smooth_ece" else 1e-10), name


@pytest.mark.parametrize("kind", TASKS)
def test_what_does_not_apply_is_none_with_a_reason(kind):
    std, known = made(kind)
    scores = score(std, known)
    absent = (
        {"accuracy", "accuracy_se", "brier", "brier_se", "ece", "smooth_ece", "signed_ece", "signed_ece_se"}
        if known.task == "regression"
        else {"coverage95_total", "coverage95_total_se", "crps", "crps_se", "rmse", "w2_total", "ence"}
    )
    absent |= OF_OOD_ROWS | NOT_ASKED_FOR
    assert {name for name, value in scores.values.items() if value is None} == absent
    assert set(scores.why) == absent
    assert all(scores.why.values())


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize(
    ("missing", "reason", "lost"),
    [
        ("targets", "targets", {"nll", "nll_se", "rmse", "crps", "coverage95_total", "accuracy", "brier_se", "ece"}),
        ("targets", "targets", {"aurc", "error_rank", "ence", "smooth_ece", "signed_ece", "signed_ece_se"}),
        ("std_full", "full", {"w2", "w2_se", "w2_relative", "rank", "w2_total"}),
        ("oracle", "oracle", {"coverage95", "coverage95_se"}),
    ],
)
def test_what_is_not_known_is_none_with_its_own_reason(kind, missing, reason, lost):
    std, known = made(kind)
    before = score(std, known)
    after = score(std, known.but(**{missing: None, "absent": Absent(**{reason: "because"})}))
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
    std, known = made(kind)
    values = score(std, known).values
    rows = (known.std_full - std).abs().mean(1)
    assert values["w2_se"] == pytest.approx(float(stats.sem(rows.numpy(), ddof=1)), rel=1e-12)
    inside = ((known.oracle - known.f).abs() <= 1.96 * std).double().mean(1)
    assert values["coverage95_se"] == pytest.approx(float(stats.sem(inside.numpy(), ddof=1)), rel=1e-12)


def test_repeated_outputs_do_not_shrink_the_standard_error():
    std, known = made("regression")
    thrice = {n: getattr(known, n).expand(-1, 3) for n in ("targets", "oracle", "std_full")}
    tripled = replace(known.but(**thrice), f=known.f.expand(-1, 3))
    once, thrice = score(std, known).values, score(std.expand(-1, 3), tripled).values
    for name in ("w2_se", "nll_se", "crps_se", "coverage95_se", "coverage95_total_se", "rmse"):
        assert thrice[name] == pytest.approx(once[name], rel=1e-12)


@pytest.mark.parametrize("kind", TASKS)
def test_one_row_has_no_standard_error(kind):
    std, known = made(kind, rows=1)
    scores = score(std, known)
    assert scores.values["w2"] == pytest.approx(float((known.std_full - std).abs().mean()))
    for name in MEANS_WITH_ERRORS:
        assert scores.values[f"{name}_se"] is None
        if scores.values[name] is not None:
            assert scores.why[f"{name}_se"] == "one row has no standard error"


def test_nll_is_that_of_scipy():
    std, known = made("regression-3")
    total = (std.square() + known.sigma2).sqrt()
    logpdf = stats.norm.logpdf(known.targets.numpy(), known.f.numpy(), total.numpy())
    assert score(std, known).values["nll"] == pytest.approx(-logpdf.mean(), rel=1e-12)


def test_crps_is_the_integral_that_defines_it():
    """∫ (F(t) − 1[t ≥ y])² dt by quadrature on either side of y."""
    std, known = made("regression", rows=6)
    values = []
    for f, s, y in zip(known.f[:, 0].tolist(), std[:, 0].tolist(), known.targets[:, 0].tolist(), strict=True):
        normal = stats.norm(f, math.sqrt(s * s + known.sigma2))
        below = integrate.quad(lambda t: normal.cdf(t) ** 2, -60, y, epsabs=1e-13, epsrel=1e-13, limit=400)[0]  # noqa: B023
        above = integrate.quad(lambda t: normal.sf(t) ** 2, y, 60, epsabs=1e-13, epsrel=1e-13, limit=400)[0]  # noqa: B023
        values.append(below + above)
    assert score(std, known).values["crps"] == pytest.approx(sum(values) / 6, rel=1e-9)


def test_the_full_posterior_is_at_no_distance_from_itself():
    _, known = made("regression-3")
    values = score(known.std_full, known).values
    assert (values["w2"], values["w2_se"], values["w2_relative"], values["w2_total"]) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("kind", TASKS)
def test_rank_is_the_spearman_correlation_of_scipy(kind):
    """Also with equal values, and without regard to any increasing function of σ."""
    std, known = made(kind)
    std = (4 * std).ceil()
    pairs = [stats.spearmanr(std[:, c], known.std_full[:, c]).statistic for c in range(std.shape[1])]
    found = score(std, known).values["rank"]
    assert found == pytest.approx(sum(pairs) / len(pairs), rel=1e-12)
    assert score(std**3, known).values["rank"] == found
    assert score(known.std_full**2, known).values["rank"] == pytest.approx(1, rel=1e-12)
    assert score(1 / known.std_full, known).values["rank"] == pytest.approx(-1, rel=1e-12)


def test_equal_standard_deviations_have_no_order():
    std, known = made("regression-3")
    std[:, 1] = 0.1 * (1 + 1e-15 * torch.arange(M))  # the same up to rounding
    scores = score(std, known)
    assert scores.values["rank"] is None
    assert "no order" in scores.why["rank"]


def test_a_full_posterior_without_spread_has_no_relative_distance():
    std, known = made("regression")
    scores = score(std, known.but(std_full=torch.zeros_like(std)))
    assert scores.values["w2_relative"] is None
    assert "no spread" in scores.why["w2_relative"]
    assert scores.values["w2"] == pytest.approx(float(std.mean()))


def test_numbers_that_are_not_finite_are_none():
    std, known = made("regression")
    scores = score(std, known.but(targets=torch.full_like(std, 1e200)))
    assert scores.values["rmse"] is None
    assert scores.values["nll"] is None
    assert scores.why["rmse"] == scores.why["aurc"] == scores.why["error_rank"] == "not a finite number"


def test_without_a_posterior_all_rows_of_a_regression_are_equally_uncertain():
    std, known = made("regression-3")
    scores = score(torch.zeros_like(std), known)
    rmse = scores.values["rmse"]
    assert scores.values["aurc"] == pytest.approx(rmse**2, rel=1e-12)
    assert scores.values["ence"] == pytest.approx(abs(known.sigma2**0.5 - rmse) / known.sigma2**0.5, rel=1e-12)
    assert scores.values["error_rank"] is None
    assert "no order" in scores.why["error_rank"]


def test_error_rank_of_one_output_is_that_of_scipy():
    """|y − f| against σ: the same order as that of the squared error and of the std with noise."""
    std, known = made("regression")
    expected = stats.spearmanr((known.targets - known.f).abs()[:, 0], std[:, 0]).statistic
    assert score(std, known).values["error_rank"] == pytest.approx(expected, rel=1e-12)


def test_error_rank_of_classes_is_that_of_scipy():
    std, known = made("multiclass")
    p = Multiclass().log_probabilities(spread(known.f, std)).exp()
    expected = stats.spearmanr((p.argmax(1) != known.targets).double(), 1 - p.amax(1)).statistic
    assert score(std, known).values["error_rank"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["regression", "regression-3", "binary", "multiclass"])
def test_factors_that_differ_by_fold_do_not_order_the_rows(kind):
    std, known = made(kind)
    by_fold = spread(known.f, std * (1.0 + torch.arange(M) % 2).unsqueeze(1))
    calibration = Calibration(Factor(1.0, at_a_bound=False), (1.0, 4.0), common=spread(known.f, std))
    values = [
        [score(std, known, **changes).values[name] for name in ("aurc", "error_rank")]
        for changes in ({"outputs": by_fold, "calibration": calibration}, {"outputs": by_fold}, {})
    ]
    assert values[0] != values[1]
    if known.task == "regression":  # the most probable class may change with the spread
        assert values[0] == values[2]


def test_a_spread_far_below_the_noise_keeps_its_order():
    std, known = made("regression")
    expected, tiny = score(std, known).values, score(1e-9 * std, known).values
    assert (tiny["aurc"], tiny["error_rank"]) == (expected["aurc"], expected["error_rank"])


def test_rows_that_are_nearly_certain_keep_their_order():
    """1 − p rounds to 0 at logits from 37 on."""
    f = torch.linspace(40, 60, 5, dtype=torch.float64).unsqueeze(1)
    known = Known("binary", f, Comparison(Binary(), 1, torch.tensor([0, 1, 1, 1, 1]), None))
    assert score(torch.zeros_like(f), known).values["aurc"] == pytest.approx(1 / 25, rel=1e-12)


@pytest.mark.parametrize("kind", TASKS)
def test_the_order_of_the_rows_changes_nothing(kind):
    std, known = made(kind)
    std = (4 * std).ceil()  # many ties
    order = torch.randperm(M, generator=torch.Generator().manual_seed(0))
    names = ("targets", "oracle", "std_full")
    raw = None if known.raw is None else known.raw[order]
    moved = replace(known.but(**{name: getattr(known, name)[order] for name in names}), f=known.f[order], raw=raw)
    before, after = score(std, known).values, score(std[order], moved).values
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert after[name] == (None if value is None else pytest.approx(value, rel=1e-9)), name


def test_no_epistemic_spread_leaves_the_plain_probabilities():
    _, known = made("multiclass")
    p = Multiclass().log_probabilities(Gaussian.certain(known.f)).exp()
    torch.testing.assert_close(p, torch.softmax(known.f, 1), rtol=1e-13, atol=0)


def test_the_probit_correction_divides_every_logit():
    f, std = torch.tensor([[3.0, -1.0]], dtype=torch.float64), torch.tensor([[2.0, 0.5]], dtype=torch.float64)
    z = [3.0 / math.sqrt(1 + math.pi * 4.0 / 8), -1.0 / math.sqrt(1 + math.pi * 0.25 / 8)]
    found = Multiclass("probit").log_probabilities(spread(f, std)).exp()
    assert float(found[0, 0]) == pytest.approx(1 / (1 + math.exp(z[1] - z[0])), rel=1e-13)


def test_one_logit_is_two_classes():
    f = torch.tensor([[1.2]], dtype=torch.float64)
    p = Binary().log_probabilities(Gaussian.certain(f)).exp()
    assert p[0].tolist() == pytest.approx([1 / (1 + math.exp(1.2)), 1 / (1 + math.exp(-1.2))], rel=1e-13)


@pytest.mark.parametrize("y", [0, 1])
def test_nll_stays_finite_for_a_certain_logit(y):
    """−log σ(±800): a probability of 0 in float64, but not an infinite loss."""
    f = torch.tensor([[800.0]], dtype=torch.float64)
    known = Known("binary", f, Comparison(Binary(), 1, torch.tensor([y]), None))
    assert score(torch.zeros(1, 1).double(), known).values["nll"] == pytest.approx(0.0 if y else 800.0)


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
    known = Known("regression", torch.zeros(4, 1).double(), Comparison(Regression(1.0), 1, None, oracle))
    assert score(one, known).values["coverage95"] == 0.75


@pytest.mark.parametrize("kind", TASKS)
def test_bounds_of_the_full_posterior_add_two_metrics(kind):
    std, known = made(kind)
    low, high = 0.5 * known.std_full, 2 * known.std_full
    values = score(std, known.but(of_full=FullNumbers(std_bounds=(low, high)))).values
    assert set(values) == EVERY_KEY | OF_THE_POSTERIOR | {"w2_low", "w2_high"}
    least = ((low - std).clamp(min=0) + (std - high).clamp(min=0)).mean()
    assert values["w2_low"] == pytest.approx(float(least), rel=1e-12)
    assert values["w2_high"] == pytest.approx(float(torch.maximum(high - std, (low - std).abs()).mean()), rel=1e-12)
    assert values["w2_low"] <= score(std, known).values["w2"] <= values["w2_high"]


def test_a_method_without_a_posterior_has_no_ipv():
    std, known = made("regression")
    row = score(std, known, freedom=None)
    for name in ("ipv", "discrepancy", "retained"):
        assert row.values[name] is None
        assert row.why[name] == "made has no posterior"


def test_a_full_network_without_ipv_has_nothing_to_retain():
    std, known = made("regression")
    assert score(std, known.but(of_full=FullNumbers(ipv=0.0))).why["retained"] == "the full network's ipv is 0"
    absent = score(std, known.but(of_full=FullNumbers(), absent=Absent(full="because")))
    assert absent.why["retained"] == absent.why["discrepancy"] == "because"
    assert absent.values["ipv"] is not None


def test_a_scale_that_could_not_be_fitted_is_none():
    std, known = made("regression")
    row = score(std, known, rescale=Rescale(None, 0.25))
    assert (row.values["rescale"], row.values["remainder"]) == (None, 0.25)
    assert "variance is 0" in row.why["rescale"]


def test_a_distance_between_spreads_alone_is_marked():
    std, known = made("regression")
    row = score(std, known, own_mean=True)
    assert row.values["w2"] == score(std, known).values["w2"]
    assert "mean" in row.why["w2"]
