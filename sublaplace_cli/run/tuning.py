"""Prior precisions and noise variance that the spec leaves open, chosen by the data.

`marglik`: by the Laplace marginal likelihood. `{tune: nll}`: by the predictions on the validation rows. Both use the
full posterior or, in an evaluation of one sub-network with `--full none`, that sub-network.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ..core.jacobian.rows import Jacobian
from ..core.omega.gram import gram
from ..core.omega.row_sums import column_chunks, row_norms
from ..core.omega.weighting import weigh_columns
from ..core.posterior.full import full_bytes
from ..core.tuning import marglik, nll
from ..core.tuning.marglik import Evidence, Optimum, maximise
from ..core.tuning.nll import Spectrum, minimise
from ..errors import Reason, RunError, UserError
from ..files.artifacts.artifact import Artifact
from .hyperparameters import Hyperparameters, OpenHyperparameters, with_noise
from .problem import Problem, Rows
from .project import prior_vector
from .run import Run
from .selections import first_selection
from .store import Content, Key

NAME = "hyperparameters"


def tune(run: Run, rows: Rows, open_parts: OpenHyperparameters) -> Hyperparameters:
    """The hyperparameters of a run, with the open ones chosen by the data."""
    start = _start(run, open_parts)
    S = _subnet(run, rows, start)

    def make() -> Optimum:
        if open_parts.by_nll:
            return _by_nll(run, rows, start, S)
        sigma2 = start.noise_variance or 1.0
        evidence = _evidence(run, rows, start, open_parts.globs, S)
        return maximise(evidence, open_parts.numbers, sigma2, open_parts.open, open_parts.noise_is_open)

    best = run.store.get(Key(NAME, NAME, step="tune"), make, _read, _content).value
    settled = _settled(run, start, open_parts, best)
    tuned = _report(run, open_parts, start, best, "the sub-network" if S is not None else "the full posterior")
    return replace(settled, tuned={**tuned, "prior_precision": settled.prior_precision})


def _start(run: Run, open_parts: OpenHyperparameters) -> Hyperparameters:
    """Open prior precisions at 1, open noise at the residual mean square."""
    asked = run.project.spec.posterior.prior_precision
    prior = prior_vector(asked, run.layout, run.project.loaded.path).to(run.device)
    return Hyperparameters(asked, prior, with_noise(run, lambda: run.outputs("train")))


def _settled(run: Run, start: Hyperparameters, open_parts: OpenHyperparameters, best: Optimum) -> Hyperparameters:
    prior_precision = open_parts.prior_precision(best.alphas)
    prior = prior_vector(prior_precision, run.layout, run.project.loaded.path).to(run.device)
    likelihood = start.likelihood.with_noise(best.sigma2) if open_parts.noise_is_open else start.likelihood
    return Hyperparameters(prior_precision, prior, likelihood)


def _report(
    run: Run, open_parts: OpenHyperparameters, start: Hyperparameters, best: Optimum, whose: str
) -> dict[str, Any]:
    """Say what was found; returns the part of the result about it."""
    criterion = "nll" if open_parts.by_nll else "log_evidence"
    bounds = [nll.LEAST_ALPHA, nll.MOST_ALPHA] if open_parts.by_nll else [marglik.LEAST, marglik.MOST]
    what = "nll on the validation rows" if open_parts.by_nll else "marginal likelihood"
    sigma2 = None if start.noise_variance is None else best.sigma2
    shown = ", ".join(f"{alpha:.4g}" for alpha in best.alphas)
    run.reporter.note(
        f"{what} of {whose}: prior precision {shown}"
        + ("" if sigma2 is None else f", noise variance {sigma2:.4g}")
        + f"; {criterion} {best.start_value:.6g} → {best.value:.6g}"
    )
    if best.at_a_bound:
        run.reporter.warn(f"the best {criterion} is at a bound: the data do not determine this number")
    begun = {"prior_precision": 1.0, "noise_variance": start.noise_variance, criterion: best.start_value}
    return {
        "by": f"{what} of {whose}",
        "prior_precision": None,
        "noise_variance": sigma2,
        criterion: best.value,
        "start": begun,
        "bounds": bounds,
    }


def _subnet(run: Run, rows: Rows, start: Hyperparameters) -> Tensor | None:
    """The one sub-network that the numbers are for; None for the full posterior."""
    subnets = [choice for choice in run.choices if choice.call.selects]
    if run.job.posterior.full != "none" or len(subnets) != 1:
        return None
    (choice,) = subnets
    if choice.call.own_code or choice.retain is not None:
        return None
    return first_selection(Problem(run, rows, start), choice)


def _inside(run: Run, S: Tensor | None) -> Tensor:
    """Which parameters the numbers are for (p,)."""
    inside = torch.full((run.layout.size,), S is None, dtype=torch.bool, device=run.device)
    if S is not None:
        inside[S] = True
    return inside


def _content(best: Optimum) -> Content:
    numbers = [best.sigma2, best.value, best.start_value, float(best.at_a_bound)]
    tensors = {"alphas": best.alphas, "others": numbers}
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in tensors.items()}, {}


def _read(artifact: Artifact) -> Optimum:
    sigma2, value, start_value, at_a_bound = artifact.tensor("others", (4,)).tolist()
    return Optimum(tuple(artifact.tensor("alphas").tolist()), sigma2, value, start_value, bool(at_a_bound))


def _evidence(run: Run, rows: Rows, start: Hyperparameters, globs: tuple[str, ...], S: Tensor | None) -> Evidence:
    n_terms = len(run.split("train")) * run.passes.n_outputs
    _require_room(run, len(globs) + 2, n_terms)
    theta = run.layout.flatten(run.passes.model).double()
    inside, group_of = _inside(run, S), _group_of(run, globs)
    groups = [(group_of == number) & inside for number in range(len(globs))]
    train = rows.train.jacobian
    root = start.likelihood.kernel_root(train.outputs)
    kernels = [_kernel(run, train, train, group, root) for group in groups]
    if len(kernels) == 1:
        kernels = [torch.linalg.eigvalsh(kernels[0]).clamp(min=0.0)]
    squares = [float(theta[group].square().sum()) for group in groups]
    targets = run.targets("train")
    if targets is None:
        raise UserError("posterior: marglik needs the targets of the training rows")
    return Evidence(kernels, squares, n_terms, *start.likelihood.fit_terms(train.outputs, targets))


def _group_of(run: Run, globs: tuple[str, ...]) -> Tensor:
    """For each parameter the number of its group: that of the first glob that matches its name."""
    groups = torch.zeros(run.layout.size, dtype=torch.int64, device=run.device)
    for parameter in run.layout.parameters:
        groups[parameter.span] = next(i for i, glob in enumerate(globs) if fnmatchcase(parameter.name, glob))
    return groups


def _kernel(run: Run, left: Jacobian, train: Jacobian, inside: Tensor, root: Tensor | None) -> Tensor:
    """Gram matrix of rows with the training rows over these parameters, for a unit prior."""
    prior = torch.where(inside, 1.0, torch.inf).to(torch.float64)  # infinite precision leaves a parameter out
    K = gram(left, train, prior, run.memory, progress=run.reporter.progress)
    if root is not None:
        K = weigh_columns(K, root, in_place=True)
        K = K if left is not train else weigh_columns(K.T.contiguous(), root, in_place=True)
    return K


def _require_room(run: Run, matrices: int, rows: int) -> None:
    needed = matrices * full_bytes(rows)
    if needed > run.memory:
        raise RunError(
            f"tuning over {rows} training rows needs about {needed / 2**30:.1f} GiB, more than the "
            f"{run.memory / 2**30:.1f} GiB allowed",
            reason=Reason.NO_ROOM_FOR_TUNING,
        )


def _by_nll(run: Run, rows: Rows, start: Hyperparameters, S: Tensor | None) -> Optimum:
    """The one prior precision whose posterior predicts the validation rows best."""
    _require_room(run, 3, len(run.split("train")) * run.passes.n_outputs)
    validation, train = rows.validation.jacobian, rows.train.jacobian
    targets = run.targets("validation")
    if targets is None:
        raise UserError("posterior.prior_precision: the validation rows have no targets to tune on")
    inside, root = _inside(run, S), start.likelihood.root(train.outputs)
    K, cross = _kernel(run, train, train, inside, root), _kernel(run, validation, train, inside, root).T
    if S is None:
        norms = row_norms(validation, torch.ones_like(start.prior), run.memory)
    else:
        norms = torch.cat([chunk.square_().sum(0) for _, chunk in column_chunks(validation, S, run.memory)])
    spectrum, f = Spectrum.of(K, cross, norms), validation.outputs

    def loss(alpha: float) -> float:
        std = spectrum.variance(alpha).reshape(f.shape).sqrt()
        found = float(start.likelihood.nll(f, std, targets).mean())
        return found if abs(found) < float("inf") else float("inf")

    alpha, value = minimise(loss)
    at_a_bound = not nll.LEAST_ALPHA * 1.01 < alpha < nll.MOST_ALPHA / 1.01
    return Optimum((alpha,), start.noise_variance or 1.0, value, loss(1.0), at_a_bound)
