"""The full posterior of this run, and what every posterior here shares."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..core.linalg import WARN_CONDITION
from ..core.posterior.fitting import fit_full
from ..core.posterior.posterior import FullPosterior
from ..files.artifacts.artifact import write_artifact
from ..files.artifacts.run_folder import file_stem
from .jacobians import noise_variance, precision_of
from .session import Session

FULL = "full"


def variant(session: Session, stem: str) -> str:
    """The name of an artifact that `--rescale` changes: each kind has its own, so that none replaces another."""
    return stem if session.rescale == "none" else f"{stem}-{session.rescale}"


def full_posterior_of(session: Session) -> FullPosterior:
    """The full posterior: read back where it is there, else fitted and kept."""
    if "full" not in session.kept:
        precision = precision_of(session)
        stem = file_stem("posterior", FULL, session.layout.size)
        found = None if session.settings.force else session.open_folder().find(stem, "posterior", method=FULL)
        if found is not None:
            session.report.note(f"reusing {stem}")
            session.artifacts[stem] = str(found.path)
            factor = found.tensor("factor", (precision.n_rows, precision.n_rows)).to(session.device)
            factor = factor.T.contiguous().T  # laid out as when it was fitted
            full = FullPosterior(precision, factor, found.meta["condition"], lambda: found.meta["freedom"])
        else:
            with session.timed("full"):
                full = fit_full(precision)
                warn_if_ill_conditioned(session, stem, full.condition)
                numbers = {"freedom": full.freedom, "condition": full.condition}
                store_posterior(session, stem, {}, {"factor": full.factor}, method=FULL, **numbers)
        session.kept["full"] = full
    return session.kept["full"]


def ipv(session: Session, freedom: float) -> float:
    """(σ₀²/N)·tr(Ω_SS⁻¹ (AᵀA)_SS); σ₀² = 1 for classification."""
    return (noise_variance(session) or 1.0) / len(session.split("train")) * freedom


def store_posterior(
    session: Session, stem: str, inputs: dict[str, str], tensors: dict[str, Tensor], **more: Any
) -> None:
    """Keep a posterior, if it is not too large."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > session.max_artifact:
        session.report.note(f"{stem} is larger than --max-artifact or the free disk allow: not stored")
        return
    path = session.open_folder().file(stem)
    prior = session.prior_precision
    ordered = list(prior.items()) if isinstance(prior, dict) else prior  # the first match counts
    numbers = {"noise_variance": noise_variance(session), "prior_precision": ordered}
    meta = session.describe(inputs, **numbers, **more)
    write_artifact(path, "posterior", meta, tensors)
    session.artifacts[stem] = str(path)


def warn_if_ill_conditioned(session: Session, stem: str, condition: float) -> None:
    """Digits are being lost from here on."""
    if condition > WARN_CONDITION:
        session.report.warn(
            f"{stem}: the largest eigenvalue of the data term is {condition:.2g} times the prior precision; digits "
            f"are being lost. Raise posterior.prior_precision or posterior.noise_variance"
        )
