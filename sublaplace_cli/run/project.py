"""The spec of a command, with access rules for its files and code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..catalog import TASKS, load
from ..core.likelihoods import Likelihood
from ..core.network.layout import Layout
from ..errors import UserError
from ..files.networks.loading import Network, NetworkSource, load_network
from ..files.spec.loading import LoadedSpec
from ..files.spec.models import ModelSpec, Spec
from .job import ProjectOptions


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
        """The class of the task's likelihood."""
        return load(TASKS[self.spec.task].entry)

    def resolve(self, value: str, field: str) -> Path:
        return self.loaded.resolve(value, field, self.options.allow_outside)

    def load_network(self, part: ModelSpec, field: str, weights_path: Path | None = None) -> Network:
        """A network that the spec describes."""
        source = NetworkSource(self.resolve, self.options.allow_code, self.loaded.folder, self.memory)
        return load_network(part, source, field=field, weights_path=weights_path)

    def ensemble_files(self) -> list[Path]:
        """Checkpoints of the ensemble, all of them existing."""
        named = self.spec.ensemble.checkpoints if self.spec.ensemble is not None else []
        return self._existing([("ensemble.checkpoints", value) for value in named])

    def oracle_files(self) -> list[Path]:
        """Files behind the oracle, all of them existing."""
        oracle = self.spec.oracle
        if oracle is None:
            return []
        named = {
            "oracle.weights.path": oracle.weights.path if oracle.weights else None,
            "oracle.predictions": oracle.predictions,
            "oracle.build.exported": oracle.build.exported if oracle.build else None,
        }
        return self._existing([(field, value) for field, value in named.items() if value is not None])

    def _existing(self, named: list[tuple[str, str]]) -> list[Path]:
        files = [(field, self.resolve(value, field)) for field, value in named]
        for field, path in files:
            if not path.is_file():
                raise UserError(f"{self.loaded.path}: {field}: {path} does not exist")
        return [path for _, path in files]


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
