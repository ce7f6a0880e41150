"""What there is, by name: each entry is a lazy "module:function", imported when it is used.

To add a method, a likelihood, a data format or an architecture:
1. write one function in one file (see the neighbours of the entries below for its signature),
2. add one line here,
3. add a case to the contract tests; `--help`, the suggestions and `evaluate` pick it up by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .errors import UserError, suggestion


@dataclass(frozen=True)
class Method:
    """A method of section 2 of the contract."""

    entry: str | None  # "module:function" of a selector; None for a reference without a sub-network
    summary: str
    takes_k: bool = True
    nested: bool = True  # the choice for a smaller k is a prefix of that for a larger one


_SELECTORS = "sublaplace_cli.core.selectors"
METHODS = {
    "gradient": Method(f"{_SELECTORS}.gradient:gradient", "k largest weighted mean squared gradients (Algorithm 1)"),
    "greedy": Method(f"{_SELECTORS}.greedy:greedy", "largest remaining Schur complement (Algorithm 2)"),
    "subnet-diagonal": Method(f"{_SELECTORS}.baselines:subnet_diagonal", "k smallest of diag(Ω)"),
    "last-k": Method(f"{_SELECTORS}.baselines:last_k", "the last k of the flat parameter vector"),
    "neural-linear": Method(f"{_SELECTORS}.baselines:neural_linear", "all of the last linear layer", takes_k=False),
    "random": Method(f"{_SELECTORS}.baselines:random", "a seeded uniform choice"),
    "magnitude": Method(f"{_SELECTORS}.baselines:magnitude", "k largest |θ|"),
    "variance": Method(f"{_SELECTORS}.variance:variance", "largest gain in variance over the reference rows"),
    "full": Method(None, "full linearized Laplace, through the Gram kernel", takes_k=False),
    "map": Method(None, "no posterior: the network alone", takes_k=False),
    "kfac": Method(None, "Kronecker-factored Laplace (extra [kfac])", takes_k=False),
    "ensemble": Method(None, "the spread of the networks in ensemble.checkpoints", takes_k=False),
    "norm": Method(None, "no sub-network: variance b·‖g‖², b fitted as by --rescale scale", takes_k=False),
    "constant": Method(None, "no sub-network: one variance for all rows, fitted in the same way", takes_k=False),
    "diagonal": Method(None, "diagonal Laplace", takes_k=False),
}
NAMES_PREFIX = "names:"

LIKELIHOODS = {
    "regression": "sublaplace_cli.core.likelihoods:regression",
    "binary": "sublaplace_cli.core.likelihoods:binary",
    "multiclass": "sublaplace_cli.core.likelihoods:multiclass",
}

# What a result row holds, and which way is better: lower, higher, nearer to the nominal 0.95, or neither.
METRICS: dict[str, str | None] = {
    **dict.fromkeys(("w2", "w2_relative", "w2_total", "w2_low", "w2_high", "discrepancy"), "lower"),
    **dict.fromkeys(("nll", "rmse", "crps", "ece", "brier"), "lower"),
    **dict.fromkeys(("accuracy", "retained"), "higher"),
    **dict.fromkeys(("coverage95", "coverage95_total"), "nominal"),
    **dict.fromkeys(("mean_std", "ipv", "rescale", "remainder"), None),
}
METRIC_VERSION = 1  # raised when the definition of a metric changes: older baselines are then not compared with

FORMATS = {
    "table": "sublaplace_cli.render.text:table",
    "tsv": "sublaplace_cli.render.text:tsv",
    "json": "sublaplace_cli.render.text:json_text",
    "jsonl": "sublaplace_cli.render.text:jsonl",
    "csv": "sublaplace_cli.render.text:csv_text",
    "markdown": "sublaplace_cli.render.text:markdown",
    "junit": "sublaplace_cli.render.ci:junit",
    "github": "sublaplace_cli.render.ci:github",
}
SUFFIXES = {
    **{".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".md": "markdown", ".txt": "table"},
    ".xml": "junit",
}

PICTURES = {
    "curves": "sublaplace_cli.render.plots:curves",
    "calibration": "sublaplace_cli.render.plots:calibration",
    "scatter": "sublaplace_cli.render.plots:scatter",
    "map": "sublaplace_cli.render.plots:layer_map",
}
PICTURE_SUFFIXES = (".png", ".svg", ".pdf")

ARCHITECTURES = {
    "mlp": "sublaplace_cli.architectures.mlp:mlp",
    "cifar_resnet": "sublaplace_cli.architectures.cifar_resnet:cifar_resnet",
}

DATA_FORMATS = {
    "csv": "sublaplace_cli.files.data.tables:read_csv",
    "parquet": "sublaplace_cli.files.data.tables:read_parquet",
    "npz": "sublaplace_cli.files.data.arrays:read_npz",
    "npy": "sublaplace_cli.files.data.arrays:read_npy",
    "safetensors": "sublaplace_cli.files.data.arrays:read_safetensors",
    "imagefolder": "sublaplace_cli.files.data.images:read_imagefolder",
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
