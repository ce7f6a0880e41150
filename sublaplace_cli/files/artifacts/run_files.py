"""Which files of a run folder are ours, and the removal of them; nothing else is touched and no link is followed."""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...json_files import read_json
from .atomic import digest_of

MANIFEST = "run.json"
LOCK_NAME = ".lock"
IGNORE = ".gitignore"
KINDS = "jacobians|scores|indices|path|posterior|predictions|certified|solutions|freedom|hyperparameters"
OWN_FILE = re.compile(rf"evaluation\.json|({KINDS})[\w.+-]*\.safetensors(\.part(\.json)?)?")
LEFTOVER = re.compile(r"\.(run\.json|evaluation\.json|\.gitignore|[\w.+-]+\.safetensors(\.part\.json)?)\.\d+\.part")
IDENTIFYING = {"weights", "data", "spec"}  # among the keys of every identity


def fingerprint(identity: Mapping[str, Any]) -> str:
    """The first 16 hex digits of the digest of an identity."""
    return digest_of(identity)[:16]


@dataclass(frozen=True)
class Contents:
    """What a run folder holds."""

    path: Path
    artifacts: tuple[str, ...]  # our files, without those that mark the folder
    foreign: tuple[str, ...]  # anything else, links and folders too
    size: int  # bytes of our files
    used: float  # when it was used last, as a time stamp

    @property
    def seconds_unused(self) -> float:
        return max(0.0, time.time() - self.used)


def is_run_folder(path: Path, *, named_by_identity: bool) -> bool:
    """Whether a folder is one that we made: a real folder with the record of a run, after which it may be named."""
    manifest = path / MANIFEST
    if path.is_symlink() or not path.is_dir() or manifest.is_symlink() or not manifest.is_file():
        return False
    try:
        identity = read_json(manifest)
    except (OSError, ValueError):
        return False
    known = isinstance(identity, dict) and set(identity) >= IDENTIFYING
    return known and (not named_by_identity or fingerprint(identity) == path.name)


def contents_of(path: Path) -> Contents:
    """The files of a run folder, told apart by name and kind."""
    with _opened(path) as folder:
        return _contents(path, folder)


def remove_run(path: Path) -> Contents | None:
    """Remove our files and, if nothing else is in it, the folder; None, and nothing is removed, if it is in use.

    The artifacts go first and the lock last: an interrupted removal leaves a run folder that can be used. With foreign
    files in it, its marks stay, because a folder without them would be refused.
    """
    with _opened(path) as folder, contextlib.ExitStack() as stack:
        lock = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        found = _contents(path, folder)
        marks = () if found.foreign else (MANIFEST, IGNORE, LOCK_NAME)
        for name in (*found.artifacts, *marks):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        if not found.foreign:
            remove_if_empty(path)
    return found


def remove_if_empty(path: Path) -> None:
    """Not if a new run has put a file into it meanwhile."""
    with contextlib.suppress(OSError):
        path.rmdir()


def in_use(path: Path) -> bool:
    """Whether a process has locked it."""
    try:
        lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


@contextlib.contextmanager
def _opened(path: Path) -> Any:
    """A handle of the folder itself, so that a link in its place later changes nothing."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(folder)
    except OSError as error:
        raise RunError(f"could not clean {path}: {error.strerror or error}") from error


def _contents(path: Path, folder: int) -> Contents:
    artifacts, foreign, size, used = [], [], 0, 0.0
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        try:
            about = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:  # renamed or removed by a run since it was listed
            continue
        is_mark = entry.name in (MANIFEST, LOCK_NAME, IGNORE)
        is_own = is_mark or OWN_FILE.fullmatch(entry.name) or LEFTOVER.fullmatch(entry.name)
        if not is_own or not stat.S_ISREG(about.st_mode):
            foreign.append(entry.name)
            continue
        size, used = size + about.st_size, max(used, about.st_mtime)
        artifacts += [] if is_mark else [entry.name]
    return Contents(path, tuple(artifacts), tuple(foreign), size, used or os.fstat(folder).st_mtime)
