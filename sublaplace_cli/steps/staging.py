"""Blocks out of an artifact, on their way to the device: read into host memory that is only passed through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from .. import device as devices
from ..core.jacobian.blocks import Block
from ..files.artifacts.artifact import Artifact

Place = tuple[int, int, int]  # block, first and last row


@dataclass(frozen=True)
class StagedBlocks:
    """Reads blocks; where a device works on them, the next ones are read and checked meanwhile."""

    artifact: Artifact
    device: torch.device
    templates: Sequence[Block]
    names: Sequence[Mapping[str, str]]  # of each block's tensors: as the block and as the artifact calls them
    coming: dict[Place, Future[dict[str, Tensor]]] = field(default_factory=dict, compare=False)

    def read(self, number: int, start: int, stop: int) -> Block:
        """A block on the device."""
        expected = self.coming.pop((number, start, stop), None)
        host = self._on_host(number, start, stop) if expected is None else expected.result()
        moved = {key: devices.move(tensor, self.device) for key, tensor in host.items()}
        return self.templates[number].with_tensors(moved)

    def expect(self, number: int, start: int, stop: int) -> None:
        """This will be asked for next. Where host and device are one, reading ahead would only compete for it."""
        if self.device.type != "cpu" and (number, start, stop) not in self.coming:
            self.coming[number, start, stop] = self._reader.submit(self._on_host, number, start, stop)

    @cached_property
    def _reader(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "reader")

    @cached_property
    def _source(self) -> Artifact:
        return replace(self.artifact, room=devices.room_for(self.device))

    def _on_host(self, number: int, start: int, stop: int) -> dict[str, Tensor]:
        return {key: self._source.rows(name, start, stop) for key, name in self.names[number].items()}
