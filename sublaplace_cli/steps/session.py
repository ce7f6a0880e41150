"""An open session: spec, network, data and run folder of one command, checked before any long computing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from .. import device as devices
from ..core.capture import Capture, prepare_capture
from ..core.forward import Inputs, last_linear
from ..core.layout import Layout
from ..core.rescale import Kind
from ..files.datasets import Scales, Split, data_files, load_splits, origin_of, require_extra
from ..files.networks import Network, load_network
from ..files.run_folder import RunFolder, default_folder, fingerprint
from ..files.spec import LoadedSpec, find_spec, load_spec
from .identity import ensemble_files, identity_of, oracle_files, provenance_of
from .inputs import InputReader, check_targets, prior_vector
from .settings import Reporter, Settings, parse_bytes

SAMPLE_ROWS = 8  # rows, spread over the data, on which the network is checked before the work starts


@dataclass
class Session:
    """What the steps work with; `kept` remembers what was made or read during this command."""

    settings: Settings
    spec: LoadedSpec
    device: torch.device
    memory: int
    network: Network
    model: nn.Module
    layout: Layout
    splits: Mapping[str, Split]
    reader: InputReader
    capture: Capture
    prior: Tensor  # v (p,)
    last_linear: tuple[str, ...]
    identity: Mapping[str, Any]
    input_files: tuple[Path, ...]
    folder_path: Path
    report: Reporter
    folder: RunFolder | None = None
    prior_precision: Any = None  # as numbers: of the spec, or as the marginal likelihood has it
    tuned: dict[str, Any] | None = None  # what the marginal likelihood said, where it was asked
    kept: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)

    @property
    def task(self) -> str:
        return self.spec.spec.task

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.settings.dtype)

    @property
    def n_outputs(self) -> int:
        return self.capture.n_outputs

    def split_name(self, name: str) -> str:
        """The split that holds these rows: `reference` is another name for train unless the spec says otherwise."""
        return origin_of(self.spec.spec.data, name)

    def split(self, name: str) -> Split:
        return self.splits[self.split_name(name)]

    def rows(self, name: str, start: int, stop: int) -> Inputs:
        """Input rows of a split, ready for the network."""
        return self.reader(self.split(name), start, stop)

    @property
    def reference(self) -> str:
        """The split that scores are taken over."""
        return self.split_name(self.settings.reference)

    @property
    def rescale(self) -> Kind:
        """The option, else what the spec says."""
        return self.settings.rescale or self.spec.spec.posterior.rescale  # type: ignore[return-value]

    @property
    def max_artifact(self) -> int:
        """The largest artifact that may be stored: the option's limit, and what the disk leaves free."""
        folder = next(q for q in [self.folder_path, *self.folder_path.parents] if q.is_dir())
        return min(
            parse_bytes(self.settings.max_artifact, "--max-artifact"),
            int(shutil.disk_usage(folder).free * 0.9),
        )

    def open_folder(self) -> RunFolder:
        """The run folder, locked; opened at the first use, so that a dry run touches nothing."""
        if self.folder is None:
            self.folder = RunFolder.open(
                self.folder_path, self.identity, force=self.settings.force, on_wait=self.report.note
            )
        return self.folder

    def describe(self, inputs: Mapping[str, str], **more: Any) -> dict[str, Any]:
        """Metadata that every artifact carries."""
        return {
            "tool": __version__,
            "torch": torch.__version__,
            "device": self.device.type,
            "dtype": self.settings.dtype,
            "seed": self.settings.seed,
            "spec": self.spec.spec.model_dump(mode="json", by_alias=True),
            "spec_sha256": self.spec.sha256,
            "weights_sha256": self.identity["weights"],
            "data_sha256": self.identity["data"],
            "fingerprint": fingerprint(self.identity),
            "parameters": [[q.name, list(q.shape), q.offset] for q in self.layout.parameters],
            "inputs": dict(inputs),
            **more,
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """What a result is made from."""
        return provenance_of(dict(self.identity), self.rescale, self.settings)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the wall time of the block to `seconds[step]`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            devices.synchronise(self.device)
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()


@contextmanager
def open_session(
    settings: Settings,
    report: Reporter,
    needs: tuple[str, ...],
    welcome: tuple[str, ...] = (),
    scales: Scales | None = None,
) -> Iterator[Session]:
    """Read and check everything that can be known before computing; `welcome` splits may be missing.

    With `scales` the training rows are left alone.
    """
    path = settings.spec if settings.spec is not None else find_spec(Path.cwd())
    spec = load_spec(path)
    require_extra(spec.spec.data.format)
    device = devices.choose(settings.device)
    memory = _memory(settings, device)
    present = tuple(name for name in welcome if getattr(spec.spec.data.splits, name) is not None)
    if hasattr(spec.spec.posterior.prior_precision, "tune") and scales is None:
        present = (*present, "validation")
    session = _build(settings, spec, device, memory, report, (*needs, *present), scales)
    try:
        yield session
    finally:
        session.close()


def _memory(settings: Settings, device: torch.device) -> int:
    if settings.memory is not None:
        return parse_bytes(settings.memory, "--memory")
    return int(devices.free_memory(device) * devices.SAFE_SHARE)


def _build(
    settings: Settings,
    spec: LoadedSpec,
    device: torch.device,
    memory: int,
    report: Reporter,
    needs: tuple[str, ...],
    scales: Scales | None,
) -> Session:
    def resolve(value: str, field_name: str) -> Path:
        return spec.resolve(value, field_name, settings.allow_outside)

    host_memory = _memory(settings, torch.device("cpu"))  # files are read there, whatever the device
    model_spec = spec.spec.model
    network = load_network(
        model_spec.build,
        model_spec.weights,
        model_spec.wrap,
        resolve=resolve,
        field="model",
        allow_code=settings.allow_code,
        spec_folder=spec.folder,
        memory=host_memory,
        weights_path=Path(settings.checkpoint[0]) if settings.checkpoint else None,
    )
    model = network.module.eval().to(device=device, dtype=getattr(torch, settings.dtype))
    layout = Layout.of(model)
    prior = prior_vector(spec.spec.posterior.prior_precision, layout, spec.path).to(device)
    splits = _load_splits(spec, needs, resolve, host_memory, scales)
    first = next(iter(splits.values()))  # the training rows, where they are read
    reader = InputReader.for_model(model, first, device)
    sample = reader.spread(first, SAMPLE_ROWS)
    capture = prepare_capture(model, layout, sample, memory)
    for note in capture.notes:
        report.note(note)
    check_targets(spec.spec.task, capture.n_outputs, splits)
    data = data_files(spec.spec.data, resolve, None if scales is None else needs)
    oracle = oracle_files(spec, resolve)
    members = ensemble_files(spec, resolve)
    known_by = identity_of(settings, spec, network, device, data, oracle, members)
    folder = settings.run_dir if settings.run_dir is not None else default_folder(spec.folder, known_by)
    return Session(
        settings=settings,
        spec=spec,
        device=device,
        memory=memory,
        network=network,
        model=model,
        layout=layout,
        splits=splits,
        reader=reader,
        capture=capture,
        prior=prior,
        last_linear=tuple(last_linear(model, sample)),
        identity=known_by,
        input_files=(spec.path, *network.files, *data, *oracle, *members),
        folder_path=folder.absolute(),
        report=report,
        prior_precision=spec.spec.posterior.prior_precision,
    )


def _load_splits(
    spec: LoadedSpec,
    needs: tuple[str, ...],
    resolve: Callable[[str, str], Path],
    memory: int,
    scales: Scales | None,
) -> dict[str, Split]:
    from_test = getattr(spec.spec.posterior.noise_variance, "from_", None) == "test"
    names = dict.fromkeys([*([] if scales is not None else ["train"]), *needs, *(["test"] if from_test else [])])
    wrap = spec.spec.model.wrap
    return load_splits(
        spec.spec.data,
        list(names),
        task=spec.spec.task,
        resolve=resolve,
        memory=memory,
        positive_classes=wrap.binary_logodds.classes if wrap is not None else None,
        scales=scales,
    )
