"""`sublaplace select`: which k parameters, by which method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..catalog import LIKELIHOODS, load
from ..core.omega.precision import Precision
from ..core.posterior.fitting import path_gains
from ..core.selectors import Selection, SelectionProblem, checked
from ..core.selectors.baselines import by_name, require_last_linear, require_match
from ..core.selectors.greedy import columns_held, is_cramped, pool_size
from ..errors import UserError
from ..files.artifacts.artifact import write_artifact
from ..files.artifacts.run_folder import file_stem
from ..files.networks.imports import load_function
from .ensemble import require_ensemble
from .full import full_posterior_of
from .jacobians import noise_variance, precision_of, score_and_diagonal, scores_of
from .kfac import require_kfac
from .passes import jacobian_of
from .request import POOLED, Choice, MethodCall, actual_k, is_nested, single_choice
from .session import Session

FIRST_LOOK = 256  # of --k auto: doubled until the path is long enough
ROUNDING = 1e-10


@dataclass(frozen=True)
class Chosen:
    """The indices of one method and k, with the digest of the artifact that holds them."""

    method: str
    indices: Tensor
    digest: str

    @property
    def k(self) -> int:
        return len(self.indices)


def run(session: Session) -> dict[str, Any]:
    """Make the indices that `select` was asked for; returns what it prints."""
    choice = single_choice(session.settings, "select")
    require_selector(choice.call, "select")
    chosen = selections_of(session, [choice])[choice]
    return {
        "n_params": session.layout.size,
        "method": chosen.method,
        "k": chosen.k,
        "layers": layer_shares(session, chosen),
    }


def check_choice(session: Session, choice: Choice) -> None:
    """What can be known of a choice before any computing: k > p, a pattern without a match, code that may not run."""
    call, k = choice.call, actual_k(choice, session.layout.size)
    if call.pattern is not None:
        require_match(session.layout, call.pattern)
    elif call.own_code:
        load_function(call.name, f"--method {call.name}", session.settings.allow_code, session.spec.folder)
    elif call.name in POOLED and k is not None:
        pool_size(session.settings.pool, k, session.layout.size)
    elif call.name == "kfac":
        require_kfac(session)
    elif call.name == "ensemble":
        require_ensemble(session)
    elif call.name == "neural-linear":
        require_last_linear(session.last_linear)


def require_selector(call: MethodCall, command: str) -> None:
    """Refuse references, which choose no parameters."""
    if not call.selects:
        raise UserError(
            f"{command} needs a method that chooses parameters; '{call.name}' is a reference for evaluate",
            hint="use it with: sublaplace evaluate --method " + call.name,
        )


def layer_shares(session: Session, chosen: Chosen) -> dict[str, int]:
    """How many of the chosen parameters lie in each tensor."""
    counts = {}
    for q in session.layout.parameters:
        inside = int(((chosen.indices >= q.span.start) & (chosen.indices < q.span.stop)).sum())
        if inside:
            counts[q.name] = inside
    return counts


def selections_of(session: Session, wanted: list[Choice]) -> dict[Choice, Chosen]:
    """The selections of all these choices; a method with nested subsets runs once, for its largest k."""
    found = {choice: chosen for choice in wanted if (chosen := _reuse(session, choice)) is not None}
    missing = [choice for choice in wanted if choice not in found]
    for call in dict.fromkeys(choice.call for choice in missing):
        group = [choice for choice in missing if choice.call == call]
        with session.timed("select"):
            found |= _select_group(session, call, group)
    return found


def _select_group(session: Session, call: MethodCall, group: list[Choice]) -> dict[Choice, Chosen]:
    if group[0].retain is not None:
        (choice,) = group
        return {choice: _retaining(session, choice)}
    sizes = {choice: actual_k(choice, session.layout.size) for choice in group}
    if call.takes_k and _nested(session, call):
        longest = _select(session, call, max(k for k in sizes.values() if k is not None))
        made = {choice: Selection(longest.indices[:k], longest.values[:k]) for choice, k in sizes.items()}
    else:
        made = {choice: _select(session, call, k) for choice, k in sizes.items()}
    return {choice: _store(session, call, selection) for choice, selection in made.items()}


def _retaining(session: Session, choice: Choice) -> Chosen:
    """`--k auto`: the shortest beginning of the method's path whose ipv reaches the fraction asked for."""
    call, fraction = choice.call, choice.retain
    assert fraction is not None, "the caller has looked"
    path, retained = _path(session, call, fraction)
    k = min(int((retained < fraction * (1 - ROUNDING)).sum()) + 1, len(path.indices))
    session.report.note(f"{call.name}: k = {k} retains {float(retained[k - 1]):.4f} of the full network's ipv")
    known = _reuse(session, Choice(call, k))
    return known or _store(session, call, Selection(path.indices[:k], path.values[:k]))


