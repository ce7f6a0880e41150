"""`ensemble`: the spread of several trained networks, as a reference beside the posteriors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import UserError
from ..files.networks.networks import load_network
from .session import Session

FIELD = "ensemble.checkpoints"


def require_ensemble(session: Session) -> None:
    """The method needs its networks named."""
    if session.spec.spec.ensemble is None:
        raise UserError(
            "--method ensemble: the spec names no ensemble",
            hint="for example: ensemble: {checkpoints: [a.safetensors, b.safetensors]}",
        )


def ensemble_spread(session: Session) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance over the networks, at every test row and output (M, C)."""
    if "ensemble" not in session.kept:
        members = torch.stack([_outputs(session, path) for path in _checkpoints(session)])
        session.kept["ensemble"] = members.mean(0), members.var(0, correction=1)
    return session.kept["ensemble"]


def _checkpoints(session: Session) -> list[str]:
    ensemble = session.spec.spec.ensemble
    assert ensemble is not None, "require_ensemble has seen it"
    return ensemble.checkpoints


def _outputs(session: Session, value: str) -> Tensor:
    model_spec = session.spec.spec.model
    network = load_network(
        model_spec.build,
        model_spec.weights,
        model_spec.wrap,
        resolve=lambda path, field: session.spec.resolve(path, field, session.settings.allow_outside),
        field="model",
        allow_code=session.settings.allow_code,
        spec_folder=session.spec.folder,
        memory=session.memory,
        weights_path=session.spec.resolve(value, FIELD, session.settings.allow_outside),
    )
    model = network.module.eval().to(device=session.device, dtype=session.dtype)
    f = session.reader.outputs(model, session.split("test"))
    if tuple(f.shape) != (len(session.split("test")), session.n_outputs):
        raise UserError(f"{FIELD}: {value} gives outputs of the shape {tuple(f.shape)}, unlike the model's")
    if not bool(torch.isfinite(f).all()):
        raise UserError(f"{FIELD}: the outputs of {value} are not all finite")
    return f
