"""`sublaplace evaluate`: every method at every k against the full posterior, the targets and the oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.metrics import Predictive, Scores, score
from ..core.posterior.bounds import Bracket, bracket
from ..core.posterior.theorem1 import require_not_larger
from ..errors import UserError
from .ensemble import ensemble_spread
from .full import FULL, ipv
from .inputs import targets_of
from .jacobians import noise_variance, outputs_of, precision_of
from .oracle import oracle_outputs
from .passes import jacobian_of
from .request import Choice, choices
from .rescaling import squared_norms
from .session import Session
from .spreads import MAP, Spread, full_spread, spreads_of, stems_behind, store_predictions

DEFAULT_FULL_ROWS = 4000
BOUND_KEYS = ("w2_low", "w2_high")  # of --full bracket
# The order of a result row; every mean that has a standard error carries it as NAME_se at the end.
ROW_KEYS = (
    *("method", "k", "rescale", "remainder", "mean_std", "w2", "w2_se", "w2_relative", "w2_total"),
    *("coverage95", "coverage95_total", "ipv", "discrepancy", "retained"),
    *("nll", "rmse", "crps", "accuracy", "ece", "brier"),
)


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
    if any(choice.call.name == "ensemble" for choice in wanted):
        ensemble_spread(session)  # nor a wrong member
    if session.settings.full == "exact" or any(choice.call.name != MAP for choice in wanted):
        f = jacobian_of(session, "test").outputs
    else:
        f = outputs_of(session, "test")  # the network alone: no gradient is needed
    full = full_spread(session) if session.settings.full == "exact" or _asks_for_full(wanted) else None
    known = Predictive(
        task=session.task,
        f=f,
        sigma2=noise_variance(session),
        targets=targets_of(session.split("test"), session.device),
        oracle=oracle,
        std_full=full.variance.sqrt() if full is not None and session.settings.full == "exact" else None,
        no_full="--full none",
    )
    if full is not None:
        store_predictions(session, full, known)  # at once: often the longest work of all, whatever comes after it
    spreads = spreads_of(session, wanted, f, full)
    _theorem_1(session, spreads, full)
    bounds = _bounds(session, spreads) if session.settings.full == "bracket" else None
    if bounds is not None:
        said = "--full bracket: it lies between w2_low and w2_high"
        known = replace(known, std_bounds=(bounds.low.sqrt(), bounds.high.sqrt()), no_full=said)
    full_ipv = None
    if known.std_full is not None and full is not None and full.freedom is not None:
        full_ipv = ipv(session, full.freedom)
    result = {
        "schema": 1,
        "task": session.task,
        "n_train": len(session.split("train")),
        "n_test": len(session.split("test")),
        "n_params": session.layout.size,
        "n_outputs": session.n_outputs,
        "noise_variance": noise_variance(session),
        "prior_precision": session.prior_precision,
        "device": str(session.device),
        "workers": session.workers.size,
        "provenance": session.provenance,
        "full": _row(session, full, known, full_ipv) if full is not None and known.std_full is not None else None,
        "rows": [_row(session, spread, known, full_ipv) for spread in spreads],
        "gate": None,
    }
    if session.tuned is not None:
        result["tuned"] = session.tuned
    if bounds is not None:
        result["bracket"] = {"rows": full_rows(session), "sets": bounds.n_sets}
    for spread in spreads:
        store_predictions(session, spread, known)
    result["artifacts"] = _artifacts(session, spreads, full)
    return Evaluation(result, spreads, known)


def full_rows(session: Session) -> int:
    """Training rows of each full posterior that bounds the whole one from above."""
    asked = session.settings.full_rows or DEFAULT_FULL_ROWS
    return min(asked, len(session.split("train")))


def check_bracket(session: Session, wanted: list[Choice]) -> None:
    """`--full bracket` takes its bound from below from a sub-network as it is."""
    if session.settings.full == "bracket" and (
        session.rescale != "none" or not any(choice.call.selects for choice in wanted)
    ):
        raise UserError(
            "--full bracket needs a sub-network without --rescale: it is the bound from below",
            hint="for example: --method gradient --k 1000 --full bracket",
        )


def _bounds(session: Session, spreads: list[Spread]) -> Bracket:
    subnets = [spread.variance for spread in spreads if spread.is_a_posterior]
    norms, test = squared_norms(session, "test"), jacobian_of(session, "test")
    with session.timed("bracket"):
        return bracket(precision_of(session), test, norms, full_rows(session), subnets)


def _artifacts(session: Session, spreads: list[Spread], full: Spread | None) -> dict[str, str]:
    """What this result rests on and the folder holds, whether this command made it, reused it or skipped over it."""
    stems = ["jacobians-train", "jacobians-test", f"jacobians-{session.reference}", "scores"]
    for spread in [*spreads, *([full] if full is not None else [])]:
        stems += stems_behind(session, spread)
    paths = {stem: session.folder_path / f"{stem}.safetensors" for stem in sorted(set(stems))}
    return {stem: str(path) for stem, path in paths.items() if path.exists()}


def _asks_for_full(wanted: list[Choice]) -> bool:
    return any(choice.call.name == FULL for choice in wanted)


def _theorem_1(session: Session, spreads: list[Spread], full: Spread | None) -> None:
    """Every sub-network against the full posterior, and against those that contain it."""
    subnets = [spread for spread in spreads if spread.is_a_posterior]
    if not subnets:
        return
    norms = squared_norms(session, "test")
    for spread in subnets:
        if full is not None:
            require_not_larger(spread.variance, full.variance, norms, spread.name, "the full posterior")
    for small in subnets:
        for large in subnets:
            if _contains(large, small):
                require_not_larger(small.variance, large.variance, norms, small.name, large.name)


def _contains(large: Spread, small: Spread) -> bool:
    if large.chosen is None or small.chosen is None or large.chosen.k <= small.chosen.k:
        return False
    if large.method != small.method:  # other methods nest by accident at most: not worth the look-up
        return False
    return bool(torch.isin(small.chosen.indices, large.chosen.indices).all())


def _row(session: Session, spread: Spread, known: Predictive, full_ipv: float | None) -> dict[str, Any]:
    known = known if spread.mean is None else replace(known, f=spread.mean)
    scores = score(spread.variance.clamp(min=0).sqrt(), known)
    if spread.mean is not None and scores.values["w2"] is not None:
        scores.why["w2"] = "its mean is another one: the spreads alone are compared"
    own = None if spread.freedom is None else ipv(session, spread.freedom)
    return row_of(spread, scores, own, full_ipv, known.no_full)


def row_of(spread: Spread, scores: Scores, own: float | None, full: float | None, no_full: str) -> dict[str, Any]:
    """A row of the result: the scores of a spread, its own ipv and the full network's."""
    if own is None:
        for key in ("ipv", "discrepancy", "retained"):
            scores.miss(key, f"{spread.method} has no posterior")
    else:
        _put_ipv(scores, own, full, no_full)
    if spread.rescale is None:
        scores.miss("rescale", "the sub-network's variance is 0 on all training rows")
    else:
        scores.put("rescale", spread.rescale)
    scores.put("remainder", spread.remainder)
    values: dict[str, Any] = {**scores.values, "method": spread.method, "k": spread.k}
    errors = sorted(key for key in values if key.endswith("_se") and key not in ROW_KEYS)
    bounds = [key for key in BOUND_KEYS if key in values]
    return {**{key: values[key] for key in (*ROW_KEYS, *bounds, *errors)}, "why": dict(sorted(scores.why.items()))}


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
