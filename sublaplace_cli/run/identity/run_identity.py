"""What identifies a run and its artifacts, as plain data, and what a result was made from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...core.network.layout import Layout
from ...files.artifacts.atomic import digest_of, digest_of_files
from ...files.artifacts.run_folder import fingerprint
from ...files.spec.models import Spec
from ...results.metric_table import METRIC_VERSION
from ..job import Job
from ..project import Project
from ..rows.test_sets import TestSet
from .network import NetworkIdentity


def identity_of(
    job: Job,
    project: Project,
    spec: Spec,
    network: NetworkIdentity,
    files: dict[str, list[Path]],
    device: torch.device,
    reference: str,
) -> dict[str, Any]:
    """What identifies a run, as plain data: its network, its files and every option that changes a number.

    `reference` is the name under which the rows that scores are taken over are stored.
    """
    chosen, oracle = job.selection, spec.oracle
    described = spec.model_dump(mode="json", by_alias=True, exclude_none=True)  # a new key changes no other spec
    described.pop("gate", None)  # it checks numbers and changes none
    described["model"].pop("weights", None)  # its tensors count, not where they come from
    if oracle is not None:  # without a wrap of its own it has that of the model: `none` is something else
        described["oracle"] = oracle.model_dump(mode="json", by_alias=True, exclude_unset=True)
    prior = spec.posterior.prior_precision
    if isinstance(prior, dict):
        described["posterior"]["prior_precision"] = list(prior.items())  # in order: the first match counts
    return {
        "weights": network.weights,
        "function": network.function,
        "data": digest_of_files(files["data"], project.loaded.folder),
        "oracle": digest_of_files(files["oracle"]) if files["oracle"] else None,
        "ensemble": digest_of_files(files["ensemble"]) if files["ensemble"] else None,
        "spec": described,
        "options": {
            "dtype": job.compute.dtype,
            "gram_dtype": job.compute.gram_dtype,
            **({"kernels": "triton"} if job.compute.kernels == "triton" and device.type == "cuda" else {}),
            "seed": chosen.seed,
            "score": chosen.score,
            "reference": reference,
            "pool": chosen.pool,
            "device": device.type,
            # Without a full posterior an open prior is tuned for the one sub-network: another one is another run.
            "tuned_for": [chosen.method, chosen.k] if job.posterior.full == "none" and _is_open(project) else None,
        },
    }


def metadata_of(
    job: Job,
    project: Project,
    spec: Spec,
    identity: Mapping[str, Any],
    device: torch.device,
    own: NetworkIdentity,
    layout: Layout,
) -> dict[str, Any]:
    """What every artifact of a run says about it."""
    return {
        "tool": __version__,
        "torch": torch.__version__,
        "device": device.type,
        "dtype": job.compute.dtype,
        "seed": job.selection.seed,
        "spec": spec.model_dump(mode="json", by_alias=True),
        "spec_sha256": project.loaded.sha256,
        "weights_sha256": identity["weights"],
        "data_sha256": identity["data"],
        **({} if project.texts_digest is None else {"texts_sha256": project.texts_digest}),
        "probe": None if own.probe is None else asdict(own.probe),
        # Where nothing can be compared but the files.
        **({"function_sha256": own.function} if own.probe is None and own.function is not None else {}),
        "parameters": parameter_table(layout),
    }


def parameter_table(layout: Layout) -> list[list[Any]]:
    """Name, shape and offset of each trainable parameter, as artifacts hold them."""
    return [[parameter.name, list(parameter.shape), parameter.offset] for parameter in layout.parameters]


def _is_open(project: Project) -> bool:
    posterior = project.spec.posterior
    prior = posterior.prior_precision
    values = list(prior.values()) if isinstance(prior, dict) else [prior]
    return posterior.noise_variance == "marglik" or any(not isinstance(value, (int, float)) for value in values)


def provenance_of(
    identity: dict[str, Any], options: dict[str, Any], job: Job, tests: Sequence[TestSet]
) -> dict[str, Any]:
    """What a result was made from, and what two results must share to be compared: `options`, among others."""
    spec, asked = _without_paths(identity["spec"]), job.posterior
    rows = [identity["data"], spec["data"], spec["task"], spec["model"].get("wrap"), spec.get("outputs")]
    named = {own.name: own.digest for own in tests if own.name is not None}
    rows += [list(named.items())] if named else []
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
        **({"test_sha256": named} if named else {}),
        "outputs": spec.get("outputs"),
        **options,
        "conformal": None if asked.conformal is None else {"level": asked.conformal, "by": asked.conformal_by},
        "dtype": job.compute.dtype,
        "seed": job.selection.seed,
    }


def _without_paths(data: Any) -> Any:
    """A part of the spec without the paths of its files."""
    if isinstance(data, dict):
        return {key: _without_paths(value) for key, value in data.items() if key not in ("path", "predictions")}
    return [_without_paths(value) for value in data] if isinstance(data, list) else data
