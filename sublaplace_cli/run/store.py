"""The store of one run: the only place that decides between reusing an artifact and making it."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .. import device as devices
from ..files.artifacts.artifact import Artifact, write_artifact
from ..files.artifacts.layout import TensorPlan
from ..files.artifacts.row_writer import RowWriter
from ..files.artifacts.run_folder import RunFolder, fingerprint
from ..reporter import Reporter

Value = TypeVar("Value")
Content = tuple[Mapping[str, Tensor], Mapping[str, Any]]  # tensors and metadata of an artifact
Read = Callable[[Artifact], Value | None]  # None: the artifact cannot be used here
Write = Callable[[Value], Content | None]  # None: the value is not to be stored


@dataclass(frozen=True)
class Stored(Generic[Value]):
    """A value with the digest of its artifact; the digest is None if it was too large to be stored."""

    value: Value
    digest: str | None


@dataclass(frozen=True)
class Key:
    """The key of an artifact: `inputs` are digests of its inputs, `facts` must match as well."""

    kind: str
    name: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    step: str | None = None  # to which the time of making it is added


class Store:
    """Artifacts of one run folder, with their metadata; remembers what was used and how long each step took."""

    def __init__(self, path: Path, identity: dict[str, Any], metadata: Mapping[str, Any], reporter: Reporter) -> None:
        self.path, self.identity, self.reporter = path, identity, reporter
        self.fingerprint = fingerprint(identity)
        self.metadata = {**metadata, "fingerprint": self.fingerprint}
        self.force, self.max_bytes, self.device = False, 2**62, torch.device("cpu")
        self.seconds: dict[str, float] = {}
        self.artifacts: dict[str, str] = {}  # paths of the artifacts that this command made or reused
        self._folder: RunFolder | None = None
        self._inner_seconds = 0.0  # of timed blocks inside the current one
        self.keeps = True  # whether anything is stored

    def get(self, key: Key, make: Callable[[], Value], read: Read[Value], write: Write[Value]) -> Stored[Value]:
        """The value of an artifact: read if usable, otherwise made and written."""
        found = self._find(key, read)
        if found is not None:
            return found
        with self.timed(key.step):
            value = make()
        return self.put(key, value, write)

    def get_all(
        self, keys: Sequence[Key], make: Callable[[list[int]], Sequence[Value]], read: Read[Value], write: Write[Value]
    ) -> list[Stored[Value]]:
        """The same for several values; `make` gets the positions of the missing ones and makes them together."""
        found = [self._find(key, read) for key in keys]
        missing = [i for i, stored in enumerate(found) if stored is None]
        if missing:
            with self.timed(keys[0].step):
                made = make(missing)
            for i, value in zip(missing, made, strict=True):
                found[i] = self.put(keys[i], value, write)
        return [stored for stored in found if stored is not None]

    def _find(self, key: Key, read: Read[Value]) -> Stored[Value] | None:
        artifact = None if self.force else self.folder.find(key.name, key.kind, **key.facts)
        if artifact is None or artifact.meta["inputs"] != dict(key.inputs):
            return None
        value = read(artifact)
        if value is None:
            return None
        self.reporter.note(f"reusing {key.name}")
        self.artifacts[key.name] = str(artifact.path)
        return Stored(value, artifact.digest)

    def put(self, key: Key, value: Value, write: Write[Value]) -> Stored[Value]:
        """Store a value that is always recomputed."""
        content = write(value)
        if content is None:
            return Stored(value, None)
        tensors, numbers = content
        path = self.folder.file(key.name)
        digest = write_artifact(path, key.kind, self.describe(key, numbers), tensors)
        self.artifacts[key.name] = str(path)
        return Stored(value, digest)

    def row_writer(self, key: Key, plans: Mapping[str, TensorPlan], **more: Any) -> RowWriter:
        """A writer for rows that arrive in chunks; it resumes where an interrupted run stopped."""
        return RowWriter(self.folder.file(key.name), key.kind, self.describe(key, more), plans)

    def get_by_rows(
        self,
        key: Key,
        plans: Mapping[str, TensorPlan],
        write: Callable[[RowWriter], None],
        read: Callable[[Artifact], Value],
    ) -> Value:
        """A value that is made and written a few rows at a time; an interrupted one is continued."""
        found = self._find(key, read)
        if found is not None:
            return found.value
        with self.timed(key.step):
            writer = self.row_writer(key, plans)
            try:
                if writer.rows_done:
                    self.reporter.note(f"continuing {key.name} at row {writer.rows_done} of {writer.n_rows}")
                write(writer)
                writer.finish()
            finally:
                writer.close()
        return read(self.open(key))

    def remove(self, name: str) -> None:
        """An artifact that is no longer needed, if it is there."""
        self.folder.file(name).unlink(missing_ok=True)
        self.artifacts.pop(name, None)

    def open(self, key: Key) -> Artifact:
        """An artifact that is known to exist."""
        artifact = self.folder.find(key.name, key.kind, **key.facts)
        assert artifact is not None, "it was written before"
        self.artifacts[key.name] = str(artifact.path)
        return artifact

    def describe(self, key: Key, more: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.metadata, "inputs": dict(key.inputs), **key.facts, **more}

    def fits(self, name: str, tensors: Mapping[str, Tensor]) -> bool:
        """Whether tensors are small enough to be stored; adds a note if not."""
        if sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) <= self.limit:
            return True
        self.reporter.note(f"{name} is larger than --max-artifact or the free disk space allows: not stored")
        return False

    @property
    def limit(self) -> int:
        """Bytes of the largest artifact: the option's limit, and most of the free disk space."""
        folder = next(parent for parent in [self.path, *self.path.parents] if parent.is_dir())
        return min(self.max_bytes, int(shutil.disk_usage(folder).free * 0.9))

    def open_folder(self) -> None:
        """Create and lock the run folder, except in a dry run."""
        self._folder = RunFolder.open(self.path, self.identity, force=self.force, on_wait=self.reporter.note)

    @property
    def folder(self) -> RunFolder:
        assert self._folder is not None, "it was opened before the work"
        return self._folder

    def existing(self, names: Sequence[str]) -> dict[str, str]:
        """Those of these artifacts that the folder holds, by name."""
        paths = {name: self.path / f"{name}.safetensors" for name in sorted(set(names))}
        return {name: str(path) for name, path in paths.items() if path.exists()}

    @contextmanager
    def timed(self, step: str | None) -> Iterator[None]:
        """Add the wall time of the block to `seconds[step]`, without that of timed blocks inside it."""
        start, before, self._inner_seconds = time.perf_counter(), self._inner_seconds, 0.0
        try:
            yield
        finally:
            devices.synchronise(self.device)
            spent = time.perf_counter() - start
            own, self._inner_seconds = spent - self._inner_seconds, before + spent
            if step is not None:
                self.seconds[step] = self.seconds.get(step, 0.0) + own

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()


class ScratchStore(Store):
    """Reuses and writes nothing; times and paths go to the store that it stands in for."""

    def __init__(self, store: Store) -> None:
        vars(self).update(vars(store))
        self.keeps = False

    def _find(self, key: Key, read: Read[Value]) -> None:
        return None

    def put(self, key: Key, value: Value, write: Write[Value]) -> Stored[Value]:
        return Stored(value, None)
