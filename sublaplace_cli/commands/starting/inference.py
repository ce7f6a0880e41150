"""One thing that `init` found out, and how sure it is."""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import yaml

Certainty = Literal["sure", "likely", "check"]


@dataclass(frozen=True)
class Inference:
    """`certainty` is “check” for a guess that the user has to look at."""

    topic: str
    value: str
    certainty: Certainty
    reason: str


def inline(value: Any) -> str:
    """A value as YAML on one line; names from files are quoted where they need it."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z_][\w./-]*", value) and not _has_meaning(value) else json.dumps(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{inline(key)}: {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def _has_meaning(word: str) -> bool:
    """Whether YAML reads the word as something else than text: true, null, on."""
    return not isinstance(yaml.safe_load(word), str)
