"""Files that are not trusted: any exception of the library that parses one becomes a message with its name."""

import resource
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import SublaplaceError, UserError
from ..sizes import format_bytes

COPY_AGAIN = "is it complete? copy or save it again"
LONGEST_REASON = 300
MOST_DIRECTORY_BYTES = 8 * 2**20
MOST_HEADER_BYTES = 16 * 2**20
LIBRARY_BYTES = 2**28  # for threads and buffers of a library itself


@contextmanager
def reading(where: object, problem: str, hint: str = COPY_AGAIN) -> Iterator[None]:
    """Any exception of a parser becomes “where: problem: …”. Only the parser's calls belong in the block."""
    try:
        yield
    except SublaplaceError:
        raise
    except Exception as error:
        raise UserError(f"{where}: {problem}: {reason_of(error)}", hint=hint) from error


def check_directory(path: Path) -> None:
    """A ValueError for a zip archive whose directory alone would fill the memory: an entry takes 20 times its bytes."""
    with open(path, "rb") as file:
        record = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # what ZipFile itself will read
    size = record[zipfile._ECD_SIZE] if record else 0  # type: ignore[attr-defined]
    if size > MOST_DIRECTORY_BYTES:
        raise ValueError(f"its directory has {format_bytes(size)}, more than {format_bytes(MOST_DIRECTORY_BYTES)}")


def check_header(path: Path) -> None:
    """A ValueError for a safetensors file whose header would fill the memory: an entry takes 30 times its text."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > MOST_HEADER_BYTES:
        raise ValueError(f"its header has {format_bytes(size)}, more than {format_bytes(MOST_HEADER_BYTES)}")


@contextmanager
def bounded_memory(extra: int) -> Iterator[None]:
    """A MemoryError for a library that allocates more than `extra` bytes, whatever a file claims; on Linux only."""
    before, used = resource.getrlimit(resource.RLIMIT_DATA), _data_bytes()
    if used is None:
        yield
        return
    limit = used + extra + LIBRARY_BYTES
    if before[0] != resource.RLIM_INFINITY:
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_bytes() -> int | None:
    """What RLIMIT_DATA counts now."""
    try:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024


def reason_of(error: Exception) -> str:
    """The text of an exception, on one line and not too long."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."
