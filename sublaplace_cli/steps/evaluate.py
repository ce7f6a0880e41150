"""`sublaplace evaluate`: every method at every k against the full posterior, the targets and the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.metrics import Predictive, Scores, score
from ..core.posterior import diagonal_freedom, diagonal_variance, subnet_variance
from ..core.precision import row_norms
from ..core.theorem import require_not_larger
from ..files.artifacts import Artifact, write_artifact
from ..files.run_folder import file_stem
from .fit import FULL, full_posterior_of, ipv, posterior_of
from .inputs import targets_of
from .jacobians import noise_variance, outputs_of, precision_of, scores_of
from .oracle import oracle_outputs
from .passes import jacobian_of
from .request import Choice, choices
from .select import Chosen, selections_of
from .session import Session

MAP = "map"
# The order of a result row; every mean that has a standard error carries it as NAME_se at the end.
ROW_KEYS = (
    *("method", "k", "rescale", "remainder", "mean_std", "w2", "w2_se", "w2_relative", "w2_total"),
    *("coverage95", "coverage95_total", "ipv", "discrepancy", "retained"),
    *("nll", "rmse", "crps", "accuracy", "ece", "brier"),
)


@dataclass(frozen=True)
class Spread:
    """Epistemic variances of one method on the test rows, and how much the data say about its parameters."""

    method: str
    k: int | None
    variance: Tensor  # (M, C)
    freedom: float
    chosen: Chosen | None = None  # of a sub-network: Theorem 1 holds for it


@dataclass(frozen=True)
class Evaluation:
    """The result as printed, and the predictions behind each row."""

    result: dict[str, Any]
    spreads: list[Spread]
    known: Predictive


def run(session: Session) -> Evaluation:
    """Everything that is missing is made on the way; returns the result of section 5 of the contract."""
    wanted = choices(session.settings)
    oracle = oracle_outputs(session)  # first: a wrong oracle should not cost a run
    if session.settings.full == "exact" or any(choice.call.name != MAP for choice in wanted):
        f = jacobian_of(session, "test").outputs
    else:
        f = outputs_of(session, "test")  # the network alone: no gradient is needed
    full = _full_spread(session) if session.settings.full == "exact" or _asks_for_full(wanted) else None
    spreads = _spreads(session, wanted, f, full)
    _theorem_1(session, spreads, full)
    known = Predictive(
        task=session.task,
        f=f,
        sigma2=noise_variance(session),
        targets=targets_of(session.split("test"), session.device),
        oracle=oracle,
        std_full=full.variance.sqrt() if full is not None and session.settings.full == "exact" else None,
        no_full="--full none",
    )
    full_ipv = ipv(session, full.freedom) if known.std_full is not None and full is not None else None
    result = {
        "schema": 1,
        "task": session.task,
        "n_train": len(session.split("train")),
        "n_test": len(session.split("test")),
        "n_params": session.layout.size,
        "n_outputs": session.n_outputs,
        "noise_variance": noise_variance(session),
        "prior_precision": session.spec.spec.posterior.prior_precision,
        "device": str(session.device),
        "workers": 1,
        "full": _row(session, full, known, full_ipv) if full is not None and known.std_full is not None else None,
        "rows": [_row(session, spread, known, full_ipv) for spread in spreads],
        "gate": None,
    }
    for spread in [*spreads, *([full] if full is not None else [])]:
        _store_predictions(session, spread, known)
    result["artifacts"] = _artifacts(session, spreads, full)
    return Evaluation(result, spreads, known)


def _artifacts(session: Session, spreads: list[Spread], full: Spread | None) -> dict[str, str]:
    """What this result rests on and the folder holds, whether this command made it, reused it or skipped over it."""
    stems = ["jacobians-train", "jacobians-test", f"jacobians-{session.reference}", "scores"]
    for spread in [*spreads, *([full] if full is not None else [])]:
        if spread.k is not None:
            stems += [file_stem(kind, spread.method, spread.k) for kind in ("indices", "posterior", "predictions")]
    paths = {stem: session.folder_path / f"{stem}.safetensors" for stem in sorted(set(stems))}
    return {stem: str(path) for stem, path in paths.items() if path.exists()}


def _asks_for_full(wanted: list[Choice]) -> bool:
    return any(choice.call.name == FULL for choice in wanted)


def _test_norms(session: Session) -> Tensor:
    """‖g‖² of the test rows in the metric V⁻¹ (M·C,)."""
    if "norms" not in session.kept:
        with session.timed("predict"):
            session.kept["norms"] = row_norms(jacobian_of(session, "test"), session.prior, session.memory)
    return session.kept["norms"]


def _full_spread(session: Session) -> Spread:
    stem = file_stem("predictions", FULL, session.layout.size)
    found = _reuse_predictions(session, stem, {}, method=FULL, k=session.layout.size)
    if found is not None:
        return _read_spread(session, found, FULL, session.layout.size)
    posterior = full_posterior_of(session)
    with session.timed("full"):
        variance = posterior.variance(jacobian_of(session, "test"), _test_norms(session))
    return Spread(FULL, session.layout.size, variance, posterior.freedom)


def _spreads(session: Session, wanted: list[Choice], f: Tensor, full: Spread | None) -> list[Spread]:
    selections = selections_of(session, [choice for choice in wanted if choice.call.selects])
    return [
        _subnet_spread(session, selections[choice]) if choice in selections else _reference(session, choice, f, full)
        for choice in wanted
    ]


def _subnet_spread(session: Session, chosen: Chosen) -> Spread:
    stem = file_stem("predictions", chosen.method, chosen.k)
    found = _reuse_predictions(session, stem, {"indices": chosen.digest}, method=chosen.method, k=chosen.k)
    if found is not None:
        return _read_spread(session, found, chosen.method, chosen.k, chosen)
    posterior = posterior_of(session, chosen)
    with session.timed("predict"):
        variance = subnet_variance(posterior, jacobian_of(session, "test"), session.memory)
    return Spread(chosen.method, chosen.k, variance, posterior.freedom, chosen=chosen)


def _reference(session: Session, choice: Choice, f: Tensor, full: Spread | None) -> Spread:
    if choice.call.name == FULL:
        assert full is not None, "it was asked for"
        return full
    if choice.call.name == MAP:
        return Spread(MAP, None, torch.zeros_like(f), 0.0)
    data_diagonal, precision = scores_of(session).data_diagonal, precision_of(session)
    with session.timed("predict"):
        variance = diagonal_variance(precision, data_diagonal, jacobian_of(session, "test"))
    return Spread("diagonal", None, variance, diagonal_freedom(precision, data_diagonal))


def _theorem_1(session: Session, spreads: list[Spread], full: Spread | None) -> None:
    """Every sub-network against the full posterior, and against those that contain it."""
    subnets = [spread for spread in spreads if spread.chosen is not None]
    if not subnets:
        return
    norms = _test_norms(session)
    for spread in subnets:
        if full is not None:
            require_not_larger(spread.variance, full.variance, norms, _name(spread), "the full posterior")
    for small in subnets:
        for large in subnets:
            if _contains(large, small):
                require_not_larger(small.variance, large.variance, norms, _name(small), _name(large))


def _contains(large: Spread, small: Spread) -> bool:
    if large.chosen is None or small.chosen is None or large.chosen.k <= small.chosen.k:
        return False
    if large.method != small.method:  # other methods nest by accident at most: not worth the look-up
        return False
    return bool(torch.isin(small.chosen.indices, large.chosen.indices).all())


def _name(spread: Spread) -> str:
    return spread.method if spread.k is None else f"{spread.method} (k = {spread.k})"


def _row(session: Session, spread: Spread, known: Predictive, full_ipv: float | None) -> dict[str, Any]:
    scores = score(spread.variance.clamp(min=0).sqrt(), known)
    _put_ipv(scores, ipv(session, spread.freedom), full_ipv, known.no_full)
    values: dict[str, Any] = {
        **scores.values,
        "method": spread.method,
        "k": spread.k,
        "rescale": 1.0,
        "remainder": 0.0,
    }
    errors = sorted(key for key in values if key.endswith("_se") and key not in ROW_KEYS)
    return {**{key: values[key] for key in (*ROW_KEYS, *errors)}, "why": dict(sorted(scores.why.items()))}


def _put_ipv(scores: Scores, own: float, full: float | None, no_full: str) -> None:
    scores.put("ipv", own)
    if full is None:
        scores.miss("discrepancy", no_full)
        scores.miss("retained", no_full)
        return
    scores.put("discrepancy", full - own)
    if full > 0:
        scores.put("retained", own / full)
    else:
        scores.miss("retained", "the full network's ipv is 0")


def _reuse_predictions(session: Session, stem: str, inputs: dict[str, str], **expected: Any) -> Artifact | None:
    found = None if session.settings.force else session.open_folder().find(stem, "predictions", **expected)
    lacks_full = session.settings.full == "exact" and found is not None and "std_full" not in found.meta["tensors"]
    if found is None or found.meta["inputs"] != inputs or lacks_full:
        return None
    session.report.note(f"reusing {stem}")
    session.artifacts[stem] = str(found.path)
    return found


def _read_spread(session: Session, found: Artifact, method: str, k: int, chosen: Chosen | None = None) -> Spread:
    shape = (len(session.split("test")), session.n_outputs)
    variance = found.tensor("variance", shape).to(session.device)
    return Spread(method, k, variance, found.meta["freedom"], chosen=chosen)


def _store_predictions(session: Session, spread: Spread, known: Predictive) -> None:
    """Mean, std, std_full and target for each test row and output; the variance beside them keeps all its digits."""
    stem = file_stem("predictions", spread.method, spread.k if spread.k is not None else 0)
    if spread.k is None or stem in session.artifacts:
        return
    tensors = {"mean": known.f, "std": spread.variance.clamp(min=0).sqrt(), "variance": spread.variance}
    if known.std_full is not None:
        tensors["std_full"] = known.std_full
    if known.targets is not None:
        tensors["target"] = known.targets
    inputs = {"indices": spread.chosen.digest} if spread.chosen is not None else {}
    meta = session.describe(inputs, method=spread.method, k=spread.k, freedom=spread.freedom)
    write_artifact(session.open_folder().file(stem), "predictions", meta, tensors)
    session.artifacts[stem] = str(session.open_folder().file(stem))
