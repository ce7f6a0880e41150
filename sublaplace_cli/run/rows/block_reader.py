"""Blocks from an artifact to the device, through host memory that is only a buffer."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ... import device as devices
from ...core.jacobian.blocks import Block
from ...files.artifacts.artifact import Artifact

Piece = tuple[int, int, int]  # number of the block, first and last row


@dataclass(frozen=True)
class BlockReader:
    """Reads blocks; while a GPU computes, the next blocks are prefetched and checked."""

    artifact: Artifact
    device: torch.device
    templates: Sequence[Block]
    names: Sequence[Mapping[str, str]]  # per block: name in the block → name in the artifact
    prefetched: dict[Piece, Future[dict[str, Tensor]]] = field(default_factory=dict, compare=False)

    def read(self, number: int, start: int, stop: int) -> Block:
        future = self.prefetched.pop((number, start, stop), None)
        host = self._on_host(number, start, stop) if future is None else future.result()
        moved = {key: devices.move(tensor, self.device) for key, tensor in host.items()}
        return self.templates[number].with_tensors(moved)

    def prefetch(self, number: int, start: int, stop: int) -> None:
        """Start to read the next block. Not on the CPU, where it would compete with the computation."""
        if self.device.type != "cpu" and (number, start, stop) not in self.prefetched:
            self.prefetched[number, start, stop] = self._thread.submit(self._on_host, number, start, stop)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "block-reader")

    @cached_property
    def _source(self) -> Artifact:
        return replace(self.artifact, room=devices.room_for(self.device))

    def _on_host(self, number: int, start: int, stop: int) -> dict[str, Tensor]:
        return {key: self._source.rows(name, start, stop) for key, name in self.names[number].items()}
