"""A run is opened: everything is read and checked before any long computation."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import nn

from .. import device as devices
from ..core.jacobian.capture import SAMPLE_ROWS, Capture, prepare_capture
from ..core.kernels import choice as kernels
from ..core.network.forward import Inputs, last_linear
from ..core.network.layout import Layout, weights_digest
from ..core.workers import WorkerGroup
from ..errors import UserError
from ..files.artifacts.run_folder import default_folder
from ..files.data.datasets import Scales, Split, data_files, load_splits, origin_of, require_extra
from ..files.data.labels import FIX_ORDER
from ..files.data.tokenizing import tokenizer_files
from ..files.networks.huggingface.logits import other_order_of_labels, require_known_tokens
from ..files.spec.loading import LoadedSpec
from ..reporter import Reporter
from .identity.agreement import require_agreement
from .identity.network import LOGIT_ROWS, NetworkFacts, NetworkIdentity, check_logits, identify
from .identity.run_identity import identity_of, metadata_of
from .job import Job
from .project import Project, prior_vector, split_names
from .rows.passes import InputReader, Passes
from .rows.sampled import sampled_passes
from .rows.splits import Splits, check_targets
from .rows.test_sets import test_sets_of
from .run import Run
from .store import Store


@contextmanager
def open_run(
    job: Job, spec: LoadedSpec, reporter: Reporter, workers: WorkerGroup, scales: Scales | None = None
) -> Iterator[Run]:
    """Read and check everything before the computation.

    With `scales` the training rows are not read. All workers open it at the same time.
    """
    device = devices.choose(job.compute.device)
    kernels.choose(job.compute.kernels, reporter.note)
    if job.compute.kernels == "triton" and device.type != "cuda":
        reporter.note(f"the Triton kernels are for CUDA devices: {device} does without")
    memory = min(workers.exchange(_memory(job, device, workers)))
    host = device if device.type == "cpu" else torch.device("cpu")  # files are always read there
    project = Project(spec, job.project, _memory(job, host, workers))
    require_extra(project.spec.data.format)
    run = _Preparation(job, project, device, memory, workers, reporter, scales).run()
    require_agreement(run)
    try:
        yield run
        workers.end_calls()
    finally:
        run.store.close()


def _memory(job: Job, device: torch.device, workers: WorkerGroup) -> int:
    if job.memory is not None:
        return job.memory
    return int(devices.free_memory(device) * devices.SAFE_SHARE / workers.workers_on_device)


@dataclass(frozen=True)
class _ReadNetwork:
    model: nn.Module
    layout: Layout
    files: list[Path]  # that define it
    weights_sha256: str


@dataclass(frozen=True)
class _Preparation:
    """Network → rows → a trial of both → passes → identity and store."""

    job: Job
    project: Project
    device: torch.device
    memory: int
    workers: WorkerGroup
    reporter: Reporter
    scales: Scales | None

    def run(self) -> Run:
        network = self._network()
        names = split_names(self.job, self.project, with_train=self.scales is None)
        splits = load_splits(self.project.spec, names, self.project.resolve, self.project.memory, self.scales)
        first = next(iter(splits.values()))  # the training rows, if they are read
        reader = self._reader(network.model, splits, first)
        sample = reader.evenly_spaced(first, SAMPLE_ROWS)
        own = self._network_identity(network, sample)
        capture = prepare_capture(network.model, network.layout, sample, self.memory)
        self._note(capture.notes)
        check_targets(self.project.likelihood(), capture.n_outputs, splits)
        read, passes = self._splits(splits), self._passes(network.model, reader, capture, sample)
        store, files = self._store(network, names, read, own, sampled=passes.sampled is not None)
        last = tuple(last_linear(network.model, sample))
        facts = NetworkFacts(network.layout, last, files, tuple(network.files), own)
        passes.over(first.name).float64_checks.try_out(read.of(first.name))
        return Run(
            *(self.job, self.project, facts, read, passes),
            *(self.device, self.memory, self.workers, store, self.reporter),
        )

    def _network(self) -> _ReadNetwork:
        project, named = self.project, self.job.project.checkpoint
        network = project.load_network(project.spec.model, "model", Path(named[0]) if named else None)
        weights_sha256 = weights_digest(network.module)  # before it changes its dtype
        model = network.module.eval().to(device=self.device, dtype=getattr(torch, self.job.compute.dtype))
        layout = Layout.of(model)
        if not layout.parameters:
            hint = "check requires_grad in the code that builds it"
            raise UserError("the model has no trainable parameter", hint=hint)
        prior_vector(project.spec.posterior.prior_precision, layout, project.loaded.path)  # refuses a wrong glob early
        return _ReadNetwork(model, layout, list(network.files), weights_sha256)

    def _reader(self, model: nn.Module, splits: dict[str, Split], first: Split) -> InputReader:
        """How rows are read; one row of every split runs through the network."""
        self._note(note for split in splits.values() for note in split.notes)
        for name, split in splits.items():
            require_known_tokens(model, split.raw, f"the {name} rows")
        self._check_order(model, first)
        reader = InputReader.for_model(model, first, self.device)
        for name, split in splits.items():
            if split is not first:
                reader.check_row(model, split, f"the {name} rows")
        check_logits(self.project.spec.task, model, reader.evenly_spaced(first, LOGIT_ROWS), self.reporter)
        return reader

    def _check_order(self, model: nn.Module, first: Split) -> None:
        """The classes in the order of the network's own labels; what the spec or a posterior says is only doubted."""
        theirs = None if first.classes is None else other_order_of_labels(model, first.classes)
        if theirs is None:
            return
        if self.scales is None and self.project.spec.data.classes is None:
            found = f"the labels are numbered in sorted order, but those of the network are: {theirs}"
            raise UserError(found, hint=FIX_ORDER)
        self.reporter.warn(f"the classes are in another order than the network's own labels (id2label): {theirs}")

    def _network_identity(self, network: _ReadNetwork, sample: Inputs) -> NetworkIdentity:
        if self.project.spec.model.build.arch is not None:  # the spec says what it computes
            return NetworkIdentity(network.weights_sha256, None, None)
        return identify(network.weights_sha256, network.model, sample, network.files, self.workers)

    def _splits(self, splits: dict[str, Split]) -> Splits:
        data = self.project.spec.data
        origins = {name: origin_of(data, name) for name in ("train", "reference", *splits)}
        origins |= {origin: origin for origin in origins.values()}
        tests = test_sets_of(data, list(origins), self.project.resolve)
        return Splits(splits, origins, {origins[name]: split for name, split in splits.items()}, tests)

    def _passes(self, model: nn.Module, reader: InputReader, capture: Capture, sample: Inputs) -> Passes:
        passes, project = Passes(model, reader, capture, self.reporter), self.project
        if self.scales is None:  # the training rows are read
            seed = self.job.selection.seed
            passes.sampled = sampled_passes(passes, project.spec, project.likelihood(), seed, sample, self.memory)
        return passes

    def _store(
        self, network: _ReadNetwork, names: list[str], read: Splits, own: NetworkIdentity, *, sampled: bool
    ) -> tuple[Store, tuple[Path, ...]]:
        """The store in the run's folder, and all files that the run reads."""
        job, project, device = self.job, self.project, self.device
        known_by = project.identifying_spec(job, with_train=self.scales is None)
        own_names = [name for name in names if name in known_by.data.named_splits]
        data = data_files(known_by.data, project.resolve, None if self.scales is None else own_names)
        data += tokenizer_files(project.spec, project.resolve)
        files = {"network": network.files, "data": data, **project.reference_files()}
        reference = read.stored_as(job.selection.reference, samples=sampled)
        identity = identity_of(job, project, known_by, own, files, device, reference)
        metadata = metadata_of(job, project, known_by, identity, device, own, network.layout)
        folder = job.project.run_dir or default_folder(project.loaded.folder, identity)
        store = Store(folder.absolute(), identity, metadata, self.reporter)
        store.force, store.max_bytes, store.device = job.compute.recompute, job.max_artifact, device
        return store, (project.loaded.path, *chain(*files.values(), *(test.files for test in read.tests)))

    def _note(self, notes: Iterator[str] | tuple[str, ...]) -> None:
        for note in dict.fromkeys(notes):
            self.reporter.note(note)
