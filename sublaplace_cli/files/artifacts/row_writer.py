"""Streaming rows into an artifact, so that a run that is cut off can go on where it was.

safetensors has no streaming writer, so rows are put into a file of the final size, which keeps a record of
the rows that are done beside it; the file gets its final name when all of them are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .atomic import PART, canonical_json, explain_write_errors, publish, sync_folder, write_text
from .layout import TensorPlan, bytes_of, header_of, offsets_of

NO_DIGEST = "0" * 64


class RowWriter:
    """Streams rows of several tensors into one artifact, and can go on where an earlier run was cut off."""

    def __init__(self, path: Path, kind: str, meta: Mapping[str, Any], plans: Mapping[str, TensorPlan]) -> None:
        self.path, self.kind, self.meta = path, kind, dict(meta)
        self.plans = dict(sorted(plans.items()))
        self.part = path.with_name(path.name + PART)
        self.record = path.with_name(path.name + PART + ".json")
        self.digests = {name: [NO_DIGEST] * plan.n_pieces for name, plan in self.plans.items()}
        header = header_of(kind, meta, self.plans, self.digests)
        self.identity = hashlib.sha256(header).hexdigest()
        self.offsets = offsets_of(len(header), self.plans)
        self.running = {name: hashlib.sha256() for name in self.plans}  # of the piece that is being written
        with explain_write_errors(path):
            self.rows_done = self._resume()
            self.file = open(self.part, "r+b" if self.rows_done else "w+b")  # noqa: SIM115 (closed in finish/abandon)
            if not self.rows_done:
                self.file.write(header)
                self.file.truncate(len(header) + sum(plan.n_bytes for plan in self.plans.values()))

    def _resume(self) -> int:
        try:
            record = json.loads(self.record.read_text())
            if record["identity"] != self.identity:
                return 0
            digests, rows_done = record["digests"], int(record["rows_done"])
            running = {name: self._begun(name, rows_done) for name in self.plans}
            if record["running"] != {name: q.hexdigest() for name, q in running.items()}:
                return 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        self.digests, self.running = digests, running
        return rows_done

    def _begun(self, name: str, rows_done: int) -> hashlib._Hash:
        """The checksum so far of the piece in whose midst an earlier run ended."""
        plan = self.plans[name]
        begun = rows_done % plan.rows_per_piece if rows_done < plan.shape[0] else 0
        with open(self.part, "rb") as file:
            file.seek(self.offsets[name] + (rows_done - begun) * plan.row_bytes)
            return hashlib.sha256(file.read(begun * plan.row_bytes))

    def write(self, start: int, rows: Mapping[str, Tensor]) -> None:
        """Put the next rows of every tensor in place; a piece ends only where a write ends."""
        with explain_write_errors(self.path):
            for name, tensor in rows.items():
                plan, content = self.plans[name], bytes_of(tensor)
                self.file.seek(self.offsets[name] + start * plan.row_bytes)
                self.file.write(content)
                self.running[name].update(content)
                end = start + len(tensor)
                if end % plan.rows_per_piece == 0 or end == plan.shape[0]:
                    self.digests[name][start // plan.rows_per_piece] = self.running[name].hexdigest()
                    self.running[name] = hashlib.sha256()

    def checkpoint(self, rows_done: int) -> None:
        """Make the rows so far durable, so that they need not be made again."""
        record = {"identity": self.identity, "rows_done": rows_done, "digests": self.digests}
        record["running"] = {name: q.hexdigest() for name, q in self.running.items()}
        with explain_write_errors(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
            write_text(self.record, canonical_json(record))

    def finish(self) -> None:
        """Fill in the checksums and give the file its name."""
        with explain_write_errors(self.path):
            self.file.seek(0)
            self.file.write(header_of(self.kind, self.meta, self.plans, self.digests))
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            publish(self.part, self.path)
            self.record.unlink(missing_ok=True)
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Let go of the file, finished or not; what is durable can be resumed."""
        self.file.close()
