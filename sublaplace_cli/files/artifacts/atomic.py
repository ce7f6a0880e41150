"""Atomic writes: into a temporary file, synced, then renamed. A file with its final name is complete."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ...errors import RunError, SublaplaceError, UserError

PART_SUFFIX = ".part"


def canonical_json(value: Any) -> str:
    """JSON with a unique text per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest_of(value: Any) -> str:
    """sha256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def digest_of_files(paths: list[Path], below: Path | None = None) -> str:
    """sha256 of one file; for several, the digest of their names relative to `below` (if set) and their sha256."""
    digests = []
    for path in paths:
        with open(path, "rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    if len(digests) == 1:
        return digests[0]
    names = ["" if below is None else os.path.relpath(path, below) for path in paths]
    return digest_of(list(zip(names, digests, strict=True)))


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn OS errors while writing `path` into messages with the file and a remedy."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> SublaplaceError:
    """The message for an OS error while writing `path`."""
    message = f"could not write {path}: {error.strerror or error}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(message, hint="choose a folder that can be written to with --run-dir")
    hint = "free some disk space, choose another disk with --run-dir, or store less with --max-artifact"
    return RunError(message, hint=f"{hint}; nothing incomplete was left under a final name")


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(part: Path, path: Path) -> None:
    """Give a finished, synced file its final name."""
    os.replace(part, path)
    sync_folder(path.parent)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets the name `path` when the block succeeds, and is removed otherwise."""
    part = path.with_name(f".{path.name}.{os.getpid()}{PART_SUFFIX}")
    with explain_write_errors(path):
        try:
            with open(part, "wb", opener=_no_link) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            publish(part, path)
        finally:
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with replacing(path) as file:
        file.write(text.encode())
