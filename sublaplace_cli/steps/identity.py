"""What a run is known by: the weights, the data and every option that changes a number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..catalog import METRIC_VERSION
from ..errors import UserError
from ..files.artifacts.atomic import digest_of, digest_of_files
from ..files.artifacts.run_folder import fingerprint
from ..files.data.datasets import origin_of
from ..files.networks.networks import Network
from ..files.spec.spec import LoadedSpec
from .settings import Settings


def ensemble_files(spec: LoadedSpec, resolve: Callable[[str, str], Path]) -> list[Path]:
    """Checkpoints of the ensemble, all of them there."""
    named = spec.spec.ensemble.checkpoints if spec.spec.ensemble is not None else []
    return _existing(spec, [("ensemble.checkpoints", resolve(value, "ensemble.checkpoints")) for value in named])


def _existing(spec: LoadedSpec, files: list[tuple[str, Path]]) -> list[Path]:
    for field_name, path in files:
        if not path.is_file():
            raise UserError(f"{spec.path}: {field_name}: {path} does not exist")
    return [path for _, path in files]


def oracle_files(spec: LoadedSpec, resolve: Callable[[str, str], Path]) -> list[Path]:
    """Files behind the oracle, all of them there."""
    oracle = spec.spec.oracle
    if oracle is None:
        return []
    named = {
        "oracle.weights.path": oracle.weights.path if oracle.weights else None,
        "oracle.predictions": oracle.predictions,
        "oracle.build.exported": oracle.build.exported if oracle.build else None,
    }
    return _existing(spec, [(name, resolve(value, name)) for name, value in named.items() if value is not None])


def identity_of(
    settings: Settings,
    spec: LoadedSpec,
    network: Network,
    device: torch.device,
    data: list[Path],
    oracle: list[Path],
    ensemble: list[Path],
) -> dict[str, Any]:
    """The weights, the data and every option that changes a number."""
    described = spec.spec.model_dump(mode="json", by_alias=True)
    described.pop("gate")  # it judges numbers and changes none
    if described["model"].get("weights"):
        described["model"]["weights"].pop("path", None)  # its contents count, not its name
    prior = spec.spec.posterior.prior_precision
    if isinstance(prior, dict):
        described["posterior"]["prior_precision"] = list(prior.items())  # in order: the first match counts
    return {
        "weights": digest_of_files(list(network.files)),
        "data": digest_of_files(data, spec.folder),
        "oracle": digest_of_files(oracle) if oracle else None,
        "ensemble": digest_of_files(ensemble) if ensemble else None,
        "spec": described,
        "options": {
            "dtype": settings.dtype,
            "gram_dtype": settings.gram_dtype,
            "seed": settings.seed,
            "score": settings.score,
            "reference": origin_of(spec.spec.data, settings.reference),
            "pool": settings.pool,
            "device": device.type,
            # With --full none an open prior is settled for the one sub-network: another one, another run.
            "tuned_for": [settings.method, settings.k] if settings.full == "none" and _is_open(spec) else None,
        },
    }


def _is_open(spec: LoadedSpec) -> bool:
    prior, noise = spec.spec.posterior.prior_precision, spec.spec.posterior.noise_variance
    values = list(prior.values()) if isinstance(prior, dict) else [prior]
    return noise == "marglik" or any(not isinstance(value, (int, float)) for value in values)


def provenance_of(identity: dict[str, Any], rescale: str, settings: Settings) -> dict[str, Any]:
    """What a result was made from: what a reader wants to know, and what two results must share to be compared."""
    spec = _without_paths(identity["spec"])
    rows = [identity["data"], spec["data"], spec["task"], spec["model"].get("wrap")]
    oracle = None if identity["oracle"] is None else digest_of([identity["oracle"], spec["oracle"]])
    return {
        "tool": __version__,
        "torch": torch.__version__,
        "metrics": METRIC_VERSION,
        "fingerprint": fingerprint(identity),
        "weights_sha256": identity["weights"],
        "data_sha256": identity["data"],
        "rows_sha256": digest_of(rows),
        "oracle_sha256": oracle,
        "rescale": rescale,
        "dtype": settings.dtype,
        "seed": settings.seed,
    }


def _without_paths(data: Any) -> Any:
    """What a part of the spec says, wherever the files lie."""
    if isinstance(data, dict):
        return {key: _without_paths(value) for key, value in data.items() if key not in ("path", "predictions")}
    return [_without_paths(value) for value in data] if isinstance(data, list) else data
