"""`sublaplace fit`: the posterior over the chosen parameters, or over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.posterior.fitting import fit_path
from ..core.posterior.posterior import FullPosterior, SubnetPosterior
from ..core.posterior.rescale import Rescale
from ..core.selectors import checked
from ..errors import UserError
from ..files.artifacts.artifact import Artifact
from ..files.artifacts.run_folder import file_stem
from .full import FULL, full_posterior_of, ipv, store_posterior, variant, warn_if_ill_conditioned
from .given import indices_from_file
from .jacobians import noise_variance, precision_of
from .request import single_choice
from .rescaling import rescale_of
from .select import Chosen, require_selector, selections_of
from .session import Session


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
            if settings.rescale not in (None, "none"):
                raise UserError("--rescale is for sub-networks: the full posterior leaves nothing out")
            full = full_posterior_of(session)
            return _result(session, FULL, session.layout.size, full)
        require_selector(choice.call, "fit")
        chosen = selections_of(session, [choice])[choice]
    (fitted,) = posteriors_of(session, [chosen])
    scaling = {"rescale": fitted.rescale.c, "remainder": fitted.rescale.b}
    return {**_result(session, chosen.method, chosen.k, fitted.posterior), **scaling}


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


@dataclass(frozen=True)
class Fitted:
    """A sub-network's posterior, and what its variances are changed by."""

    posterior: SubnetPosterior
    rescale: Rescale


def posteriors_of(session: Session, path: Sequence[Chosen]) -> list[Fitted]:
    """Posteriors over selections each of which begins the next one: read back, or fitted together and kept."""
    found = {chosen.k: done for chosen in path if (done := _reuse(session, chosen)) is not None}
    if len(found) < len(path):  # all of them, even if one is missing: then its bits are those of an undisturbed run
        with session.timed("fit"):
            made = fit_path(precision_of(session), path[-1].indices, [chosen.k for chosen in path])
        for chosen, posterior in zip(path, made, strict=True):
            if chosen.k not in found:
                found[chosen.k] = Fitted(posterior, rescale_of(session, posterior))
                with session.timed("fit"):
                    _keep(session, chosen, found[chosen.k])
    return [found[chosen.k] for chosen in path]


def begins(short: Chosen, long: Chosen) -> bool:
    """Whether one selection is the beginning of the other."""
    return short.k <= long.k and torch.equal(short.indices, long.indices[: short.k])


def _stem(session: Session, chosen: Chosen) -> str:
    return variant(session, file_stem("posterior", chosen.method, chosen.k))


def _reuse(session: Session, chosen: Chosen) -> Fitted | None:
    stem = _stem(session, chosen)
    found = None if session.settings.force else session.open_folder().find(stem, "posterior", method=chosen.method)
    if found is None or found.meta["inputs"] != {"indices": chosen.digest}:
        return None
    session.report.note(f"reusing {stem}")
    session.artifacts[stem] = str(found.path)
    return read_fitted(session, found)


def _keep(session: Session, chosen: Chosen, fitted: Fitted) -> None:
    stem, posterior = _stem(session, chosen), fitted.posterior
    warn_if_ill_conditioned(session, stem, posterior.condition)
    tensors = {"indices": posterior.indices, "prior": posterior.prior, "factor": posterior.factor}
    if posterior.columns is not None:
        tensors["columns"] = posterior.columns
    numbers: dict[str, Any] = {"form": posterior.form, "freedom": posterior.freedom, "condition": posterior.condition}
    numbers |= {"rescale": fitted.rescale.c, "remainder": fitted.rescale.b, "n_train": len(session.split("train"))}
    numbers["scale_shapes"], scales = _scales(session)
    tensors |= scales
    store_posterior(session, stem, {"indices": chosen.digest}, tensors, method=chosen.method, **numbers)


def _scales(session: Session) -> tuple[dict[str, list[int]], dict[str, Tensor]]:
    """What the rows were standardised with, so that new rows can be, too."""
    split = session.split("train")
    known = {"input": split.preparation.scale, "target": split.target_scale}
    shapes: dict[str, list[int]] = {}
    tensors: dict[str, Tensor] = {}
    for side, scale in known.items():
        if scale is not None:
            shapes[side] = list(np.shape(scale.mean))
            tensors[f"{side}_mean"] = torch.from_numpy(np.array(scale.mean, dtype=np.float64).reshape(-1))
            tensors[f"{side}_std"] = torch.from_numpy(np.array(scale.std, dtype=np.float64).reshape(-1))
    return shapes, tensors


def read_fitted(session: Session, found: Artifact) -> Fitted:
    """A sub-network's posterior out of its artifact."""
    indices = checked(found.tensor("indices"), session.layout.size, found.meta["method"]).to(session.device)
    k, dual = len(indices), found.meta["form"] == "dual"
    rows = found.meta["n_train"] * session.n_outputs
    side = rows if dual else k
    posterior = SubnetPosterior(
        indices=indices,
        prior=found.tensor("prior", (k,)).to(session.device),
        form=found.meta["form"],
        factor=found.tensor("factor", (side, side)).to(session.device).T.contiguous().T,  # laid out as when fitted
        columns=found.tensor("columns", (k, rows)).to(session.device) if dual else None,
        condition=found.meta["condition"],
        count_freedom=lambda: found.meta["freedom"],
    )
    return Fitted(posterior, Rescale(found.meta["rescale"], found.meta["remainder"]))
