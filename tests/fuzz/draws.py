"""What hypothesis draws: odd values, and changes of a file of any form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fuzz.base import POSTERIOR
from fuzz.changes import Change
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from safetensors import safe_open

Place = tuple[Any, ...]

NASTY_TEXTS = [
    "", " ", "\n", "\x1b[31mred", "a\r\nerror: forged", "::error::x", "##[error]x", "\x00", "\x7f\x9b31m", "\u202eabc",
    "\ud800", "[/0-9]*", "[red]", "$x^$", "=1+1", "-1", "@x", "<b>", "`x`", "|", "../../x", "/dev/zero", "/dev/stdin",
    "/", ".", "~", "a" * 5000, "é" * 300, "NaN", "inf", "1e400", "0x10", "1_000", "1" * 400, "null", "*", "%s%n", "{0}",
    "canary:run", "os:system", "names:[a-z]*", "names:*", "gradient", "data.csv", "model.pt", "run",
]  # fmt: skip
NASTY_NUMBERS = [
    0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400,
    0.0, -0.0, 0.5, 1e-320, 5e-324, 1e-100, 1e100, 1e155, 1e200, 1.7e308, -1e308, 1e-300, 1e9, 1e16,
    float("nan"), float("inf"), float("-inf"),
]  # fmt: skip

texts = st.sampled_from(NASTY_TEXTS) | st.text(max_size=20)
numbers = st.sampled_from(NASTY_NUMBERS) | st.integers(-20, 200) | st.floats(-100, 100)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
positions = st.integers(0, 2**20)


def damage() -> SearchStrategy[Change]:
    """Damage of bytes, of any file."""
    words = "00 ff 00000000 ffffffff ffffffffffffff7f ffffffffffffffff 0000000000000080 0a 2c 22"
    interesting = st.sampled_from(words.split())
    return st.one_of(
        st.builds(lambda at, bit: {"do": "flip", "at": at, "bits": 1 << bit}, positions, st.integers(0, 7)),
        st.builds(lambda at, bits: {"do": "flip", "at": at, "bits": bits}, positions, st.integers(1, 255)),
        st.builds(lambda at, n: {"do": "cut", "at": at, "length": n}, positions, st.sampled_from([1, 2, 8, 2**30])),
        st.builds(lambda at, text: {"do": "insert", "at": at, "text": text}, positions, texts),
        st.builds(lambda at, data: {"do": "overwrite", "at": at, "hex": data}, positions, interesting),
        st.builds(
            lambda at, n, times: {"do": "repeat", "at": at, "length": n, "times": times},
            positions, st.integers(1, 200), st.sampled_from([2, 3, 50]),
        ),
    )  # fmt: skip


def paths_of(value: Any, prefix: Place = ()) -> list[Place]:
    """The place of every value in a tree."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [prefix] if prefix else []
    for key, child in children:
        found += paths_of(child, (*prefix, key))
    return found


def edits(root: Any, form: str = "json") -> SearchStrategy[Change]:
    """Changes of one value of a tree: another value, one from elsewhere in it, none, another key."""
    paths = paths_of(root)

    def value_at(path: Place) -> Any:
        node = root
        for key in path:
            node = node[key]
        return node

    def change(path: Place, action: str, value: Any) -> Change:
        return {"do": "tree", "path": list(path), "action": action, "value": value, "form": form}

    place = st.sampled_from(paths)
    elsewhere = st.sampled_from(paths).map(value_at)
    return st.one_of(
        st.builds(change, place, st.just("set"), values | elsewhere),
        st.builds(change, place, st.sampled_from(["set", "insert"]), scalars | elsewhere),
        st.builds(change, place, st.just("delete"), st.none()),
        st.builds(change, place, st.just("rename"), texts | st.sampled_from([str(path[-1]) for path in paths])),
    )


def in_place() -> SearchStrategy[Change]:
    """Something else where a file is expected."""
    return st.one_of(
        st.just({"do": "delete"}),
        st.just({"do": "pipe"}),
        st.just({"do": "folder"}),
        st.builds(
            lambda to: {"do": "link", "to": to}, st.sampled_from(["/dev/zero", "/dev/null", ".", "/", "nowhere"])
        ),
        st.builds(lambda text: {"do": "write", "text": text}, texts),
        st.builds(
            lambda of: {"do": "copy", "of": of}, st.sampled_from(["data.csv", "model.pt", "data.npz", POSTERIOR])
        ),
    )


def npy_changes() -> SearchStrategy[Change]:
    words = st.sampled_from(["(30, 4)", "(30, 3)", "(30, 1)", "'<f8'", "False", "'descr'", "'shape'", "30"])
    shapes = ["(0, 4)", "(-1,)", "((", "()", "(2**40,)", "(1,)*70", "9" * 30]
    odd = st.sampled_from([*shapes, "'''", "'|O'", "'<f4'", "'<U9'", "True", "None"])
    return st.builds(lambda old, new: {"do": "replace", "old": old, "new": new}, words, odd | texts)


def forgeries(path: Path) -> SearchStrategy[Change]:
    """Changes of an artifact with checksums that fit."""
    with safe_open(path, framework="numpy") as file:
        meta, names = json.loads(file.metadata()["sublaplace"]), sorted(file.keys())
    meta.pop("checksum")
    number = st.builds(
        lambda tensor, at, value: {"do": "number", "tensor": tensor, "at": at, "value": value},
        st.sampled_from(names), st.integers(0, 2000), numbers.filter(lambda value: abs(value) != 10**400),
    )  # fmt: skip
    return number | edits(meta).map(lambda change: {"do": "metadata", "changes": [change]})
