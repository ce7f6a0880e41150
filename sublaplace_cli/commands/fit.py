"""`sublaplace fit`: the posterior over the chosen parameters, over features, or over all parameters."""

from typing import Any

from ..catalog import FULL
from ..core.posterior.full import FullPosterior
from ..core.posterior.subnet import SubnetPosterior
from ..run.choosing.features import choose
from ..run.input_files import read_indices
from ..run.posteriors.fitting import fit as fit_path
from ..run.problem import open_problem
from ..run.run import Run


def fit(run: Run) -> dict[str, Any]:
    """Rows → Ω → select → fit."""
    named = run.job.posterior.indices
    chosen = None if named is None else read_indices(run, named)  # first: a wrong file must fail before the long work
    problem = open_problem(run)
    posterior: FullPosterior | SubnetPosterior
    if run.choices and run.choices[0].call.is_full:
        method, k, posterior, rescaling = FULL, run.layout.size, problem.full.exact, {}
    else:
        if chosen is None:
            (chosen,) = choose(problem, run.choices).values()
        (fitted,) = fit_path(problem, [chosen])
        method, k, posterior = chosen.method, chosen.k, fitted.posterior
        rescaling = {"rescale": fitted.rescale.c, "remainder": fitted.rescale.b}
    n_train, noise_variance = len(run.split("train")), problem.hyperparameters.noise_variance
    values = {
        "n_params": run.layout.size,
        "n_train": n_train,
        "method": method,
        "k": k,
        "noise_variance": noise_variance,
        "ipv": (noise_variance or 1.0) / n_train * posterior.freedom,
        "condition": posterior.condition,
    }
    return problem.with_tuning(values | rescaling)
