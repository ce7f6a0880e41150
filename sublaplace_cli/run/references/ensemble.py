"""`ensemble`: mean and variance over several trained networks."""

import torch
from torch import Tensor, nn

from ...core.gaussian import Gaussian
from ...core.network.forward import outputs
from ...core.prediction import Prediction
from ...errors import UserError
from ...files.spec.splits import TEST
from ..run import Run
from . import ReferenceInputs

ENSEMBLE_FIELD = "ensemble.checkpoints"


def check(run: Run) -> None:
    """The spec must name the networks, and each must load: a wrong one must fail before the long work."""
    if run.project.spec.ensemble is None:
        raise UserError(
            "--method ensemble: the spec names no ensemble",
            hint="for example: ensemble: {checkpoints: [a.safetensors, b.safetensors]}",
        )
    for path in run.project.spec.ensemble.checkpoints:
        row = run.passes.reader(run.split(TEST), 0, 1)
        _checked(outputs(_network(run, path), row), path, run.passes.n_outputs)


def predict(inputs: ReferenceInputs) -> Prediction:
    """Mean and unbiased covariance over the networks."""
    run = inputs.problem.run
    ensemble = run.project.spec.ensemble
    assert ensemble is not None, "check has seen it"
    read, split = run.passes.reader.outputs, run.split(inputs.rows.split)
    members = torch.stack(
        [_checked(read(_network(run, path), split), path, run.passes.n_outputs) for path in ensemble.checkpoints]
    )
    run.reporter.note("ensemble: its mean is not the network's; its w2 compares standard deviations only")
    mean = members.mean(0)
    off = members - mean  # (members, M, C)
    covariance = torch.einsum("emc,emd->mcd", off, off) / (len(members) - 1)
    return Prediction(inputs.name, None, Gaussian(mean, covariance), freedom=None, own_mean=True)


def _network(run: Run, value: str) -> nn.Module:
    network = run.project.load_network(run.project.spec.model, "model", run.project.resolve(value, ENSEMBLE_FIELD))
    return network.module.eval().to(device=run.device, dtype=run.dtype)


def _checked(f: Tensor, value: str, n_outputs: int) -> Tensor:
    if f.shape[1] != n_outputs:
        raise UserError(f"{ENSEMBLE_FIELD}: {value} gives outputs of the shape {tuple(f.shape)}, unlike the model's")
    if not bool(torch.isfinite(f).all()):
        raise UserError(f"{ENSEMBLE_FIELD}: the outputs of {value} are not all finite")
    return f
