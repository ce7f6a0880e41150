"""An open run: project, network, rows, device and store of one command, checked before any long computation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .. import device as devices
from ..catalog import CALIBRATED, LINKS, TASKS
from ..core.jacobian.capture import SAMPLE_ROWS, prepare_capture
from ..core.likelihoods import Likelihood
from ..core.likelihoods.links import Link
from ..core.network.forward import last_linear
from ..core.network.layout import Layout, network_digest
from ..core.workers import WorkerGroup
from ..errors import UserError
from ..files.artifacts.run_folder import default_folder, fingerprint
from ..files.data.datasets import Scales, Split, data_files, load_splits, origin_of, require_extra
from ..files.spec.loading import LoadedSpec
from ..reporter import Reporter
from ..sizes import format_bytes
from .job import Choice, Job
from .project import Project, identity_of, metadata_of, prior_vector, provenance_of, split_names
from .rows.passes import InputReader, Passes, parts_of
from .rows.row_shards import RowSource
from .rows.row_storage import RowStorage
from .rows.sampled import sampled_passes
from .rows.splits import Splits
from .store import Store


@dataclass(frozen=True)
class NetworkFacts:
    """Facts about the network that need no derivatives."""

    layout: Layout
    last_linear: tuple[str, ...]  # parameters of the last nn.Linear that runs
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Run:
    """What one command works with."""

    job: Job
    project: Project
    network: NetworkFacts
    splits: Splits
    passes: Passes
    device: torch.device
    memory: int  # memory budget of the computation in bytes
    workers: WorkerGroup
    store: Store
    reporter: Reporter

    @property
    def layout(self) -> Layout:
        return self.network.layout

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The requested choices, with every k that is already known."""
        return tuple(choice.for_network(self.layout.size) for choice in self.job.choices)

    @property
    def rescale(self) -> str:
        """The option if set, otherwise the value of the spec."""
        return self.job.posterior.rescale or self.project.spec.posterior.rescale

    @property
    def calibrates(self) -> bool:
        return self.rescale == CALIBRATED

    @property
    def calibrates_noise(self) -> bool:
        return self.project.spec.posterior.noise_variance == CALIBRATED

    @property
    def needs_held_out_rows(self) -> bool:
        """Whether methods predict held-out rows, and not only the test rows."""
        return self.calibrates or self.job.posterior.conformal is not None

    @property
    def fitted_rescale(self) -> str:
        """The rescaling that is fitted to training rows; a calibration is applied to finished predictions."""
        return "none" if self.calibrates else self.rescale

    @property
    def held_out(self) -> str:
        """The split whose targets a calibration is fitted to."""
        return "validation" if "validation" in self.splits.by_name else "test"

    def check_held_out(self, who: str) -> None:
        """Refuse a calibration without targets, or with fewer test rows than folds."""
        split, folds = self.split(self.held_out), self.job.posterior.folds
        if split.targets is None:
            raise UserError(f"{who}: the {self.held_out} rows have no targets to calibrate on")
        if self.held_out == "test" and len(split) < folds:
            raise UserError(f"{who}: {len(split)} test rows are too few for --folds {folds}")

    @property
    def link(self) -> Link | None:
        """How class probabilities are computed; None if there are no classes."""
        if not TASKS[self.project.spec.task].labels:
            return None
        return cast(Link, self.job.posterior.link or self.project.spec.posterior.link or LINKS[0])

    @property
    def unit_likelihood(self) -> Likelihood:
        """The task's likelihood before its noise variance is known."""
        likelihood = self.project.likelihood()
        return likelihood if self.link is None else likelihood.with_link(self.link)

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.job.compute.dtype)

    def split(self, name: str) -> Split:
        return self.splits.of(name)

    def stored_as(self, name: str) -> str:
        """The name under which the Jacobian of a split is stored."""
        return self.splits.stored_as(name, samples=self.passes.sampled is not None)

    def samples(self, name: str) -> bool:
        """Whether the Jacobian of a split is one of random combinations of the outputs."""
        return self.passes.over(self.stored_as(name)) is not self.passes

    def targets(self, name: str) -> Tensor | None:
        """Numbers (N, C) float64, or classes (N,) int64."""
        targets = self.split(name).targets
        return None if targets is None else torch.from_numpy(np.array(targets)).to(self.device)

    def outputs(self, name: str) -> Tensor:
        """f of a split (N, C) by plain forward passes."""
        return self.passes.reader.outputs(self.passes.model, self.split(name))

    def row_source(self, name: str) -> RowSource:
        """By the name under which the rows are stored."""
        split, passes = self.split(name), self.passes.over(name)
        return RowSource(
            name, split, passes, self.layout, self.unit_likelihood, self.device, self.workers, self.reporter
        )

    def row_storage(self, name: str) -> RowStorage:
        source, written = self.row_source(name), not self.job.selection.scores_only
        return RowStorage(source, self.memory, written and source.compact_bytes() <= self.store.limit, written)

    @cached_property
    def serving(self) -> dict[str, Any]:
        """Metadata with which a posterior can predict without spec and data files."""
        return {
            "network_sha256": network_digest(self.passes.model),
            "row_shapes": [list(array.shape[1:]) for array in parts_of(self.split("train").raw)],
            "integers_as_floats": self.passes.reader.integers_as_floats,
        }

    @property
    def provenance(self) -> dict[str, Any]:
        options = {"rescale": self.rescale, "link": self.link, "hessian": self.passes.hessian}
        return provenance_of(self.store.identity, options, self.job)

    def with_half_the_memory(self) -> Run:
        """The same run after it ran out of memory; finished parts come from the store."""
        devices.release(self.device)
        reused = "" if self.job.compute.recompute else "; finished parts are reused"
        half = self.memory // 2
        self.reporter.note(f"out of memory on {self.device}: continuing within {format_bytes(half)}{reused}")
        return replace(self, memory=half)


