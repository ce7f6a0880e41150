"""`marglik` in the spec: prior precisions and noise variance by marginal likelihood, before anything rests on them."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from ..catalog import LIKELIHOODS, load
from ..core.evidence import LEAST, MOST, Evidence, Optimum, maximise
from ..core.fitting import full_bytes
from ..core.metrics import log_probabilities
from ..core.precision import gram, weigh_columns
from ..errors import RunError, UserError
from ..files.artifacts import write_artifact
from .inputs import MARGLIK, prior_vector, targets_of
from .jacobians import TUNED_NOISE, noise_variance
from .passes import jacobian_of
from .session import Session

STEM = "hyperparameters"
EVERYTHING = "*"


def tune(session: Session) -> None:
    """Replace what the spec leaves to the marginal likelihood by what it says; nothing where nothing is left to it."""
    asked = session.spec.spec.posterior.prior_precision
    priors: Mapping[str, object] = asked if isinstance(asked, Mapping) else {EVERYTHING: asked}
    free = [value == MARGLIK for value in priors.values()]
    free_noise = session.spec.spec.posterior.noise_variance == MARGLIK
    if not any(free) and not free_noise:
        return
    start = [1.0 if value == MARGLIK else float(str(value)) for value in priors.values()]
    start_noise = noise_variance(session) or 1.0
    found = _reuse(session) or _optimum(session, list(priors), start, start_noise, free, free_noise)
    values = dict(zip(priors, found.alphas, strict=True))
    session.prior_precision = values if isinstance(asked, Mapping) else values[EVERYTHING]
    session.prior = prior_vector(session.prior_precision, session.layout, session.spec.path).to(session.device)
    if free_noise:
        session.kept[TUNED_NOISE] = found.sigma2
    session.tuned = {
        "by": "marginal likelihood of the full posterior",
        "prior_precision": session.prior_precision,
        "noise_variance": found.sigma2 if session.task == "regression" else None,
        "log_evidence": found.value,
        "start": {"prior_precision": 1.0, "noise_variance": start_noise, "log_evidence": found.start_value},
        "bounds": [LEAST, MOST],
    }
    noise = f", noise variance {found.sigma2:.4g}" if session.task == "regression" else ""
    shown = ", ".join(f"{name}: {value:.4g}" if len(values) > 1 else f"{value:.4g}" for name, value in values.items())
    session.report.note(
        f"marginal likelihood: prior precision {shown}{noise}; log evidence {found.start_value:.6g} → {found.value:.6g}"
    )
    if found.at_a_bound:
        session.report.warn("the marginal likelihood is largest at a bound: the data leave this number open")


def _optimum(
    session: Session, names: list[str], start: list[float], noise: float, free: list[bool], free_noise: bool
) -> Optimum:
    with session.timed("marglik"):
        evidence = _evidence(session, names)
        found = maximise(evidence, start, noise, free, free_noise)
    tensors = {
        "alphas": torch.tensor(found.alphas, dtype=torch.float64),
        "others": torch.tensor([found.sigma2, found.value, found.start_value], dtype=torch.float64),
    }
    write_artifact(session.open_folder().file(STEM), STEM, session.describe({}), tensors)
    session.artifacts[STEM] = str(session.open_folder().file(STEM))
    return found


def _reuse(session: Session) -> Optimum | None:
    found = None if session.settings.force else session.open_folder().find(STEM, STEM)
    if found is None:
        return None
    session.report.note(f"reusing {STEM}")
    session.artifacts[STEM] = str(found.path)
    sigma2, value, start_value = found.tensor("others", (3,)).tolist()
    return Optimum(tuple(found.tensor("alphas").tolist()), sigma2, value, start_value)


def _evidence(session: Session, names: list[str]) -> Evidence:
    rows = len(session.split("train")) * session.n_outputs
    needed = (len(names) + 2) * full_bytes(rows)
    if needed > session.memory:
        raise RunError(
            f"the marginal likelihood of {len(names)} prior precisions over {rows} rows needs about "
            f"{needed / 2**30:.1f} GiB, more than the {session.memory / 2**30:.1f} GiB allowed",
            hint="use fewer training rows (splits.train.n), fewer groups, or raise --memory",
        )
    group_of = _group_of(session, names)
    theta = session.layout.flatten(session.model).double()
    kernels = [_kernel(session, group_of == number) for number in range(len(names))]
    if len(kernels) == 1:
        kernels = [torch.linalg.eigvalsh(kernels[0]).clamp(min=0.0)]
    squares = [float(theta[group_of == number].square().sum()) for number in range(len(names))]
    f, targets = jacobian_of(session, "train").outputs, targets_of(session.split("train"), session.device)
    if targets is None:
        raise UserError("posterior: marglik needs the targets of the training rows")
    if session.task == "regression":
        return Evidence(kernels, squares, rows, float((targets - f).square().sum()))
    log_p = log_probabilities(f, torch.zeros_like(f))
    chosen = log_p.gather(1, targets.unsqueeze(1))
    return Evidence(kernels, squares, rows, None, float(chosen.sum()))


def _group_of(session: Session, names: list[str]) -> Tensor:
    """For each parameter the number of its group: that of the first glob that matches its name."""
    groups = torch.zeros(session.layout.size, dtype=torch.int64, device=session.device)
    for q in session.layout.parameters:
        groups[q.span] = next(number for number, name in enumerate(names) if fnmatchcase(q.name, name))
    return groups


def _kernel(session: Session, inside: Tensor) -> Tensor:
    """Gram matrix of the training rows over these parameters; weighted by the output Hessian in classification."""
    jacobian = jacobian_of(session, "train")
    # A prior of infinite precision leaves a parameter out.
    prior = torch.where(inside, 1.0, torch.inf).to(torch.float64)
    K = gram(jacobian, jacobian, prior, session.memory, session.report.progress)
    if session.task == "regression":
        return K
    root = load(LIKELIHOODS[session.task])(jacobian.outputs, 1.0)
    return weigh_columns(weigh_columns(K, root, in_place=True).T.contiguous(), root, in_place=True)
