"""The feature maps of methods that make features; the parameters among them are chosen, stored and reused as usual."""

from collections.abc import Sequence

from ...catalog import METHODS, load
from ...errors import UserError
from ...files.artifacts.atomic import digest_of
from ..method_calls import Choice, MethodCall
from ..posteriors.fitting import fit
from ..posteriors.stored_features import description_of
from ..problem import Problem
from .chosen import Chosen
from .selections import FIRST_PATH, RETAINED_ROUNDING, select


def choose(problem: Problem, choices: Sequence[Choice]) -> dict[Choice, Chosen]:
    """What every posterior of these choices is over."""
    subnets = [choice for choice in choices if choice.call.selects]
    found = select(problem, subnets) if subnets else {}
    for choice in choices:
        if choice.call.makes_features:
            found[choice] = _made(problem, choice)
            problem.view(found[choice])  # known before the first fit: one pass over the rows serves all
    return found


def first_features(problem: Problem, choice: Choice) -> Chosen:
    """The features of a choice before the prior is tuned; nothing is stored."""
    return _chosen(problem, choice.call, choice.k or 0)


def _made(problem: Problem, choice: Choice) -> Chosen:
    if choice.retain is not None:
        return _retaining(problem, choice.call, choice.retain)
    assert choice.k is not None, "the default was filled in"
    return _chosen(problem, choice.call, choice.k)


def _chosen(problem: Problem, call: MethodCall, k: int) -> Chosen:
    subset = None if call.method.subset is None else _subset(problem, call.method.subset, k // 2)
    indices = None if subset is None else subset.indices
    features = load(call.method.entry)(k, problem.run.job.selection.seed, indices)
    return Chosen(call.name, features, digest_of([subset and subset.digest, description_of(features)]))


def _subset(problem: Problem, method: str, k: int) -> Chosen:
    """The parameters among the features, chosen, stored and reused as those of a sub-network."""
    choice = Choice(MethodCall(method, METHODS[method]), k)
    return select(problem, [choice])[choice]


def _retaining(problem: Problem, call: MethodCall, fraction: float) -> Chosen:
    """k = auto: the smallest k of a doubling list whose posterior retains this fraction of the full ipv."""
    run, p, full = problem.run, problem.run.layout.size, problem.full.freedom.value
    if full <= 0:
        raise UserError("--k auto: the data say nothing about this network's parameters (the full ipv is 0)")
    k = min(FIRST_PATH, p)
    while True:
        chosen = _chosen(problem, call, k)
        (fitted,) = fit(problem, [chosen])
        retained = fitted.posterior.freedom / full
        if retained >= fraction * (1 - RETAINED_ROUNDING):
            run.reporter.note(f"{call.name}: k = {k} retains {retained:.4f} of the full network's ipv")
            return chosen
        if k == p:
            raise UserError(
                f"--k auto: {call.name} with k = {k}, as many as there are parameters, retains only {retained:.4f} of "
                f"the full network's ipv, less than --retain {fraction:g}",
                hint="lower --retain, or use a method that chooses parameters, such as gradient",
            )
        run.reporter.note(f"{call.name}: k = {k} retains {retained:.4f}, trying a larger k")
        k = min(2 * k, p)