def _path(session: Session, call: MethodCall, fraction: float) -> tuple[Selection, Tensor]:
    """A path long enough to retain this fraction, and what each of its beginnings retains."""
    stem, p = f"path-{call.name}", session.layout.size
    inputs = {"scores": scores_of(session).digest}
    found = None if session.settings.force else session.open_folder().find(stem, "path", method=call.name)
    if found is not None and found.meta["inputs"] == inputs:
        indices, values, retained = (found.tensor(q).to(session.device) for q in ("indices", "scores", "retained"))
        if len(indices) == p or float(retained[-1]) >= fraction:
            session.report.note(f"reusing {stem}")
            session.artifacts[stem] = str(found.path)
            return Selection(checked(indices, p, call.name), values), retained
    freedom = full_posterior_of(session).freedom
    if freedom <= 0:
        raise UserError("--k auto: the data say nothing about this network's parameters (the full ipv is 0)")
    limit = min(p, int(session.settings.pool)) if _pooled(session, call) else p
    k = min(FIRST_LOOK, limit)
    while True:
        path = _select(session, call, k)
        retained = path_gains(precision_of(session), path.indices).cumsum(0) / freedom
        if float(retained[-1]) >= fraction or k == p:
            break
        if k == limit:
            raise UserError(
                f"--k auto: all {limit} candidates of --pool together retain only {float(retained[-1]):.4f} of the "
                f"full network's ipv, less than --retain {fraction:g}",
                hint="enlarge --pool, or lower --retain",
            )
        session.report.note(f"{call.name}: k = {k} retains {float(retained[-1]):.4f}, looking further")
        k = min(2 * k, limit)
    meta = session.describe(inputs, method=call.name, pool=session.settings.pool)
    tensors = {"indices": path.indices, "scores": path.values.double(), "retained": retained}
    write_artifact(session.open_folder().file(stem), "path", meta, tensors)
    session.artifacts[stem] = str(session.open_folder().file(stem))
    return path, retained


def _pooled(session: Session, call: MethodCall) -> bool:
    return call.name in POOLED and session.settings.pool.isdigit()


def _nested(session: Session, call: MethodCall) -> bool:
    return is_nested(call, session.settings.pool)


def first_selection(session: Session, call: MethodCall, k: int | None) -> Tensor:
    """What a method chooses before the prior is settled (flat indices); nothing of it is kept."""
    jacobian = jacobian_of(session, "train")
    root = load(LIKELIHOODS[session.task])(jacobian.outputs, noise_variance(session) or 1.0)
    precision = Precision(jacobian, root, session.prior, session.memory, session.report.progress)
    return _run_method(session, call, k, precision, *score_and_diagonal(session)).indices


def _select(session: Session, call: MethodCall, k: int | None) -> Selection:
    scores = scores_of(session)
    return _run_method(session, call, k, precision_of(session), scores.score, scores.data_diagonal)


def _run_method(
    session: Session, call: MethodCall, k: int | None, precision: Precision, score: Tensor, data_diagonal: Tensor
) -> Selection:
    problem = SelectionProblem(
        precision=precision,
        score=score,
        data_diagonal=data_diagonal,
        theta=session.layout.flatten(session.model),
        last_linear=session.last_linear,
        seed=session.settings.seed,
        pool=session.settings.pool,
        other_rows=None if session.reference == "train" else jacobian_of(session, session.reference),
    )
    session.report.detail(f"selecting by {call.name}")
    if call.pattern is not None:
        return by_name(problem, call.pattern)
    assert call.entry is not None, "references select nothing"
    if call.name == "greedy" and k is not None:
        _say_if_cramped(session, precision, k)
    if not call.own_code:
        return load(call.entry)(problem, k)
    return _users_own(session, call, problem, k)


def _say_if_cramped(session: Session, precision: Precision, k: int) -> None:
    size = pool_size(session.settings.pool, k, session.layout.size)
    if is_cramped(precision, size, k):
        session.report.note(
            f"greedy: --memory has room for the columns of {columns_held(precision)} of {size} candidates; each look "
            "at others is a pass over all rows. A smaller --pool (2k, paper) or more memory is quicker"
        )


def _users_own(session: Session, call: MethodCall, problem: SelectionProblem, k: int | None) -> Selection:
    function = load_function(call.name, f"--method {call.name}", session.settings.allow_code, session.spec.folder)
    try:
        answer = function(problem, k)
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"--method {call.name} failed: {type(error).__name__}: {error}") from error
    indices = answer.indices if isinstance(answer, Selection) else torch.as_tensor(answer)
    indices = checked(indices, session.layout.size, call.name, k).to(session.device)
    return Selection(indices, problem.score[indices])


def _stem(session: Session, choice: Choice) -> str | None:
    """The artifact's name, where k is known beforehand."""
    k = actual_k(choice, session.layout.size)
    return None if k is None or choice.call.own_code else file_stem("indices", choice.call.name, k)


def _reuse(session: Session, choice: Choice) -> Chosen | None:
    stem = _stem(session, choice)  # methods without k are quick, a user's code may have changed: always run
    if stem is None or session.settings.force:
        return None
    found = session.open_folder().find(stem, "indices", method=choice.call.name)
    if found is None or found.meta["inputs"] != {"scores": scores_of(session).digest}:
        return None
    indices = checked(found.tensor("indices"), session.layout.size, choice.call.name)
    session.artifacts[stem] = str(found.path)
    session.report.note(f"reusing {stem}")
    return Chosen(choice.call.name, indices.to(session.device), found.digest)


def _store(session: Session, call: MethodCall, selection: Selection) -> Chosen:
    stem = file_stem("indices", call.name, len(selection.indices))
    path = session.open_folder().file(stem)
    meta = session.describe({"scores": scores_of(session).digest}, method=call.name, pool=session.settings.pool)
    tensors = {"indices": selection.indices, "scores": selection.values.double()}
    write_artifact(path, "indices", meta, tensors)
    session.artifacts[stem] = str(path)
    found = session.open_folder().find(stem, "indices")
    assert found is not None, "it was just written"
    return Chosen(call.name, selection.indices, found.digest)
