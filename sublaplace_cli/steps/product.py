"""`evaluate --posterior FILE`: predictions on new data from a posterior alone, without its training rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.jacobian.rows import TILE_SHARE
from ..core.metrics import Predictive, score
from ..core.omega.row_sums import columns_of_blocks
from ..core.posterior.posterior import SubnetPosterior
from ..core.posterior.rescale import Rescale
from ..core.posterior.sampling import draw_outputs, draw_parameters
from ..errors import UserError
from ..files.artifacts.artifact import Artifact, open_artifact
from ..files.data.transforms import MeanStd, Scales
from .evaluate import Evaluation, row_of
from .fit import Fitted, read_fitted
from .full import FULL
from .inputs import prior_vector, targets_of
from .oracle import oracle_outputs
from .session import Session
from .settings import Settings
from .spreads import Spread, rescaled_draws


def open_posterior(settings: Settings) -> Artifact:
    """The posterior that the option names, of a kind that can stand alone."""
    assert settings.posterior is not None, "the caller has looked"
    usual = Settings()
    for name in ("method", "k", "rescale", "retain", "pool", "score", "reference", "full", "full_rows"):
        if getattr(settings, name) != getattr(usual, name):
            option = "--" + name.replace("_", "-")
            raise UserError(f"--posterior leaves nothing for {option} to change: leave {option} out")
    found = open_artifact(settings.posterior, "posterior")
    if found.meta["method"] == FULL:
        raise UserError(
            f"--posterior {settings.posterior}: the full posterior cannot do without its training rows",
            hint="use one over a sub-network: sublaplace fit --method gradient --k 1000",
        )
    return found


def scales_of(found: Artifact) -> Scales:
    """What the rows were standardised with when the posterior was fitted."""
    return Scales(*(_scale(found, side) for side in ("input", "target")))


def _scale(found: Artifact, side: str) -> MeanStd | None:
    if f"{side}_mean" not in found.meta["tensors"]:
        return None
    mean, std = (np.asarray(found.tensor(f"{side}_{what}").numpy()) for what in ("mean", "std"))
    shape = tuple(found.meta["scale_shapes"][side])
    return MeanStd(mean.reshape(shape), std.reshape(shape))


def check_posterior(session: Session, found: Artifact) -> None:
    """It must be of these weights and this network."""
    where = f"--posterior {found.path}"
    if found.meta["weights_sha256"] != session.identity["weights"]:
        raise UserError(f"{where}: it was fitted for other weights", hint="give its checkpoint with --checkpoint")
    if found.meta["parameters"] != [[q.name, list(q.shape), q.offset] for q in session.layout.parameters]:
        raise UserError(f"{where}: its parameter table is not that of this model")
    if found.meta["spec"]["task"] != session.task:
        raise UserError(f"{where}: its task is {found.meta['spec']['task']}, that of the spec is {session.task}")

    spec, fitted_with = session.spec.spec.model_dump(mode="json", by_alias=True), found.meta["spec"]
    for part, mine, theirs in (
        ("model.build", spec["model"]["build"], fitted_with["model"]["build"]),
        ("model.wrap", spec["model"].get("wrap"), fitted_with["model"].get("wrap")),
        ("data.transforms", spec["data"].get("transforms"), fitted_with["data"].get("transforms")),
        ("data.standardise", spec["data"].get("standardise"), fitted_with["data"].get("standardise")),
    ):
        if mine != theirs:
            raise UserError(f"{where}: it was fitted with another {part} than that of the spec: {theirs}")


def _prior(found: Artifact) -> Any:
    """The prior precision that it was fitted with: one number, or by glob in their order."""
    given = found.meta["prior_precision"]
    return dict(given) if isinstance(given, list) else given


def run(session: Session, found: Artifact) -> Evaluation:
    """One row of results, from the posterior and the test rows."""
    check_posterior(session, found)
    oracle = oracle_outputs(session)
    fitted = read_fitted(session, found)
    given = _prior(found)
    prior = prior_vector(given, session.layout, found.path)
    f, variance, samples = _predict(session, fitted, prior.to(session.device))
    spread = Spread(
        method=found.meta["method"],
        k=len(fitted.posterior.indices),
        variance=variance,
        freedom=found.meta["freedom"],
        rescale=fitted.rescale.c,
        remainder=fitted.rescale.b,
        samples=samples,
    )
    known = Predictive(
        task=session.task,
        f=f,
        sigma2=found.meta["noise_variance"],
        targets=targets_of(session.split("test"), session.device),
        oracle=oracle,
        std_full=None,
        no_full="--posterior: the training rows are not there",
    )
    ipv = (found.meta["noise_variance"] or 1.0) / found.meta["n_train"] * found.meta["freedom"]
    result: dict[str, Any] = {
        "schema": 1,
        "task": session.task,
        "n_train": found.meta["n_train"],
        "n_test": len(session.split("test")),
        "n_params": session.layout.size,
        "n_outputs": session.n_outputs,
        "noise_variance": found.meta["noise_variance"],
        "prior_precision": given,
        "device": str(session.device),
        "workers": session.workers.size,
        "provenance": {**session.provenance, "rescale": fitted.rescale.kind},
        "full": None,
        "rows": [row_of(spread, score(spread.variance.clamp(min=0).sqrt(), known), ipv, None, known.no_full)],
        "gate": None,
        "artifacts": {found.path.stem: str(found.path)},
    }
    return Evaluation(result, [spread], known)


def _predict(session: Session, fitted: Fitted, prior: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """(f (M, C), variance (M, C), draws (count, M, C) where asked for), pass by pass; nothing is kept of a pass."""
    posterior, rescale = fitted.posterior, fitted.rescale
    theta = None
    if session.settings.samples is not None:
        theta = draw_parameters(posterior, session.settings.samples, session.settings.seed)
    parts: list[tuple[Tensor, Tensor, Tensor | None]] = []
    generator = torch.Generator().manual_seed(session.settings.seed + 1)
    for f, J_S, outside in _rows(session, posterior, rescale, prior):
        draws = None
        if theta is not None:
            draws = rescaled_draws(draw_outputs(J_S, theta), rescale, outside, generator)
        variance = rescale.apply(posterior.variance(J_S), outside)
        parts.append((f, variance.reshape(f.shape), draws))
    f = torch.cat([part[0] for part in parts])
    variance = torch.cat([part[1] for part in parts])
    if theta is None:
        return f, variance, None
    deviations = torch.cat([part[2] for part in parts if part[2] is not None])  # (M·C, count)
    return f, variance, f + deviations.T.reshape(-1, *f.shape)


def _rows(
    session: Session, posterior: SubnetPosterior, rescale: Rescale, prior: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(f (m, C), J_Sᵀ (k, m·C), ‖g outside S‖² (m·C,)) of every pass over the test rows."""
    total, k = len(session.split("test")), len(posterior.indices)
    room = session.memory // TILE_SHARE // (16 * session.n_outputs * k)
    step = max(1, min(session.pass_rows("test"), room))
    scale = posterior.prior.rsqrt().unsqueeze(1)
    with session.timed("predict"), session.report.progress("predictions of the test rows", total) as progress:
        for start in range(0, total, step):
            captured = session.take_pass(session.rows("test", start, min(start + step, total)))
            J_S = columns_of_blocks(captured.blocks, posterior.indices, captured.f.numel())
            outside = torch.zeros(captured.f.numel(), dtype=torch.float64, device=session.device)
            if rescale.b:
                norms = sum(block.norms(prior[block.span]) for block in captured.blocks)
                outside = (norms - (J_S * scale).square_().sum(0)).clamp(min=0.0)
            yield captured.f, J_S, outside
            progress.advance(len(captured.f))
