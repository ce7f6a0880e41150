"""What there is, by name: each entry is a lazy "module:function", imported when it is used.

To add a method, a likelihood, a data format or an architecture:
1. write one function in one file (see the neighbours of the entries below for its signature),
2. add one line here,
3. add a case to the contract tests; `--help`, the suggestions and `evaluate` pick it up by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .errors import UserError, suggestion

ARCHITECTURES = {
    "mlp": "sublaplace_cli.models.mlp:mlp",
    "cifar_resnet": "sublaplace_cli.models.cifar_resnet:cifar_resnet",
}

DATA_FORMATS = {
    "csv": "sublaplace_cli.files.tables:read_csv",
    "parquet": "sublaplace_cli.files.tables:read_parquet",
    "npz": "sublaplace_cli.files.arrays:read_npz",
    "npy": "sublaplace_cli.files.arrays:read_npy",
    "safetensors": "sublaplace_cli.files.arrays:read_safetensors",
    "imagefolder": "sublaplace_cli.files.images:read_imagefolder",
}


def load(entry: str) -> Callable[..., Any]:
    """The object behind a "module:function" entry."""
    module, _, name = entry.partition(":")
    return getattr(import_module(module), name)


def find(table: Mapping[str, str], name: str, kind: str) -> Callable[..., Any]:
    """The object called `name` in `table`, or an error that suggests the nearest name."""
    if name not in table:
        raise UserError(f"unknown {kind} '{name}'", hint=suggestion(name, table))
    return load(table[name])
