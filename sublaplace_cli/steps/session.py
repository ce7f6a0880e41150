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
from ..core.jacobian.capture import Capture, Captured, joined_passes
from ..core.network.forward import Inputs, map_inputs, row_count
from ..core.network.layout import Layout
from ..core.posterior.rescale import Kind
from ..core.workers import SINGLE_WORKER, Answer, WorkerGroup
from ..files.artifacts.run_folder import RunFolder, fingerprint
from ..files.data.datasets import Split, origin_of
from ..files.networks.networks import Network
from ..files.spec.spec import LoadedSpec
from .identity import provenance_of
from .inputs import InputReader
from .settings import Reporter, Settings, format_bytes, parse_bytes


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
    workers: WorkerGroup = SINGLE_WORKER  # those who share the rows
    folder: RunFolder | None = None
    most_rows: int = 2**62  # of one pass, after running out of memory
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
    def gram_dtype(self) -> torch.dtype:
        return getattr(torch, self.settings.gram_dtype)

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

    def pass_rows(self, name: str) -> int:
        """Rows of each pass over a split."""
        return self.capture.rows_of_pass(len(self.split(name)))

    def take_pass(self, inputs: Inputs) -> Captured:
        """Outputs and blocks of these rows; after running out of memory, in passes of half as many."""
        n_rows = row_count(inputs)
        while True:
            rows = min(self.most_rows, n_rows)
            cuts = [slice(a, a + rows) for a in range(0, n_rows, rows)]
            try:
                return joined_passes([self.capture(map_inputs(lambda t, cut=cut: t[cut], inputs)) for cut in cuts])  # type: ignore[misc]
            except devices.OUT_OF_MEMORY:
                if rows == 1:
                    raise
            # Only now: while the error is handled, it keeps alive what the pass had made.
            devices.release(self.device)
            self.most_rows = rows // 2
            self.report.note(
                f"out of memory on {self.device}: going on in passes of {rows // 2} rows instead of {rows}"
            )

    def shrink(self) -> None:
        """After running out of memory: half of it, and nothing kept in it but what the run has settled."""
        self.kept = {key: value for key, value in self.kept.items() if key.startswith("noise-")}
        devices.release(self.device)
        self.memory //= 2
        reused = "" if self.settings.force else "; finished parts are reused"
        self.report.note(f"out of memory on {self.device}: going on within {format_bytes(self.memory)}{reused}")

    def together(self, question: Callable[..., Answer], *arguments: Any, **of_the_leader: Any) -> Answer:
        """`question(session, …)` on all members of the team at the same time."""
        self.workers.call_on_all(question.__name__, arguments)
        was, self.workers.busy = self.workers.busy, True
        try:
            return question(self, *arguments, **of_the_leader)
        finally:
            self.workers.busy = was

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
