"""Streams rows into an artifact, so that an interrupted run can resume.

safetensors has no streaming writer. So rows are written into a file of the final size, with a record of the finished
rows in a second file. The file gets its final name when all rows are finished.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...json_files import open_regular, read_json
from .atomic import PART_SUFFIX, canonical_json, explain_write_errors, publish, sync_folder, write_error, write_text
from .layout import TensorPlan, bytes_of_all, header_of, offsets_of
from .metadata import RowProgress

NO_DIGEST = "0" * 64


class RowWriter:
    """Streams rows of several tensors into one artifact, and resumes where an earlier run was interrupted."""

    def __init__(self, path: Path, kind: str, meta: Mapping[str, Any], plans: Mapping[str, TensorPlan]) -> None:
        self.path, self.kind, self.meta = path, kind, dict(meta)
        self.plans = dict(sorted(plans.items()))
        self.part = path.with_name(path.name + PART_SUFFIX)
        self.record = path.with_name(path.name + PART_SUFFIX + ".json")
        self.digests = {name: [NO_DIGEST] * plan.n_pieces for name, plan in self.plans.items()}
        header, _ = header_of(kind, meta, self.plans, self.digests)
        self.identity = hashlib.sha256(header).hexdigest()
        self.offsets, file_bytes = offsets_of(len(header), self.plans)
        self.running = {name: hashlib.sha256() for name in self.plans}  # checksums of the unfinished pieces
        with explain_write_errors(path):
            self.rows_done = self._resume()
            if not self.rows_done:
                self.part.unlink(missing_ok=True)  # it may be a link or a pipe
            self.file = open(self.part, "r+b" if self.rows_done else "x+b")  # noqa: SIM115 (closed in finish or close)
            if not self.rows_done:
                self.file.write(header)
                self.file.truncate(file_bytes)

    @property
    def n_rows(self) -> int:
        return min(plan.shape[0] for plan in self.plans.values())

    def _resume(self) -> int:
        try:
            record = RowProgress.model_validate(read_json(self.record))
            if not self._is_mine(record) or self.part.is_symlink():
                return 0
            running = {name: self._unfinished(name, record.rows_done) for name in self.plans}
        except (OSError, ValueError):  # pydantic's ValidationError is a ValueError
            return 0
        if record.running != {name: checksum.hexdigest() for name, checksum in running.items()}:
            return 0
        self.digests, self.running = record.digests, running
        return record.rows_done

    def _is_mine(self, record: RowProgress) -> bool:
        pieces = {name: len(digests) for name, digests in record.digests.items()}
        expected = {name: plan.n_pieces for name, plan in self.plans.items()}
        return record.identity == self.identity and pieces == expected and record.rows_done <= self.n_rows

    def _unfinished(self, name: str, rows_done: int) -> "hashlib._Hash":
        """The checksum so far of the piece that an earlier run did not finish."""
        plan = self.plans[name]
        rows = rows_done % plan.rows_per_piece if rows_done < plan.shape[0] else 0
        with open_regular(self.part) as file:
            file.seek(self.offsets[name] + (rows_done - rows) * plan.row_bytes)
            return hashlib.sha256(file.read(rows * plan.row_bytes))

    def write(self, start: int, rows: Mapping[str, Tensor]) -> None:
        """Write the next rows of every tensor; a piece ends only where a write ends."""
        for name, content in bytes_of_all(rows).items():
            plan = self.plans[name]
            try:
                self.file.seek(self.offsets[name] + start * plan.row_bytes)
                self.file.write(content)
            except OSError as error:
                raise write_error(self.path, error) from error
            self.running[name].update(content)
            end = start + rows[name].shape[0]
            if end % plan.rows_per_piece == 0 or end == plan.shape[0]:
                self.digests[name][start // plan.rows_per_piece] = self.running[name].hexdigest()
                self.running[name] = hashlib.sha256()

    def checkpoint(self, rows_done: int) -> None:
        """Make the rows so far durable, so that a resumed run need not recompute them."""
        record = {"identity": self.identity, "rows_done": rows_done, "digests": self.digests}
        record["running"] = {name: checksum.hexdigest() for name, checksum in self.running.items()}
        with explain_write_errors(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
            write_text(self.record, canonical_json(record))

    def finish(self) -> str:
        """Write the checksums and give the file its final name; returns the digest of the artifact."""
        header, digest = header_of(self.kind, self.meta, self.plans, self.digests)
        with explain_write_errors(self.path):
            self.file.seek(0)
            self.file.write(header)
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            publish(self.part, self.path)
            self.record.unlink(missing_ok=True)
            sync_folder(self.path.parent)
        return digest

    def close(self) -> None:
        """Close the file, finished or not; a later run can resume after the durable rows."""
        self.file.close()