@contextmanager
def open_run(
    job: Job, spec: LoadedSpec, reporter: Reporter, workers: WorkerGroup, scales: Scales | None = None
) -> Iterator[Run]:
    """Read and check everything before the computation.

    With `scales` the training rows are not read. All workers open it at the same time.
    """
    device = devices.choose(job.compute.device)
    memory = min(workers.exchange(_memory(job, device, workers)))
    host = device if device.type == "cpu" else torch.device("cpu")  # files are always read there
    project = Project(spec, job.project, _memory(job, host, workers))
    require_extra(project.spec.data.format)
    run = _checked_run(job, project, device, memory, workers, reporter, scales)
    _require_agreement(run)
    try:
        yield run
        workers.end_calls()
    finally:
        run.store.close()


def _memory(job: Job, device: torch.device, workers: WorkerGroup) -> int:
    if job.memory is not None:
        return job.memory
    return int(devices.free_memory(device) * devices.SAFE_SHARE / workers.workers_on_device)


def _checked_run(
    job: Job,
    project: Project,
    device: torch.device,
    memory: int,
    workers: WorkerGroup,
    reporter: Reporter,
    scales: Scales | None,
) -> Run:
    weights = Path(job.project.checkpoint[0]) if job.project.checkpoint else None
    network = project.load_network(project.spec.model, "model", weights)
    model = network.module.eval().to(device=device, dtype=getattr(torch, job.compute.dtype))
    layout = Layout.of(model)
    if not layout.parameters:
        raise UserError("the model has no trainable parameter", hint="check requires_grad in the code that builds it")
    prior_vector(project.spec.posterior.prior_precision, layout, project.loaded.path)  # refuses a wrong glob early
    names = split_names(job, project, with_train=scales is None)
    splits = load_splits(project.spec, names, project.resolve, project.memory, scales)
    first = next(iter(splits.values()))  # the training rows, if they are read
    reader = InputReader.for_model(model, first, device)
    for name, split in splits.items():
        if split is not first:
            reader.check_row(model, split, f"the {name} rows")
    sample = reader.evenly_spaced(first, SAMPLE_ROWS)
    capture = prepare_capture(model, layout, sample, memory)
    for note in capture.notes:
        reporter.note(note)
    _check_targets(project.likelihood(), capture.n_outputs, splits)
    origins = {name: origin_of(project.spec.data, name) for name in ("train", "reference", *splits)}
    read = Splits(splits, origins, {origins[name]: split for name, split in splits.items()})
    passes = Passes(model, reader, capture, reporter)
    if scales is None:  # the training rows are read
        seed = job.selection.seed
        passes.sampled = sampled_passes(passes, project.spec, project.likelihood(), seed, sample, memory)
    data = data_files(project.spec.data, project.resolve, None if scales is None else names)
    files = {"weights": list(network.files), "data": data, **project.reference_files()}
    reference = read.stored_as(job.selection.reference, samples=passes.sampled is not None)
    identity = identity_of(job, project, files, device, reference)
    folder = job.project.run_dir or default_folder(project.loaded.folder, identity)
    store = Store(folder.absolute(), identity, metadata_of(job, project, identity, device, layout), reporter)
    store.force, store.max_bytes, store.device = job.compute.recompute, job.max_artifact, device
    facts = NetworkFacts(layout, tuple(last_linear(model, sample)), (project.loaded.path, *chain(*files.values())))
    passes.over(first.name).float64_checks.try_out(read.of(first.name))
    return Run(job, project, facts, read, passes, device, memory, workers, store, reporter)


def _check_targets(likelihood: Likelihood, n_outputs: int, splits: Mapping[str, Split]) -> None:
    """The likelihood, the network's outputs and the targets must fit together."""
    likelihood.check_outputs(n_outputs)
    for name, split in splits.items():
        if split.targets is not None:
            likelihood.check_targets(split.targets, split.rows, n_outputs, name)
        elif name == "train":
            raise UserError(
                "the training rows have no targets", hint="name them with data.columns.target or data.arrays.target"
            )


def _require_agreement(run: Run) -> None:
    """All workers must see the same network and the same rows, and differentiate it in the same way."""
    captures = [run.passes.capture, run.passes.over("train").capture]
    blocks = [
        [type(block).__name__, *(list(tensor.shape) for tensor in block.tensors().values())]
        for capture in captures
        for block in capture.templates
    ]
    own = {
        "torch": torch.__version__,
        "weights, data or options": fingerprint(run.store.identity),
        "rows": {name: len(split) for name, split in run.splits.by_name.items()},
        "way of differentiating the network": [
            *([own.rows_per_pass for own in captures], captures[0].batched, blocks),
            run.passes.float64_checks.network.are_comparable,
        ],
    }
    for rank, theirs in enumerate(run.workers.exchange(own)):
        for what, value in own.items():
            if theirs[what] != value:
                raise UserError(
                    f"rank {rank} has other {what} than rank {run.workers.rank}",
                    hint="all ranks need the same command, spec, checkpoint, data and version of torch",
                )
