"""Changes of a file, as plain data: {"do": name, ...}. A change may hold changes of a part of the file.

Data, not functions: an input can be stored as JSON, shortened, and run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sublaplace_cli.files.artifacts.atomic import digest_of
from sublaplace_cli.files.artifacts.layout import METADATA_KEY

Change = dict[str, Any]
NO_SUCH_FORM = (ValueError, LookupError, TypeError, RecursionError, OverflowError, yaml.YAMLError, zipfile.BadZipFile)
NUMPY_TYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}


def apply(path: Path, change: Change) -> None:
    """Change a file of a case, or what stands in its place."""
    arguments = dict(change)
    action = arguments.pop("do")
    if action == "copy":
        action, arguments = "write", {"hex": _read_other(path, arguments["of"]).hex()}
    if action in PLACES:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        PLACES[action](path, **arguments)
    elif path.is_file() and not path.is_symlink():
        path.write_bytes(changed(path.read_bytes(), [change]))


def changed(content: bytes, changes: list[Change]) -> bytes:
    """The content after all changes; one that needs a form that an earlier one has destroyed has no effect."""
    for change in changes:
        arguments = dict(change)
        with contextlib.suppress(*NO_SUCH_FORM):
            content = CONTENTS[arguments.pop("do")](content, **arguments)
    return content


def encoded(text: str) -> bytes:
    """Texts hold bytes that are not UTF-8 as surrogates."""
    return text.encode("utf-8", "surrogateescape" if "\udc80" <= max(text, default="") <= "\udcff" else "surrogatepass")


def flip(content: bytes, at: int, bits: int) -> bytes:
    data = bytearray(content)
    if data:
        data[at % len(data)] ^= bits
    return bytes(data)


def cut(content: bytes, at: int, length: int) -> bytes:
    at %= len(content) + 1
    return content[:at] + content[at + length :]


def insert(content: bytes, at: int, text: str, times: int = 1) -> bytes:
    at = at % (len(content) + 1) if at >= 0 else len(content)
    return content[:at] + encoded(text) * times + content[at:]


def replace(content: bytes, old: str, new: str) -> bytes:
    return content.replace(encoded(old), encoded(new), 1)


def overwrite(content: bytes, at: int, hex: str) -> bytes:
    at %= len(content) + 1
    new = bytes.fromhex(hex)
    return content[:at] + new + content[at + len(new) :]


def repeat(content: bytes, at: int, length: int, times: int) -> bytes:
    at %= len(content) + 1
    return content[:at] + content[at : at + length] * times + content[at + length :]


def tree(content: bytes, path: list[Any], action: str, value: Any = None, form: str = "json") -> bytes:
    """Change a value of a JSON or YAML file, if it is there: set, delete, insert before it, or rename its key."""
    root = [json.loads(content) if form == "json" else yaml.safe_load(content)]
    node: Any = root
    keys = [0, *path]
    for key in keys[:-1]:
        node = node.setdefault(key, {}) if isinstance(node, dict) and action == "set" else node[key]
    _act(node, keys[-1], action, value)
    if form == "json":
        return json.dumps(root[0]).encode()
    return encoded(yaml.safe_dump(root[0], sort_keys=False))


def _act(node: Any, key: Any, action: str, value: Any) -> None:
    if action == "set":
        node[key] = value
    elif action == "delete":
        del node[key]
    elif action == "insert" and isinstance(node, list):
        node.insert(key, value)
    elif isinstance(node, dict):
        node[value if isinstance(value, str) else str(value)] = node.pop(key)


def header(content: bytes, changes: list[Change]) -> bytes:
    """Change the header of a safetensors file; its length is made to fit."""
    end = 8 + int.from_bytes(content[:8], "little")
    text = changed(content[8:end], changes)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def metadata(content: bytes, changes: list[Change]) -> bytes:
    """Change the metadata of an artifact and redo their checksum."""
    end = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:end])
    meta = json.loads(changed(entries["__metadata__"][METADATA_KEY].encode(), changes))
    if isinstance(meta, dict):
        meta.pop("checksum", None)
        # NaN is no JSON: forge the text that a careless writer would have written
        careful = json.loads(json.dumps(meta), parse_constant=str)
        meta = {**meta, "checksum": digest_of(careful)} if careful != meta else {**meta, "checksum": digest_of(meta)}
    entries["__metadata__"][METADATA_KEY] = json.dumps(meta)
    return header(content, [{"do": "become", "text": json.dumps(entries)}])


def become(content: bytes, text: str) -> bytes:
    return encoded(text)


def number(content: bytes, tensor: str, at: int, value: Any) -> bytes:
    """Change one number of an artifact's tensor and redo all checksums."""
    end = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:end])
    entry = entries[tensor]
    start, stop = (end + offset for offset in entry["data_offsets"])
    values = np.frombuffer(content[start:stop], NUMPY_TYPES[entry["dtype"]]).copy()
    if not len(values):
        return content
    with np.errstate(all="ignore"):
        values[at % len(values)] = np.float64(value).astype(values.dtype)
    content = content[:start] + values.tobytes() + content[stop:]
    rows = json.loads(entries["__metadata__"][METADATA_KEY])["tensors"][tensor]["rows_per_piece"]
    row_bytes = values.itemsize * math.prod(entry["shape"][1:])
    pieces = [
        content[i : min(stop, i + rows * row_bytes)] for i in range(start, max(stop, start + 1), rows * row_bytes)
    ]
    digests = [hashlib.sha256(piece).hexdigest() for piece in pieces]
    path = ["tensors", tensor, "sha256"]
    return metadata(content, [{"do": "tree", "path": path, "action": "set", "value": digests}])


def member(content: bytes, name: str, changes: list[Change], new_name: str | None = None) -> bytes:
    """Change a member of a zip archive, whose checksums are made to fit."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            chosen = info.filename.endswith(name)
            data = changed(old.read(info), changes) if chosen else old.read(info)
            new.writestr(new_name if chosen and new_name else info.filename, data)
    return out.getvalue()


CONTENTS: dict[str, Callable[..., bytes]] = {
    function.__name__: function
    for function in (
        flip, cut, insert, replace, overwrite, repeat, tree, header, metadata, become, number, member,
    )
}  # fmt: skip


def _write(path: Path, text: str = "", hex: str = "") -> None:
    path.write_bytes(encoded(text) + bytes.fromhex(hex))


def _read_other(path: Path, name: str) -> bytes:
    """Another file of the project; `path` may be in a folder of it."""
    found = [other for other in (path.parent / name, path.parent.parent / name) if other.is_file()]
    return found[0].read_bytes() if found else b""


PLACES: dict[str, Callable[..., None]] = {
    "write": _write,
    "delete": lambda path: None,
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "link": lambda path, to: path.symlink_to(to),
}
