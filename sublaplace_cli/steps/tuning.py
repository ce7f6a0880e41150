"""Prior precisions and noise variance that the spec leaves open, settled before anything rests on them.

`marglik`: the Laplace marginal likelihood. `{tune: nll}`: the predictions on the validation rows. Both are those of the
full posterior or, in an evaluation of one sub-network with `--full none`, of that sub-network.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ..catalog import LIKELIHOODS, load
from ..core.metrics import Predictive, log_probabilities, score
from ..core.omega.row_sums import column_chunks, gram, row_norms, weigh_columns
from ..core.posterior.fitting import full_bytes
from ..core.tuning.marglik import LEAST, MOST, Evidence, Optimum, maximise
from ..core.tuning.nll import LEAST as LEAST_TUNED
from ..core.tuning.nll import MOST as MOST_TUNED
from ..core.tuning.nll import Spectrum, minimise
from ..errors import RunError, UserError
from ..files.artifacts.artifact import write_artifact
from .inputs import MARGLIK, prior_vector, targets_of
from .jacobians import TUNED_NOISE, noise_variance
from .passes import jacobian_of
from .request import Choice, actual_k
from .select import first_selection
from .session import Session

STEM = "hyperparameters"
EVERYTHING = "*"


def tune(session: Session, wanted: list[Choice]) -> None:
    """Replace what the spec leaves open by what the data say; nothing where nothing is open."""
    asked, noise = session.spec.spec.posterior.prior_precision, session.spec.spec.posterior.noise_variance
    by_nll = hasattr(asked, "tune")
    priors: Mapping[str, Any] = asked if isinstance(asked, Mapping) else {EVERYTHING: MARGLIK if by_nll else asked}
    free = [value == MARGLIK for value in priors.values()]
    if not any(free) and noise != MARGLIK:
        return
    if by_nll and noise == MARGLIK:
        raise UserError("posterior: prior_precision {tune: nll} and noise_variance marglik do not go together")
    S = _subnet(session, wanted)
    start = [1.0 if value == MARGLIK else float(value) for value in priors.values()]
    start_noise = noise_variance(session) or 1.0
    found = _reuse(session)
    if found is None:
        with session.timed("tune"):
            if by_nll:
                found = _by_nll(session, S, start_noise)
            else:
                evidence = _evidence(session, list(priors), S)
                found = maximise(evidence, start, start_noise, free, noise == MARGLIK)
        _keep(session, found)
    values = dict(zip(priors, found.alphas, strict=True))
    session.prior_precision = values if isinstance(asked, Mapping) else values[EVERYTHING]
    session.prior = prior_vector(session.prior_precision, session.layout, session.spec.path).to(session.device)
    if noise == MARGLIK:
        session.kept[TUNED_NOISE] = found.sigma2
    _say(session, found, "nll" if by_nll else "log_evidence", S is not None, start_noise)


def _say(session: Session, found: Optimum, criterion: str, is_subnet: bool, start_noise: float) -> None:
    whose = "the sub-network" if is_subnet else "the full posterior"
    bounds = [LEAST_TUNED, MOST_TUNED] if criterion == "nll" else [LEAST, MOST]
    what = "nll on the validation rows" if criterion == "nll" else "marginal likelihood"
    sigma2 = found.sigma2 if session.task == "regression" else None
    session.tuned = {
        "by": f"{what} of {whose}",
        "prior_precision": session.prior_precision,
        "noise_variance": sigma2,
        criterion: found.value,
        "start": {
            "prior_precision": 1.0,
            "noise_variance": start_noise if sigma2 is not None else None,
            criterion: found.start_value,
        },
        "bounds": bounds,
    }
    shown = ", ".join(f"{alpha:.4g}" for alpha in found.alphas)
    session.report.note(
        f"{what} of {whose}: prior precision {shown}"
        + ("" if sigma2 is None else f", noise variance {sigma2:.4g}")
        + f"; {criterion} {found.start_value:.6g} → {found.value:.6g}"
    )
    if found.at_a_bound:
        session.report.warn(f"the best {criterion} is at a bound: the data leave this number open")


def _subnet(session: Session, wanted: list[Choice]) -> Tensor | None:
    """The one sub-network that the numbers are for; None for the full posterior."""
    subnets = [choice for choice in wanted if choice.call.selects]
    if session.settings.full != "none" or len(subnets) != 1 or subnets[0].call.own_code:
        return None
    (choice,) = subnets
    return (
        None
        if choice.retain is not None
        else first_selection(session, choice.call, actual_k(choice, session.layout.size))
    )


def _inside(session: Session, S: Tensor | None) -> Tensor:
    """Which parameters the numbers are for (p,)."""
    inside = torch.full((session.layout.size,), S is None, dtype=torch.bool, device=session.device)
    if S is not None:
        inside[S] = True
    return inside


def _keep(session: Session, found: Optimum) -> None:
    tensors = {
        "alphas": torch.tensor(found.alphas, dtype=torch.float64),
        "others": torch.tensor(
            [found.sigma2, found.value, found.start_value, float(found.at_a_bound)], dtype=torch.float64
        ),
    }
    write_artifact(session.open_folder().file(STEM), STEM, session.describe({}), tensors)
    session.artifacts[STEM] = str(session.open_folder().file(STEM))


def _reuse(session: Session) -> Optimum | None:
    found = None if session.settings.force else session.open_folder().find(STEM, STEM)
    if found is None:
        return None
    session.report.note(f"reusing {STEM}")
    session.artifacts[STEM] = str(found.path)
    sigma2, value, start_value, at_a_bound = found.tensor("others", (4,)).tolist()
    return Optimum(tuple(found.tensor("alphas").tolist()), sigma2, value, start_value, bool(at_a_bound))


# --- by marginal likelihood ------------------------------------------------------------------------------


def _evidence(session: Session, names: list[str], S: Tensor | None) -> Evidence:
    rows = len(session.split("train")) * session.n_outputs
    _require_room(session, len(names) + 2, rows)
    group_of = _group_of(session, names)
    theta = session.layout.flatten(session.model).double()
    inside = _inside(session, S)
    groups = [(group_of == number) & inside for number in range(len(names))]
    root = None if session.task == "regression" else _root(session, 1.0)
    kernels = [_kernel(session, group, root) for group in groups]
    if len(kernels) == 1:
        kernels = [torch.linalg.eigvalsh(kernels[0]).clamp(min=0.0)]
    squares = [float(theta[group].square().sum()) for group in groups]
    f, targets = jacobian_of(session, "train").outputs, targets_of(session.split("train"), session.device)
    if targets is None:
        raise UserError("posterior: marglik needs the targets of the training rows")
    if session.task == "regression":
        return Evidence(kernels, squares, rows, float((targets - f).square().sum()))
    chosen = log_probabilities(f, torch.zeros_like(f)).gather(1, targets.unsqueeze(1))
    return Evidence(kernels, squares, rows, None, float(chosen.sum()))


def _group_of(session: Session, names: list[str]) -> Tensor:
    """For each parameter the number of its group: that of the first glob that matches its name."""
    groups = torch.zeros(session.layout.size, dtype=torch.int64, device=session.device)
    for q in session.layout.parameters:
        groups[q.span] = next(number for number, name in enumerate(names) if fnmatchcase(q.name, name))
    return groups


def _kernel(session: Session, inside: Tensor, root: Tensor | None, other: str | None = None) -> Tensor:
    """Gram matrix of the training rows with themselves, or of another split with them, over these parameters."""
    train = jacobian_of(session, "train")
    left = train if other is None else jacobian_of(session, other)
    # A prior of infinite precision leaves a parameter out.
    prior = torch.where(inside, 1.0, torch.inf).to(torch.float64)
    K = gram(left, train, prior, session.memory, watch=session.report.progress)
    if root is not None:
        K = weigh_columns(K, root, in_place=True)
        K = K if other is not None else weigh_columns(K.T.contiguous(), root, in_place=True)
    return K


def _root(session: Session, sigma2: float) -> Tensor:
    return load(LIKELIHOODS[session.task])(jacobian_of(session, "train").outputs, sigma2)


def _require_room(session: Session, matrices: int, rows: int) -> None:
    needed = matrices * full_bytes(rows)
    if needed > session.memory:
        raise RunError(
            f"tuning over {rows} training rows needs about {needed / 2**30:.1f} GiB, more than the "
            f"{session.memory / 2**30:.1f} GiB allowed",
            hint="use fewer training rows (splits.train.n), fewer groups, or raise --memory",
        )


# --- by predictions --------------------------------------------------------------------------------------


def _by_nll(session: Session, S: Tensor | None, sigma2: float) -> Optimum:
    """The one prior precision whose posterior predicts the validation rows best."""
    _require_room(session, 3, len(session.split("train")) * session.n_outputs)
    validation = jacobian_of(session, "validation")
    targets = targets_of(session.split("validation"), session.device)
    if targets is None:
        raise UserError("posterior.prior_precision: the validation rows have no targets to tune on")
    inside = _inside(session, S)
    root = _root(session, sigma2)
    K, cross = _kernel(session, inside, root), _kernel(session, inside, root, "validation").T
    if S is None:
        norms = row_norms(validation, torch.ones_like(session.prior), session.memory)
    else:
        norms = torch.cat([chunk.square_().sum(0) for _, chunk in column_chunks(validation, S, session.memory)])
    spectrum = Spectrum.of(K, cross, norms)
    noise = sigma2 if session.task == "regression" else None
    known = Predictive(session.task, validation.outputs, noise, targets, oracle=None, std_full=None)

    def nll(alpha: float) -> float:
        found = score(spectrum.variance(alpha).reshape(known.f.shape).sqrt(), known).values["nll"]
        return float("inf") if found is None else found

    alpha, value = minimise(nll)
    at_a_bound = not LEAST_TUNED * 1.01 < alpha < MOST_TUNED / 1.01
    return Optimum((alpha,), sigma2, value, nll(1.0), at_a_bound)
