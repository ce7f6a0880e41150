"""`sublaplace fit`: the posterior over the chosen parameters, or over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.linalg import WARN_CONDITION
from ..core.posterior import FullPosterior, SubnetPosterior, fit_full, fit_subnet
from ..core.selectors import checked
from ..errors import UserError
from ..files.artifacts import Artifact, open_artifact, write_artifact
from ..files.atomic import digest_of
from ..files.run_folder import file_stem
from .jacobians import noise_variance, precision_of
from .request import single_choice
from .select import Chosen, require_selector, selections_of
from .session import Session

FULL = "full"


def run(session: Session) -> dict[str, Any]:
    """Make the posterior that `fit` was asked for; returns what it prints."""
    settings = session.settings
    if settings.indices is not None:
        if settings.method is not None or settings.k is not None:
            raise UserError("--indices already says which parameters: leave --method and --k out")
        chosen = indices_from_file(session, settings.indices)
    else:
        choice = single_choice(settings, "fit")
        if choice.call.name == FULL:
            full = full_posterior_of(session)
            return _result(session, FULL, session.layout.size, full)
        require_selector(choice.call, "fit")
        chosen = selections_of(session, [choice])[choice]
    return _result(session, chosen.method, chosen.k, posterior_of(session, chosen))


def _result(session: Session, method: str, k: int, posterior: SubnetPosterior | FullPosterior) -> dict[str, Any]:
    return {
        "n_params": session.layout.size,
        "n_train": len(session.split("train")),
        "method": method,
        "k": k,
        "noise_variance": noise_variance(session),
        "ipv": ipv(session, posterior.freedom),
        "condition": posterior.condition,
    }


def ipv(session: Session, freedom: float) -> float:
    """(σ₀²/N)·tr(Ω_SS⁻¹ (AᵀA)_SS); σ₀² = 1 for classification."""
    return (noise_variance(session) or 1.0) / len(session.split("train")) * freedom


def posterior_of(session: Session, chosen: Chosen) -> SubnetPosterior:
    """The posterior over a selection: read back where it is there, else fitted and kept."""
    stem = file_stem("posterior", chosen.method, chosen.k)
    inputs = {"indices": chosen.digest}
    found = None if session.settings.force else session.open_folder().find(stem, "posterior", method=chosen.method)
    if found is not None and found.meta["inputs"] == inputs:
        session.report.note(f"reusing {stem}")
        session.artifacts[stem] = str(found.path)
        return _read_subnet(session, found)
    with session.timed("fit"):
        posterior = fit_subnet(precision_of(session), chosen.indices)
        _warn_if_ill_conditioned(session, stem, posterior.condition)
        tensors = {"indices": posterior.indices, "prior": posterior.prior, "factor": posterior.factor}
        if posterior.columns is not None:
            tensors["columns"] = posterior.columns
        numbers = {"form": posterior.form, "freedom": posterior.freedom, "condition": posterior.condition}
        _store(session, stem, inputs, tensors, method=chosen.method, **numbers)
    return posterior


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
            full = FullPosterior(precision, factor, found.meta["condition"], lambda: found.meta["freedom"])
        else:
            with session.timed("full"):
                full = fit_full(precision)
                _warn_if_ill_conditioned(session, stem, full.condition)
                numbers = {"freedom": full.freedom, "condition": full.condition}
                _store(session, stem, {}, {"factor": full.factor}, method=FULL, **numbers)
        session.kept["full"] = full
    return session.kept["full"]


def _store(session: Session, stem: str, inputs: dict[str, str], tensors: dict[str, Tensor], **more: Any) -> None:
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > session.max_artifact:
        session.report.note(f"{stem} is larger than --max-artifact or the free disk allow: not stored")
        return
    path = session.open_folder().file(stem)
    meta = session.describe(inputs, noise_variance=noise_variance(session), **more)
    write_artifact(path, "posterior", meta, tensors)
    session.artifacts[stem] = str(path)


def _read_subnet(session: Session, found: Artifact) -> SubnetPosterior:
    indices = checked(found.tensor("indices"), session.layout.size, found.meta["method"]).to(session.device)
    k, rows, dual = len(indices), precision_of(session).n_rows, found.meta["form"] == "dual"
    side = rows if dual else k
    return SubnetPosterior(
        indices=indices,
        prior=found.tensor("prior", (k,)).to(session.device),
        form=found.meta["form"],
        factor=found.tensor("factor", (side, side)).to(session.device),
        columns=found.tensor("columns", (k, rows)).to(session.device) if dual else None,
        condition=found.meta["condition"],
        count_freedom=lambda: found.meta["freedom"],
    )


def _warn_if_ill_conditioned(session: Session, stem: str, condition: float) -> None:
    if condition > WARN_CONDITION:
        session.report.warn(
            f"{stem}: the largest eigenvalue of the data term is {condition:.2g} times the prior precision; digits "
            f"are being lost. Raise posterior.prior_precision or posterior.noise_variance"
        )


def indices_from_file(session: Session, path: Path) -> Chosen:
    """A selection made elsewhere: an indices artifact of these weights and data, or a plain list of numbers."""
    if not path.is_file():
        raise UserError(f"--indices {path}: no such file")
    if path.suffix == ".safetensors":
        return _indices_artifact(session, path)
    try:
        numbers = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, dtype=np.int64, ndmin=1)
        )
        indices = torch.from_numpy(numbers.astype(np.int64, casting="same_kind"))
    except (ValueError, OSError, EOFError, TypeError, AttributeError) as error:
        raise UserError(
            f"--indices {path}: {error}",
            hint="expected an indices-*.safetensors, a .npy, or one flat index a line",
        ) from error
    indices = checked(indices, session.layout.size, str(path)).to(session.device)
    digest = digest_of(indices.tolist())
    return Chosen(f"indices-{digest[:8]}", indices, digest)


def _indices_artifact(session: Session, path: Path) -> Chosen:
    found = open_artifact(path, "indices")
    for what, mine in (("weights", session.identity["weights"]), ("data", session.identity["data"])):
        if found.meta[f"{what}_sha256"] != mine:
            raise UserError(
                f"--indices {path}: it was chosen for other {what}",
                hint="choose anew with: sublaplace select; or save the flat indices as a plain .npy or .txt file",
            )
    if found.meta["parameters"] != [[q.name, list(q.shape), q.offset] for q in session.layout.parameters]:
        raise UserError(f"--indices {path}: its parameter table is not that of this model")
    indices = checked(found.tensor("indices"), session.layout.size, str(path)).to(session.device)
    return Chosen(found.meta["method"], indices, found.digest)
