"""`sublaplace jacobians`: outputs, Jacobians and scores."""

from typing import Any

from ..run.problem import Rows, open_problem
from ..run.run import Run


def jacobians(run: Run) -> dict[str, Any]:
    """Rows → scores; no scores for a single split."""
    asked = run.job.selection
    problem = open_problem(run) if asked.scores_only or asked.split == "all" else None
    if not asked.scores_only:
        rows = Rows(run) if problem is None else problem.rows
        names = ("train", "test", "reference") if asked.split == "all" else (asked.split,)
        for name in (*names, *(test.split for test in run.tests if "test" in names)):
            if name in run.splits.by_name:
                rows.of(name)
    if problem is not None:
        problem.scores  # noqa: B018 (computed and stored)
    values = {
        "n_params": run.layout.size,
        "n_outputs": run.passes.n_outputs,
        "n_train": len(run.split("train")),
        "task": run.project.spec.task,
        "noise_variance": None if problem is None else problem.hyperparameters.noise_variance,
    }
    return values if problem is None else problem.with_tuning(values)
