"""Every metric of a result row: name, definition, direction, where it is shown.

To add one: write its function in `core/metrics.py` and add one entry here; every format, gate and mean picks it up.
"""

from dataclasses import dataclass
from typing import Literal

METRIC_VERSION = 2  # raise it when a definition changes: older baselines are then not compared
NOMINAL = 0.95  # the coverage of a 95 % interval


@dataclass(frozen=True)
class Column:
    """A column of the tables for people; `MOST_WANTED` says which of them a short table has."""

    hidden_at: float | None = None  # shown only if some row has another value
    with_error: bool = False  # the standard error has its own column


@dataclass(frozen=True)
class Metric:
    """One metric. σ is the epistemic standard deviation of a method, σ₀² the noise variance."""

    name: str
    better: Literal["lower", "higher", "nominal", "level"] | None  # "level": no less than the conformal level
    definition: str
    column: Column | None = None  # None: only in JSON, JSON lines, CSV and TSV
    per_row: bool = False  # a mean over rows, with a standard error NAME_se
    needs: Literal["oracle", "bracket", "conformal", "ood"] | None = (
        None  # "bracket": only if the full posterior is bounded
    )
    nominal: float = NOMINAL  # the value that a "nominal" metric should have
    module: str = "sublaplace_cli.core.metrics"  # of the function that computes it, which has the same name


def _ood(name: str, better: Literal["lower", "higher"], definition: str, column: Column | None = None) -> Metric:
    return Metric(name, better, definition, column, needs="ood", module="sublaplace_cli.core.ood.metrics")


# In the order of the text table; a JSON row has those that need a bracket last.
_TABLE = (
    Metric("rescale", None, "factor c of the rescaled variance (1: as it is)", Column(hidden_at=1.0)),
    Metric("remainder", None, "factor b of the variance outside the sub-network", Column(hidden_at=0.0)),
    Metric("mean_std", None, "mean σ over the test rows", Column()),
    Metric("w2", "lower", "mean |σ_full − σ| over the test rows", Column(with_error=True), per_row=True),
    Metric("w2_low", "lower", "least w2 that the bounds of the full posterior allow", Column(), needs="bracket"),
    Metric("w2_high", "lower", "largest w2 that they allow", Column(), needs="bracket"),
    Metric("w2_relative", "lower", "w2 as a share of mean σ_full", Column()),
    Metric("rank", "higher", "Spearman correlation of σ with σ_full over the test rows", Column()),
    Metric("w2_total", "lower", "mean |√(σ_full² + σ₀²) − √(σ² + σ₀²)| over the test rows"),
    Metric(
        "coverage95", "nominal", "share of the oracle's outputs within 1.96 σ", Column(), per_row=True, needs="oracle"
    ),
    Metric("coverage95_total", "nominal", "share of the targets within 1.96 √(σ² + σ₀²)", Column(), per_row=True),
    Metric("ipv", None, "mean weighted variance over the training rows"),
    Metric("discrepancy", "lower", "ipv of the full network minus ipv"),
    Metric("retained", "higher", "ipv, mean variance over the training rows, as a share of the full one", Column()),
    Metric("nll", "lower", "mean negative log-likelihood of the targets", Column(), per_row=True),
    Metric("rmse", "lower", "root mean squared error of the predicted mean", Column()),
    Metric("crps", "lower", "mean continuous ranked probability score", Column(), per_row=True),
    Metric("accuracy", "higher", "share of the rows whose most probable class is right", Column(), per_row=True),
    Metric("ece", "lower", "calibration error of the most probable class, in 15 bins", Column()),
    Metric("brier", "lower", "mean squared error of the class probabilities", Column(), per_row=True),
    Metric("aurc", "lower", "risk of the most certain rows, mean over all coverages", Column()),
    Metric("error_rank", "higher", "Spearman correlation of the rows' errors with their uncertainties"),
    Metric("ence", "lower", "relative gap of RMSE and predicted root mean variance, in 10 bins"),
    Metric("smooth_ece", "lower", "calibration error of the most probable class, smoothed by a kernel"),
    Metric("signed_ece", "nominal", "mean probability of the top class minus accuracy", per_row=True, nominal=0),
    Metric(
        *("conformal_coverage", "level", "share of the targets in conformal intervals or sets of classes", Column()),
        per_row=True,
        needs="conformal",
    ),
    Metric(
        *("conformal_size", "lower", "mean width of those intervals, or number of classes in those sets", Column()),
        per_row=True,
        needs="conformal",
    ),
    _ood("ood_auroc_std", "higher", "AUROC of σ, out-of-distribution rows against test rows", Column()),
    _ood("ood_auroc_entropy", "higher", "AUROC of the entropy of the classes, likewise", Column()),
    _ood("ood_auroc_mi", "higher", "AUROC of the mutual information of class and parameters, likewise", Column()),
    _ood("ood_fpr95_std", "lower", "share of out-of-distribution rows that pass by σ where 95 % of the test rows do"),
    _ood("ood_fpr95_entropy", "lower", "the same by the entropy of the classes"),
    _ood("ood_fpr95_mi", "lower", "the same by the mutual information of class and parameters"),
)
METRICS = {metric.name: metric for metric in _TABLE}

COLUMNS_OF_A_SHORT_TABLE = 9
# What a short table shows, the most wanted first: what an option asks for is there only if it was asked for.
_ASKED_FOR = (
    *("w2_low", "w2_high", "conformal_coverage", "conformal_size"),
    *("ood_auroc_std", "ood_auroc_entropy", "ood_auroc_mi", "rescale", "remainder"),
)
_BY_TARGETS = {
    "measurements": (
        *("w2_relative", "nll", "rank", "coverage95_total", "mean_std", "retained", "rmse"),
        *("coverage95", "crps", "w2"),
    ),
    "classes": (
        *("w2_relative", "nll", "accuracy", "ece", "rank", "brier", "aurc"),
        *("mean_std", "retained", "coverage95", "w2"),
    ),
}
# A metric of one's own is wanted too: a column that no list names comes before the usual ones.
_LISTED = {*_ASKED_FOR, *(name for names in _BY_TARGETS.values() for name in names)}
_UNLISTED = tuple(metric.name for metric in _TABLE if metric.column and metric.name not in _LISTED)
MOST_WANTED = {kind: (*_ASKED_FOR, *_UNLISTED, *names) for kind, names in _BY_TARGETS.items()}
# By metric: its name, followed by NAME_se if the standard error has its own column.
COLUMN_KEYS = {
    metric.name: (metric.name, f"{metric.name}_se") if metric.column and metric.column.with_error else (metric.name,)
    for metric in _TABLE
}
# Keys of a JSON row between `k` and the remaining standard errors.
_BRACKETS_LAST = sorted(_TABLE, key=lambda metric: metric.needs == "bracket")
ROW_KEYS = tuple(key for metric in _BRACKETS_LAST for key in COLUMN_KEYS[metric.name])
_LISTED_FIRST = (
    *("w2", "w2_relative", "w2_total", "w2_low", "w2_high", "discrepancy", "nll", "rmse", "crps", "ece", "brier"),
    *("aurc", "ence", "smooth_ece", "accuracy", "retained", "rank", "error_rank", "coverage95", "coverage95_total"),
    *("signed_ece", "conformal_coverage", "conformal_size", "mean_std", "ipv", "rescale", "remainder"),
)
# The order in means over runs and in comparisons with a baseline: those with a direction first.
LISTED = (*_LISTED_FIRST, *(name for name in METRICS if name not in _LISTED_FIRST))
