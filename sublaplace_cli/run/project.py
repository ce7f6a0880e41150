"""The spec of a command, with access rules for its files and code, and the identity of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ..catalog import CALIBRATED, load, task_of
from ..core.likelihoods import Likelihood
from ..core.network.layout import Layout
from ..errors import UserError
from ..files.artifacts.atomic import digest_of, digest_of_files
from ..files.data.datasets import origin_of
from ..files.data.tokenizing import tokenizer_files
from ..files.networks.huggingface.network import folder_files
from ..files.networks.loading import Network, NetworkSource, load_network
from ..files.spec.data import DataSpec
from ..files.spec.loading import LoadedSpec
from ..files.spec.models import ModelSpec, Spec
from ..files.spec.splits import TEST
from .job import Job, ProjectOptions
from .rows.test_sets import check_test_files, with_one_test_set, with_test_files

ADD_VALIDATION = "add data.splits.validation, with rows that are neither trained on nor tested"


@dataclass(frozen=True)
class Project:
    """A loaded spec; its paths may leave its folder, and its code may run, only if the user permits it."""

    loaded: LoadedSpec
    options: ProjectOptions
    memory: int  # bytes of host memory for reading files

    @cached_property
    def spec(self) -> Spec:
        check_test_files(self.options.test_files, self.loaded.spec.data)
        return _with_data(self.loaded.spec, with_test_files(self.loaded.spec.data, self.options.test_files))

    def identifying_spec(self, job: Job, with_train: bool) -> Spec:
        """The spec that identifies a run: of its test rows only those that something may be fitted to.

        Artifacts of the other sets say which rows they are of, so that one run folder serves all sets.
        """
        with_own_rows = not with_train or fits_test_rows(job, self)
        spec = self.spec if with_own_rows else self.loaded.spec
        return _with_data(spec, with_one_test_set(spec.data))

    @property
    def likelihood(self) -> Callable[[], Likelihood]:
        """The class of the likelihood, by task and outputs."""
        return load(task_of(self.spec.task, self.spec.outputs).entry)

    def resolve(self, value: str, field: str) -> Path:
        if self._is_named_by_hand(Path(value)):
            return Path(value)
        return self.loaded.resolve(value, field, self.options.allow_outside)

    def _is_named_by_hand(self, path: Path) -> bool:
        """Whether the command line names the file, or the folder that it is in."""
        named = [own.resolve() for own in self.options.test_files.values()] if path.is_absolute() else []
        return any(path.resolve().is_relative_to(own) for own in named)

    def load_network(self, part: ModelSpec, field: str, weights_path: Path | None = None) -> Network:
        source = NetworkSource(self.resolve, self.options.allow_code, self.loaded.folder, self.memory)
        return load_network(part, source, field=field, weights_path=weights_path)

    @cached_property
    def texts_digest(self) -> str | None:
        """Of what turns texts into tokens; None without texts."""
        text = self.spec.data.text
        if text is None:
            return None
        tokenizer = digest_of_files(tokenizer_files(self.spec, self.resolve))
        return digest_of([text.max_length, text.pair is not None, tokenizer])

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
        build = oracle.build if oracle is not None and oracle.build and oracle.build.huggingface else None
        of_folder = [] if build is None else folder_files(build, "oracle.build", self.resolve)
        members = [] if ensemble is None else ensemble.checkpoints
        return {
            "oracle": [
                *(self._existing(value, field) for field, value in of_oracle.items() if value is not None),
                *of_folder,
            ],
            "ensemble": [self._existing(value, "ensemble.checkpoints") for value in members],
        }

    def _existing(self, value: str, field: str) -> Path:
        path = self.resolve(value, field)
        if not path.is_file():
            raise UserError(f"{self.loaded.path}: {field}: {path} does not exist")
        return path


def _with_data(spec: Spec, data: DataSpec) -> Spec:
    return spec if data is spec.data else spec.model_copy(update={"data": data})


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


def split_names(job: Job, project: Project, with_train: bool) -> list[str]:
    """The names in order; without the training rows if a stored posterior predicts."""
    posterior = project.spec.posterior
    needed, welcome = _asked_splits(job)
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
    if job.command in ("jacobians", "evaluate") and TEST in names:
        names += list(project.spec.data.test_sets)
    if job.command == "evaluate":
        names += list(project.spec.data.ood_sets)
    return list(dict.fromkeys(names))


def _asked_splits(job: Job) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Splits that the command requires, and those that it uses if the spec has them."""
    if job.posterior.posterior is not None:
        return ("test",), ()
    only_rows = job.command == "jacobians" and not job.selection.scores_only
    needs = ["train"] if only_rows else ["train", "reference"]
    if job.command == "evaluate" or job.selection.reference == "test":
        needs.append("test")
    if not only_rows:
        return tuple(needs), ()
    if job.selection.split == "all":
        return (*needs, "reference"), ("test",)
    return (*needs, job.selection.split), ()


def fits_test_rows(job: Job, project: Project) -> bool:
    """Whether test rows take part in the scores, or a number is fitted to their targets."""
    data, noise = project.spec.data, getattr(project.spec.posterior.noise_variance, "from_", None)
    used = ["train", job.selection.reference, *_held_out(job, project), *([] if noise is None else [noise])]
    return any(origin_of(data, name) in data.test_sets for name in used)


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
