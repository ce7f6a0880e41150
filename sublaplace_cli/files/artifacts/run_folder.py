"""The run folder: one identity, one writer at a time, no stale files.

Its name is a fingerprint of the weights, the data and every option that changes a number. `run.json` in it lists all of
them, so that a folder chosen with --run-dir can be checked too.
"""

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from ...errors import UserError
from ...json_files import read_json
from .artifact import Artifact, broken, open_artifact
from .atomic import canonical_json, digest_of, explain_write_errors, write_text
from .run_files import IGNORE, LEFTOVER, LOCK_NAME, MANIFEST, OWN_FILE, fingerprint

LONGEST_STEM_PART = 150  # of a method in a file name, which may have 255 bytes in all


def default_folder(spec_folder: Path, identity: Mapping[str, Any]) -> Path:
    """`.sublaplace/<fingerprint>/` in the folder of the spec."""
    if (spec_folder / ".sublaplace").is_symlink():
        hint = "remove the link, or name the folder with --run-dir"
        raise UserError(f"{spec_folder / '.sublaplace'} is a link to another folder", hint=hint)
    return spec_folder / ".sublaplace" / fingerprint(identity)


def file_stem(kind: str, method: str, k: int) -> str:
    """`indices-gradient-k1000`; characters that are not safe in a file name are replaced, and a digest is added."""
    safe = re.sub(r"[^A-Za-z0-9._+-]+", "_", method)
    if safe != method or len(safe) > LONGEST_STEM_PART:
        safe = f"{safe[:LONGEST_STEM_PART]}-{digest_of(method)[:8]}"
    return f"{kind}-{safe}-k{k}"


@dataclass
class RunFolder:
    """An open, locked run folder."""

    path: Path
    identity: Mapping[str, Any]
    lock: IO[str]

    @classmethod
    def open(cls, path: Path, identity: Mapping[str, Any], *, force: bool, on_wait: Callable[[str], None]) -> Self:
        """Create the folder if needed, wait for the lock, check that the folder belongs to this identity."""
        with explain_write_errors(path):
            lock = _locked(path, on_wait)
            os.utime(lock.fileno())  # says when the folder was used last
        folder = cls(path, identity, lock)
        try:
            folder._claim(force)
        except BaseException:
            folder.close()
            raise
        return folder

    def _claim(self, force: bool) -> None:
        with explain_write_errors(self.path):
            for leftover in self.path.iterdir():  # from a killed run: we hold the lock, so no run is active
                if LEFTOVER.fullmatch(leftover.name):
                    leftover.unlink()
        known = None if force else self._known_identity()
        wanted = json.loads(canonical_json(self.identity))
        if known is not None and known != wanted:
            hint = "choose another --run-dir, or replace its contents with --recompute"
            raise UserError(f"{self.path} belongs to another run: {_difference(known, wanted)}", hint=hint)
        if known is None:
            with explain_write_errors(self.path):
                for old in self.path.iterdir():
                    if OWN_FILE.fullmatch(old.name):
                        old.unlink()
            write_text(self.path / IGNORE, "*\n")
            write_text(self.path / MANIFEST, canonical_json(self.identity) + "\n")

    def _known_identity(self) -> dict[str, Any] | None:
        manifest = self.path / MANIFEST
        if not manifest.exists():
            return None
        try:
            known = read_json(manifest)
        except (OSError, ValueError) as error:
            raise broken(manifest, f"it cannot be read ({error})") from error
        if not isinstance(known, dict):
            raise broken(manifest, "it does not describe a run")
        return known

    def file(self, stem: str) -> Path:
        return self.path / f"{stem}.safetensors"

    def find(self, stem: str, kind: str, **expected: Any) -> Artifact | None:
        """A finished artifact of this run with the expected metadata; None if it does not exist yet."""
        path = self.file(stem)
        if not path.exists():
            return None
        artifact = open_artifact(path, kind)
        if artifact.meta.get("fingerprint") != fingerprint(self.identity):
            raise broken(path, "it belongs to another run: other weights, data or options")
        for key, value in expected.items():
            if artifact.meta.get(key) != value:
                found = f"its {key} is {artifact.meta.get(key)}, expected {value}"
                raise broken(path, f"{found}: it belongs to another run")
        return artifact

    def close(self) -> None:
        self.lock.close()


def _locked(path: Path, on_wait: Callable[[str], None]) -> IO[str]:
    """The lock of the folder, which is made if needed: also if it is removed while we wait."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        try:
            _refuse_foreign_files(path)
            lock = _open_lock(path / LOCK_NAME)
        except FileNotFoundError:  # removed since
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            on_wait(f"another run is using {path}; waiting until it ends")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_there(path / LOCK_NAME, lock):
            return lock
        lock.close()


def _is_there(path: Path, lock: IO[str]) -> bool:
    """Whether the lock is still the file of this name."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False


def _open_lock(path: Path) -> IO[str]:
    """The lock file, open until `close`; the lock ends with the process. Never a pipe, and no link to another file."""
    if path.is_symlink():
        raise broken(path, "it is a link to another file")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise broken(path, "it is not a regular file")
    return os.fdopen(handle, "r+")


def _refuse_foreign_files(path: Path) -> None:
    if (path / MANIFEST).exists():
        return
    names = sorted(entry.name for entry in path.iterdir())
    foreign = [name for name in names if name not in (LOCK_NAME, IGNORE) and not LEFTOVER.fullmatch(name)]
    if foreign:
        message = f"{path} is not a run folder: it contains {', '.join(foreign[:3])} and no {MANIFEST}"
        raise UserError(message, hint="choose an empty or new folder for --run-dir")


def _difference(known: Any, wanted: Any, prefix: str = "") -> str:
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in sorted({*known, *wanted}):
            if known.get(key) != wanted.get(key):
                return _difference(known.get(key), wanted.get(key), f"{prefix}.{key}" if prefix else key)
    return f"'{prefix}' is {_short(known)} there and {_short(wanted)} here"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "…"
