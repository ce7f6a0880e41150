"""The spec of a command, with access rules for its files and code, and the identity of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..catalog import CALIBRATED, load, task_of
from ..core.likelihoods import Likelihood
from ..core.network.layout import Layout
from ..errors import UserError
from ..files.artifacts.atomic import digest_of, digest_of_files
from ..files.artifacts.run_folder import fingerprint
from ..files.networks.loading import Network, NetworkSource, load_network
from ..files.spec.data import OOD
from ..files.spec.loading import LoadedSpec
from ..files.spec.models import ModelSpec, Spec
from ..results.metric_table import METRIC_VERSION
from .job import Job, ProjectOptions

ADD_VALIDATION = "add data.splits.validation, with rows that are neither trained on nor tested"


@dataclass(frozen=True)
class Project:
    """A loaded spec; its paths may leave its folder, and its code may run, only if the user permits it."""

    loaded: LoadedSpec
    options: ProjectOptions
    memory: int  # bytes of host memory for reading files

    @property
    def spec(self) -> Spec:
        return self.loaded.spec

    @property
    def likelihood(self) -> Callable[[], Likelihood]:
        """The class of the likelihood, by task and outputs."""
        return load(task_of(self.spec.task, self.spec.outputs).entry)

    def resolve(self, value: str, field: str) -> Path:
        return self.loaded.resolve(value, field, self.options.allow_outside)

    def load_network(self, part: ModelSpec, field: str, weights_path: Path | None = None) -> Network:
        source = NetworkSource(self.resolve, self.options.allow_code, self.loaded.folder, self.memory)
        return load_network(part, source, field=field, weights_path=weights_path)

    def reference_files(self) -> dict[str, list[Path]]:
        """Files of the oracle and the ensemble, all of them existing."""
        oracle, ensemble = self.spec.oracle, self.spec.ensemble
        of_oracle = (
            {}
            if oracle is None
            else {
                "oracle.weights.path": oracle.weights.path if oracle.weights else None,
                "oracle.predictions": oracle.predictions,
                "oracle.build.exported": oracle.build.exported if oracle.build else None,
            }
        )
        members = [] if ensemble is None else ensemble.checkpoints
        return {
            "oracle": [self._existing(value, field) for field, value in of_oracle.items() if value is not None],
            "ensemble": [self._existing(value, "ensemble.checkpoints") for value in members],
        }

    def _existing(self, value: str, field: str) -> Path:
        path = self.resolve(value, field)
        if not path.is_file():
            raise UserError(f"{self.loaded.path}: {field}: {path} does not exist")
        return path


def prior_vector(prior: object, layout: Layout, spec: Path) -> Tensor:
    """v (p,): one number for all, or by glob; an open number starts at 1."""
    if not isinstance(prior, Mapping):
        return torch.full((layout.size,), _number(prior), dtype=torch.float64)
    try:
        return layout.vector({pattern: _number(value) for pattern, value in prior.items()})
    except UserError as error:
        raise UserError(f"{spec}: posterior.prior_precision: {error.message}", hint=error.hint) from error


def _number(prior: object) -> float:
    return float(prior) if isinstance(prior, (int, float)) else 1.0


def identity_of(
    job: Job, project: Project, files: dict[str, list[Path]], device: torch.device, reference: str
) -> dict[str, Any]:
    """What identifies a run, as plain data: its files and every option that changes a number.

    `reference` is the name under which the rows that scores are taken over are stored.
    """
    spec, chosen = project.spec, job.selection
    described = spec.model_dump(mode="json", by_alias=True)
    described.pop("gate")  # it checks numbers and changes none
    if not spec.data.ood_sets and described["data"]["splits"]:
        described["data"]["splits"].pop(OOD)  # so that other specs keep their run folders and baselines
    if described["data"]["columns"] and described["data"]["columns"]["exclude"] is None:
        described["data"]["columns"].pop("exclude")  # likewise
    if described["model"].get("weights"):
        described["model"]["weights"].pop("path", None)  # its content counts, not its name
    prior = spec.posterior.prior_precision
    if isinstance(prior, dict):
        described["posterior"]["prior_precision"] = list(prior.items())  # in order: the first match counts
    return {
        "weights": digest_of_files(files["weights"]),
        "data": digest_of_files(files["data"], project.loaded.folder),
        "oracle": digest_of_files(files["oracle"]) if files["oracle"] else None,
        "ensemble": digest_of_files(files["ensemble"]) if files["ensemble"] else None,
        "spec": described,
        "options": {
            "dtype": job.compute.dtype,
            "gram_dtype": job.compute.gram_dtype,
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
    job: Job, project: Project, identity: Mapping[str, Any], device: torch.device, layout: Layout
) -> dict[str, Any]:
    """What every artifact of a run says about it."""
    return {
        "tool": __version__,
        "torch": torch.__version__,
        "device": device.type,
        "dtype": job.compute.dtype,
        "seed": job.selection.seed,
        "spec": project.spec.model_dump(mode="json", by_alias=True),
        "spec_sha256": project.loaded.sha256,
        "weights_sha256": identity["weights"],
        "data_sha256": identity["data"],
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


def split_names(job: Job, project: Project, with_train: bool) -> list[str]:
    """The names in order; without the training rows if a stored posterior predicts."""
    posterior = project.spec.posterior
    needed, welcome = job.split_names()
    names = [*(["train"] if with_train else []), *needed, *(name for name in welcome if _has(project, name))]
    if with_train:
        names += _held_out(job, project)
    names += filter(None, [getattr(posterior.noise_variance, "from_", None)])
    if job.posterior.conformal is not None:
        if not _has(project, "validation"):
            raise UserError(
                "--conformal needs rows of its own: the spec has no split 'validation'", hint=ADD_VALIDATION
            )
        names.append("validation")
    if job.command == "evaluate":
        names += list(project.spec.data.ood_sets)
    return list(dict.fromkeys(names))


def _held_out(job: Job, project: Project) -> list[str]:
    """Splits whose targets a calibration or a tuned prior is fitted to."""
    posterior, has_validation = project.spec.posterior, _has(project, "validation")
    if hasattr(posterior.prior_precision, "tune"):
        return ["validation" if has_validation else "test"]
    if job.command in ("fit", "evaluate") and (job.posterior.rescale or posterior.rescale) == CALIBRATED:
        return ["validation" if has_validation else "test"]
    is_compared = job.command == "evaluate" and task_of(project.spec.task).labels  # with a temperature
    return ["validation"] if has_validation and is_compared else []


def _has(project: Project, name: str) -> bool:
    return getattr(project.spec.data.splits, name, None) is not None


def provenance_of(identity: dict[str, Any], options: dict[str, Any], job: Job) -> dict[str, Any]:
    """What a result was made from, and what two results must share to be compared: `options`, among others."""
    spec, asked = _without_paths(identity["spec"]), job.posterior
    rows = [identity["data"], spec["data"], spec["task"], spec["model"].get("wrap")]
    rows += [] if spec["outputs"] is None else [spec["outputs"]]  # so that the usual ones keep their baselines
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
        "outputs": spec["outputs"],
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
