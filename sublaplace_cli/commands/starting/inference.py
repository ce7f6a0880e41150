"""What `init` found out, and how sure it is."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from torch import Tensor

Certainty = Literal["sure", "likely", "check"]
CLASSES = "classes"  # a key of `data`, and the topic of what is found about it


@dataclass(frozen=True)
class Inference:
    """`certainty` is “check” for a guess that the user has to look at."""

    topic: str
    value: str
    certainty: Certainty
    reason: str


@dataclass(frozen=True)
class NetworkGuess:
    """The `model` section of the spec."""

    build: dict[str, Any]
    weights: dict[str, Any]
    findings: tuple[Inference, ...]
    n_inputs: int | None = None  # numbers per row, if it takes a table
    n_outputs: int | None = None
    takes: str = "numbers"  # or "text", "images"
    state: dict[str, Tensor] = field(default_factory=dict)  # under the names of the built network
    module: torch.nn.Module | None = None  # an exported network
    stub: str | None = None  # Python code to complete
    folder: Path | None = None  # of a Hugging Face network

    @property
    def n_params(self) -> int | None:
        """None where the tensors do not tell: they may be buffers too, or there are none."""
        if self.module is not None:
            return sum(parameter.numel() for parameter in self.module.parameters())
        if self.build.get("arch") != "mlp":
            return None
        return sum(tensor.numel() for tensor in self.state.values())


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
