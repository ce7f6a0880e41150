"""The nodes of an exported graph as steps: a function, its arguments with references to earlier values, its results."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Ref:
    """An earlier value, by its name in the graph."""

    name: str


class InputDevice:
    """Replaces a device in the file by that of the input, so that the network can be moved."""


@dataclass(frozen=True)
class GraphStep:
    """One node: the function, its arguments, the names of its results, and the values it is the last to use."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str, ...]
    unpack: bool
    last_use_of: tuple[str, ...] = ()
    layer: str | None = None


def filled(value: Any, values: Mapping[str, Any], device: torch.device) -> Any:
    """An argument with its references replaced by the values."""
    if isinstance(value, Ref):
        return values[value.name]
    if isinstance(value, InputDevice):
        return device
    if isinstance(value, (list, tuple)):
        return type(value)(filled(item, values, device) for item in value)
    if isinstance(value, Mapping):
        return {key: filled(item, values, device) for key, item in value.items()}
    return value


def references(value: Any) -> Iterator[str]:
    """The names of all earlier values inside an argument."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from references(item)
