"""`sublaplace fit`: the posterior over the chosen parameters, or over all of them."""

from typing import Any

from ..catalog import FULL
from ..errors import UserError
from ..run.posteriors import fit as fit_path
from ..run.problem import Problem, Rows, open_problem
from ..run.run import Run
from ..run.selections import select
from ..run.user_files.indices_file import read_indices


def fit(run: Run) -> dict[str, Any]:
    """Rows → Ω → select → fit."""
    named = run.job.posterior.indices
    chosen = None if named is None else read_indices(run, named)  # first: a wrong file must fail before the long work
    rows = Rows(run)
    problem = open_problem(run, rows, rows.noise_outputs())
    if run.choices and run.choices[0].call.is_full:
        return _fit_full(problem)
    if chosen is None:
        (chosen,) = select(problem, problem.scores, run.choices).values()
    (fitted,) = fit_path(problem, [chosen])
    posterior, rescale = fitted.posterior, fitted.rescale
    values = _values(problem, chosen.method, chosen.k, posterior.freedom, posterior.condition)
    return problem.with_tuning({**values, "rescale": rescale.c, "remainder": rescale.b})


def _fit_full(problem: Problem) -> dict[str, Any]:
    full = problem.full
    return problem.with_tuning(_values(problem, FULL, problem.run.layout.size, full.freedom, full.condition))


def check_rescale(run: Run) -> None:
    """Refuse --rescale for the full posterior, which omits no parameters."""
    fits_full = run.job.command == "fit" and any(choice.call.is_full for choice in run.choices)
    if fits_full and run.job.posterior.rescale not in (None, "none"):
        raise UserError("--rescale is for sub-networks: the full posterior leaves nothing out")


def _values(problem: Problem, method: str, k: int, freedom: float, condition: float) -> dict[str, Any]:
    return {
        "n_params": problem.run.layout.size,
        "n_train": len(problem.run.split("train")),
        "method": method,
        "k": k,
        "noise_variance": problem.hyperparameters.noise_variance,
        "ipv": problem.ipv(freedom),
        "condition": condition,
    }
