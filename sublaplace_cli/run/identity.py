"""Fields that identify a run: the weights, the data and every option that changes a number."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..files.artifacts.atomic import digest_of, digest_of_files
from ..files.artifacts.run_folder import fingerprint
from ..files.data.datasets import origin_of
from ..results.metric_table import METRIC_VERSION
from .job import Job
from .project import Project


@dataclass(frozen=True)
class InputFiles:
    """Every file whose content defines a run."""

    weights: tuple[Path, ...]
    data: tuple[Path, ...]
    oracle: tuple[Path, ...]
    ensemble: tuple[Path, ...]

    def all(self) -> tuple[Path, ...]:
        return (*self.weights, *self.data, *self.oracle, *self.ensemble)


def identity_of(job: Job, project: Project, files: InputFiles, device: torch.device) -> dict[str, Any]:
    """The identity of a run as plain data; equal identities give equal numbers."""
    spec, chosen = project.spec, job.selection
    described = spec.model_dump(mode="json", by_alias=True)
    described.pop("gate")  # it checks numbers and changes none
    if described["model"].get("weights"):
        described["model"]["weights"].pop("path", None)  # its content counts, not its name
    prior = spec.posterior.prior_precision
    if isinstance(prior, dict):
        described["posterior"]["prior_precision"] = list(prior.items())  # in order: the first match counts
    return {
        "weights": digest_of_files(list(files.weights)),
        "data": digest_of_files(list(files.data), project.loaded.folder),
        "oracle": digest_of_files(list(files.oracle)) if files.oracle else None,
        "ensemble": digest_of_files(list(files.ensemble)) if files.ensemble else None,
        "spec": described,
        "options": {
            "dtype": job.compute.dtype,
            "gram_dtype": job.compute.gram_dtype,
            "seed": chosen.seed,
            "score": chosen.score,
            "reference": origin_of(spec.data, chosen.reference),
            "pool": chosen.pool,
            "device": device.type,
            # Without a full posterior an open prior is tuned for the one sub-network: another one is another run.
            "tuned_for": [chosen.method, chosen.k] if job.posterior.full == "none" and _is_open(project) else None,
        },
    }


def _is_open(project: Project) -> bool:
    posterior = project.spec.posterior
    prior = posterior.prior_precision
    values = list(prior.values()) if isinstance(prior, dict) else [prior]
    return posterior.noise_variance == "marglik" or any(not isinstance(value, (int, float)) for value in values)


def provenance_of(identity: dict[str, Any], rescale: str, job: Job) -> dict[str, Any]:
    """What a result was made from, and what two results must share to be compared."""
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
        "dtype": job.compute.dtype,
        "seed": job.selection.seed,
    }


def _without_paths(data: Any) -> Any:
    """A part of the spec without the paths of its files."""
    if isinstance(data, dict):
        return {key: _without_paths(value) for key, value in data.items() if key not in ("path", "predictions")}
    return [_without_paths(value) for value in data] if isinstance(data, list) else data
