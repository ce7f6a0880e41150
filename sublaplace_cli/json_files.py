"""JSON files that are not trusted: regular files of bounded size and depth, without NaN."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from .sizes import format_bytes

MOST_JSON_BYTES = 32 * 2**20
MOST_JSON_DEPTH = 100  # far below Python's limit: whatever passes can be compared and written again
MOST_CONTAINERS = 2**20  # lists and mappings: an empty one takes 30 times its text in memory


def open_regular(path: Path) -> BinaryIO:
    """Open for reading. An OSError for a pipe, which would wait, and for a device, which may never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        is_folder = stat.S_ISDIR(mode)
        raise OSError(errno.EINVAL, f"it is {'a folder' if is_folder else 'a pipe or device'}, not a regular file")
    return os.fdopen(handle, "rb")


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; an OSError if it is larger than expected."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {format_bytes(most_bytes)}")
    return content


def read_json(path: Path) -> Any:
    """The value in a JSON file; raises OSError or ValueError."""
    return parse_json(read_bounded(path, MOST_JSON_BYTES).decode())


def parse_json(text: str) -> Any:
    """The value of a JSON text; raises ValueError, also for NaN and for what is nested too deeply."""
    if text.count("[") + text.count("{") > MOST_CONTAINERS:
        raise ValueError(f"it has more than {MOST_CONTAINERS} lists and mappings")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(MOST_JSON_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {MOST_JSON_DEPTH} levels")


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
