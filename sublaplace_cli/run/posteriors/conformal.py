"""Conformal quantiles of every prediction, from the targets of the validation rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ...core.gaussian import Gaussian
from ...core.likelihoods import Likelihood
from ...core.prediction import Comparison, Prediction
from ...core.tuning.conformal import Conformal, ConformalRule
from ..job import PosteriorOptions
from ..problem import Problem
from .calibration import at_other_rows


def conformal_of_all(problem: Problem, judged: Sequence[Prediction], there: Mapping[str, Prediction]) -> Conformal:
    """For predictions of the test rows; `there` are those of the validation rows, by name, before a calibration."""
    run, rows = problem.run, problem.held_out
    held_out = at_other_rows(judged, there, rows.f)
    with run.store.timed("conformal"):
        return fit_conformal(run.job.posterior, problem.hyperparameters.likelihood, held_out, rows.targets)


def fit_conformal(
    asked: PosteriorOptions, likelihood: Likelihood, held_out: Mapping[Gaussian, Gaussian], targets: Tensor | None
) -> Conformal:
    """Quantiles of outputs at the test rows, by the same method's outputs at the validation rows."""
    assert asked.conformal is not None, "it was asked for"
    assert targets is not None, "they were checked before"
    rule = ConformalRule(likelihood, asked.conformal, by_class=asked.conformal_by is not None)
    return Conformal(rule, len(targets), {here: rule.fit(there, targets) for here, there in held_out.items()})


def conformal_details(asked: PosteriorOptions, known: Comparison, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Level, rows and quantiles for a result; empty if there are none."""
    if known.conformal is None:
        return {}
    quantiles = [
        {"method": each.method, "k": each.k, "quantiles": known.conformal.numbers(each.outputs)} for each in predictions
    ]
    about = {"level": asked.conformal, "by": asked.conformal_by, "split": "validation", "rows": known.conformal.n_rows}
    return {"conformal": {**about, "quantiles": quantiles}}
