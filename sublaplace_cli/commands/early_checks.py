"""Checks of the options and the run before any computation."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..catalog import load_check
from ..core.selectors import SelectorFacts
from ..core.tuning.conformal import least_rows
from ..errors import Reason, RunError, UserError
from ..files.data.datasets import Split
from ..files.data.labels import described
from ..files.networks.imports import load_function
from ..results.limits import Limit
from ..run.job import Job
from ..run.method_calls import Choice
from ..run.output_files import check_predictions, protect_inputs
from ..run.project import ADD_VALIDATION
from ..run.rows.sampled import require_all_outputs
from ..run.run import Run
from ..sizes import format_bytes
from .sweep import is_sweep

MOST_CLASSES_NAMED = 5
SMALL_COVARIANCES = 2**26  # bytes that are held whatever the budget
COVARIANCES_AT_ONCE = 2  # of all test rows: those of the prior, and those of a posterior


def check_sweep(job: Job) -> None:
    """Only `evaluate` runs over several checkpoints or seeds."""
    if is_sweep(job) and (job.command != "evaluate" or job.posterior.posterior is not None):
        what = job.command if job.posterior.posterior is None else "evaluate --posterior"
        raise UserError(
            f"{what} takes one checkpoint and one seed",
            hint=f'call it once for each: for c in runs/*.pt; do sublaplace {job.command} --checkpoint "$c"; done',
        )
    if job.compute.dry_run and job.posterior.posterior is not None:
        raise UserError("--dry-run cannot be combined with --posterior, which writes no artifact")
    if job.outputs.predictions is not None and job.choices:
        check_predictions(job.outputs.predictions, 2 if is_sweep(job) else len(job.choices))


def check_run(run: Run) -> None:
    """Checks that need the network and the data: choices, output files, pictures."""
    protect_inputs(run)
    has_fixed_order = run.project.spec.data.classes is not None or run.job.posterior.posterior is not None
    rows = run.split("test" if run.job.command == "evaluate" else "train")
    for note in _note_on_labels(rows, has_fixed_order):
        run.reporter.note(note)
    if run.job.project.test_files and run.project.loaded.spec.data.test_sets:
        run.reporter.note("--test replaces the test rows of the spec; to compare with their file, name it too")
    for own in run.tests if run.job.command == "evaluate" else ():
        if run.split(own.split).targets is None:
            missing = "metrics that compare with them are missing"
            run.reporter.note(f"the {own.split} rows have no targets: {missing}")
    for choice in run.choices:
        _check_choice(run, choice)
    _check_posterior(run)
    if run.job.command == "evaluate":
        if run.job.posterior.full == "auto" and run.full_is_certified:
            run.reporter.note(_certified(run.full_bytes, run.memory, run.job.compute.tolerance))
        n_rows = sum(len(run.split(own.split)) for own in run.tests)
        _check_covariances(n_rows, run.passes.n_outputs, run.memory)
    if run.job.outputs.predictions is not None:
        check_predictions(run.job.outputs.predictions, 1, len(run.tests))
    _check_limits(run.job.limits, [own.name for own in run.tests if own.name is not None])
    if run.job.posterior.conformal is not None:
        _check_conformal(run, run.job.posterior.conformal, run.job.posterior.conformal_by)
    kind = run.job.outputs.plot_kind
    if kind == "map" and run.choices and not any(choice.call.selects for choice in run.choices):
        raise UserError("--plot-kind map: no method of this evaluation chooses a sub-network")
    if kind == "ood" and not run.project.spec.data.ood_sets:
        raise UserError("--plot-kind ood: there is no split ood in the spec", hint="add data.splits.ood")
    if kind in ("calibration", "risk-coverage") and run.split("test").targets is None:
        raise UserError(f"--plot-kind {kind}: the test rows have no targets")


def _note_on_labels(split: Split, has_fixed_order: bool) -> Iterator[str]:
    """Which number each label got."""
    if split.classes is not None:
        order = "; sorted: if the network's outputs are in another order, set data.classes"
        yield f"class labels: {described(split.classes)}{'' if has_fixed_order else order}"


def _check_limits(limits: Sequence[Limit], names: Sequence[str]) -> None:
    """A limit of the command line that names a set of test rows must be about one of those that are there."""
    for limit in limits:
        if limit.set is not None and (len(names) < 2 or limit.set not in names):
            found = f"the sets are {', '.join(names)}" if len(names) > 1 else "there is one set only"
            hint = "name sets with --test NAME=FILE or data.splits.test" if len(names) < 2 else None
            raise UserError(f"a limit names the set of test rows '{limit.set}', but {found}", hint=hint)


def _check_choice(run: Run, choice: Choice) -> None:
    """Each method has its own check in its own file."""
    call, command = choice.call, run.job.command
    if call.makes_features and command == "select":
        raise UserError(
            f"select needs a method that chooses parameters; '{call.name}' makes features of all of them",
            hint=f"fit it with: sublaplace fit --method {call.name}",
        )
    if not call.is_compact and (command == "select" or (command == "fit" and not call.is_full)):
        raise UserError(
            f"{command} needs a method that chooses parameters; '{call.name}' is a reference for evaluate",
            hint="use it with: sublaplace evaluate --method " + call.name,
        )
    if call.own_code:
        options = run.project.options
        load_function(call.name, f"--method {call.name}", options.allow_code, run.project.loaded.folder)
        return
    check = load_check(call.method)
    if check is not None and call.is_compact:
        facts = (run.layout, run.network.last_linear, run.job.selection.pool, call.pattern)
        check(SelectorFacts(*facts, all_outputs=not run.samples(run.job.selection.reference)), choice.k)
    elif check is not None:
        check(run)


def _check_sampled(run: Run) -> None:
    """What needs all outputs of rows that have combinations of them only."""
    if run.job.selection.score == "unweighted" and run.samples(run.job.selection.reference):
        problem = "--score unweighted needs all outputs of the reference rows, not random combinations of them"
        raise UserError(problem, reason=Reason.OUTPUTS_ARE_SAMPLED)
    if run.job.command in ("fit", "evaluate") and run.rescale in ("scale", "hybrid"):
        require_all_outputs(run.passes, f"--rescale {run.rescale}")
    for call in (choice.call for choice in run.choices):
        if call.method.needs_full and not call.is_full and not run.calibrates:  # fitted to left-out variances
            require_all_outputs(run.passes, f"--method {call.name}")


def _check_posterior(run: Run) -> None:
    _check_sampled(run)
    if run.job.posterior.link is not None and run.link is None:
        raise UserError(f"--link is for classes: the task is {run.project.spec.task}")
    if run.calibrates_noise and not run.calibrates and run.job.posterior.posterior is None:
        raise UserError("posterior.noise_variance: calibrated needs --rescale calibrated, which fits both")
    if run.calibrates and run.job.posterior.posterior is None:
        run.check_held_out(f"--rescale {run.rescale}")
    if hasattr(run.project.spec.posterior.prior_precision, "tune") and run.job.posterior.posterior is None:
        run.check_held_out("posterior.prior_precision")
    if run.link == "probit" and run.passes.n_outputs > 1:
        run.reporter.note(
            "--link probit: the probabilities depend on a constant that softmax ignores; integral and mean-field do not"
        )
    asked, calls = run.job.posterior, [choice.call for choice in run.choices]
    if asked.full == "bracket" and (run.fitted_rescale != "none" or not any(call.selects for call in calls)):
        raise UserError(
            "--full bracket needs a sub-network without --rescale: it is the lower bound",
            hint="for example: --method gradient --k 1000 --full bracket",
        )
    if run.job.command == "fit" and any(call.is_full for call in calls) and asked.rescale not in (None, "none"):
        raise UserError("--rescale is for sub-networks: the full posterior leaves nothing out")


def _certified(needed: int, memory: int, tolerance: float) -> str:
    """What `auto` did, and why."""
    matrix = f"the Gram matrix of the full posterior needs {format_bytes(needed)}, more than the {format_bytes(memory)}"
    return f"{matrix} allowed: its σ are certified to within ± {100 * tolerance:g} % instead (--full, --tolerance)"


def _check_covariances(n_rows: int, n_outputs: int, memory: int) -> None:
    """With many classes the C × C covariances of the test rows may be larger than anything else."""
    needed = 8 * COVARIANCES_AT_ONCE * n_rows * n_outputs**2
    if needed > max(memory, SMALL_COVARIANCES):
        found = f"the covariances of {n_outputs} outputs at {n_rows} test rows need about {format_bytes(needed)}"
        hint = "use fewer test rows (data.splits.test.n), or raise --memory"
        raise RunError(f"{found}, more than the {format_bytes(memory)} allowed", hint=hint)


def _check_conformal(run: Run, level: float, by: str | None) -> None:
    """It needs rows of its own with targets, enough for a finite quantile: with fewer, a region is everything."""
    origins, split = run.splits.origins, run.split("validation")
    for other in ("train", "test"):
        if origins["validation"] == origins[other]:
            raise UserError(f"--conformal: the validation rows are the {other} rows", hint=ADD_VALIDATION)
    if split.targets is None:
        raise UserError("--conformal: the validation rows have no targets to compare with")
    if by is not None and run.link is None:
        raise UserError(f"--conformal-by {by} is for classes: the task is {run.project.spec.task}")
    counts = {"": len(split)}
    if by is not None:
        per_class = np.bincount(split.targets, minlength=max(2, run.passes.n_outputs))
        counts = {f" of class {label}": int(count) for label, count in enumerate(per_class)}
    few = [f"{count}{whose}" for whose, count in counts.items() if count < least_rows(level)]
    if few:
        raise UserError(
            f"--conformal {level:g} needs at least {least_rows(level)} validation rows"
            f"{'' if by is None else f' of each {by}'}, there are {', '.join(few[:MOST_CLASSES_NAMED])}",
            hint="lower the level, or add rows to data.splits.validation",
        )
