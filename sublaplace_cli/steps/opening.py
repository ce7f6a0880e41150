"""Opening a session: everything that can be known before computing is read and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .. import device as devices
from ..core.jacobian.capture import prepare_capture
from ..core.network.forward import last_linear
from ..core.network.layout import Layout
from ..core.workers import SINGLE_WORKER, WorkerGroup
from ..errors import UserError
from ..files.artifacts.run_folder import default_folder, fingerprint
from ..files.data.datasets import Scales, Split, data_files, load_splits, require_extra
from ..files.networks.networks import load_network
from ..files.spec.spec import LoadedSpec, find_spec, load_spec
from .identity import ensemble_files, identity_of, oracle_files
from .inputs import InputReader, check_targets, prior_vector
from .session import Session
from .settings import Reporter, Settings, parse_bytes

SAMPLE_ROWS = 8  # rows, spread over the data, on which the network is checked before the work starts


@contextmanager
def open_session(
    settings: Settings,
    report: Reporter,
    needs: tuple[str, ...],
    welcome: tuple[str, ...] = (),
    scales: Scales | None = None,
    workers: WorkerGroup = SINGLE_WORKER,
) -> Iterator[Session]:
    """Read and check everything that can be known before computing; `welcome` splits may be missing.

    With `scales` the training rows are left alone. All members of a team open it at the same time.
    """
    path = settings.spec if settings.spec is not None else find_spec(Path.cwd())
    spec = load_spec(path)
    require_extra(spec.spec.data.format)
    device = devices.choose(settings.device)
    memory = min(workers.exchange(_memory(settings, device, workers)))
    present = tuple(name for name in welcome if getattr(spec.spec.data.splits, name) is not None)
    if hasattr(spec.spec.posterior.prior_precision, "tune") and scales is None:
        present = (*present, "validation")
    session = _build(settings, spec, device, memory, report, (*needs, *present), scales, workers)
    require_agreement(session)
    try:
        yield session
        workers.end_calls()
    finally:
        session.close()


def _memory(settings: Settings, device: torch.device, workers: WorkerGroup) -> int:
    if settings.memory is not None:
        return parse_bytes(settings.memory, "--memory")
    return int(devices.free_memory(device) * devices.SAFE_SHARE / workers.workers_on_device)


def require_agreement(session: Session) -> None:
    """All members of a team must see the same network and the same rows, and differentiate it in the same way."""
    blocks = [[type(q).__name__, *(list(t.shape) for t in q.tensors().values())] for q in session.capture.templates]
    own = {
        "torch": torch.__version__,
        "weights, data or options": fingerprint(session.identity),
        "rows": {name: len(split) for name, split in session.splits.items()},
        "way of differentiating the network": [session.capture.rows_per_pass, session.capture.batched, blocks],
    }
    for rank, theirs in enumerate(session.workers.exchange(own)):
        for what, value in own.items():
            if theirs[what] != value:
                raise UserError(
                    f"rank {rank} has other {what} than rank {session.workers.rank}",
                    hint="all ranks need the same command, spec, checkpoint, data and version of torch",
                )


def _build(
    settings: Settings,
    spec: LoadedSpec,
    device: torch.device,
    memory: int,
    report: Reporter,
    needs: tuple[str, ...],
    scales: Scales | None,
    workers: WorkerGroup,
) -> Session:
    def resolve(value: str, field_name: str) -> Path:
        return spec.resolve(value, field_name, settings.allow_outside)

    host_memory = _memory(settings, torch.device("cpu"), workers)  # files are read there, whatever the device
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
    sample = reader.evenly_spaced(first, SAMPLE_ROWS)
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
        workers=workers,
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
