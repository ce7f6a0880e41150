"""Tables of everything that has a name. Each entry is a lazy "module:object", imported when it is used.

To add a method, a likelihood, a format, a picture, a data format or an architecture:
1. write it in one file (its neighbours show the signature),
2. add one line here (a metric: one line in `results/metric_table.py`),
3. `--help`, the suggestions, the early checks and `evaluate` pick it up; add tests for what is specific to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal


@dataclass(frozen=True)
class Method:
    """A selector chooses parameters for a sub-network; a reference predicts without one.

    Its module may also define `check`, which refuses impossible input before any computation:
    `check(facts, k)` for a selector and for features, `check(run)` for a reference.
    """

    # selector: (problem, k) → Selection; features: (k, seed, subset) → FeatureMap; reference: (ReferenceInputs) →
    # Prediction
    entry: str
    summary: str
    kind: Literal["selector", "features", "reference"] = "selector"
    takes_k: bool = True
    nested: bool = True  # of a selector: the choice for a smaller k is a prefix of that for a larger one
    pooled: bool = False  # it chooses among the candidates of --pool, which may grow with k
    needs_full: bool = False  # it is fitted to the full posterior
    beside: bool = False  # every table shows it, where it costs little
    needs_gradients: bool = True  # False: plain forward passes are enough
    subset: str | None = None  # of features: the selector that chooses k // 2 parameters among them


def _selector(name: str, summary: str, **more: Any) -> Method:
    return Method(f"sublaplace_cli.core.selectors.{name}:{name}", summary, **more)


def _reference(name: str, summary: str, **more: Any) -> Method:
    return Method(f"sublaplace_cli.run.references.{name}:predict", summary, "reference", takes_k=False, **more)


def _features(file: str, summary: str, **more: Any) -> Method:
    return Method(f"sublaplace_cli.core.features.methods.{file}:{file}", summary, "features", nested=False, **more)


SKETCH = "sketch"  # the method that a hint may name
METHODS = {
    "gradient": _selector("gradient", "k largest weighted mean squared gradients (Algorithm 1)"),
    "greedy": _selector("greedy", "largest remaining Schur complement (Algorithm 2)", pooled=True),
    "subnet-diagonal": _selector("subnet_diagonal", "k smallest of diag(Ω)"),
    "last-k": _selector("last_k", "the last k of the flat parameter vector"),
    "neural-linear": _selector("neural_linear", "all of the last linear layer", takes_k=False),
    "random": _selector("random", "a seeded uniform choice"),
    "magnitude": _selector("magnitude", "k largest |θ|"),
    "variance": _selector("variance", "largest gain in variance over the reference rows", pooled=True),
    SKETCH: _features("sketch", "k random signed sums of all parameters' gradients"),
    "gradient+sketch": _features(
        "gradient_sketch",
        "the k/2 parameters that gradient chooses, and k/2 random signed sums of all others",
        subset="gradient",
    ),
    "full": _reference("full", "full linearized Laplace, through the Gram kernel", needs_full=True),
    "temperature": _reference(
        "temperature", "the network alone with a temperature fitted to held-out rows", needs_gradients=False
    ),
    "map": _reference("map", "no posterior: the network alone", needs_gradients=False),
    "kfac": _reference("kfac", "Kronecker-factored Laplace (extra [kfac])"),
    "ensemble": _reference("ensemble", "the variance over the networks in ensemble.checkpoints", needs_gradients=False),
    "norm": _reference(
        "norm", "no sub-network: variance b·‖g‖², b fitted as by --rescale scale", needs_full=True, beside=True
    ),
    "constant": _reference("constant", "no sub-network: one variance for all rows, fitted likewise", needs_full=True),
    "diagonal": _reference("diagonal", "diagonal Laplace"),
}
FULL = "full"  # the method that all others are compared with
DEFAULT_METHOD = "gradient"
NAMES_PREFIX = "names:"
BY_NAME = _selector("by_name", "all parameters whose name matches the glob", takes_k=False)


@dataclass(frozen=True)
class Task:
    """Facts about a task that the spec and data readers need before torch is imported."""

    entry: str  # "module:class" of its likelihood
    labels: bool = False  # targets are class numbers, not measurements
    one_logit: bool = False  # two classes behind one output
    one_noise: bool = False  # there is one noise variance for all rows, which the spec may set

    @property
    def softmax(self) -> bool:
        """One output per class."""
        return self.labels and not self.one_logit


TASKS = {
    "regression": Task("sublaplace_cli.core.likelihoods.regression:Regression", one_noise=True),
    "binary": Task("sublaplace_cli.core.likelihoods.binary:Binary", labels=True, one_logit=True),
    "multiclass": Task("sublaplace_cli.core.likelihoods.multiclass:Multiclass", labels=True),
}
# Tasks with another meaning of the network's outputs, by the name of the task and that of the outputs.
OUTPUTS = {
    ("regression", "mean-and-log-variance"): Task("sublaplace_cli.core.likelihoods.heteroscedastic:Heteroscedastic"),
}

CALIBRATED = "calibrated"  # by targets of held-out rows; the other rescalings are fitted to the full posterior
RESCALES = ("none", "scale", "hybrid", CALIBRATED)
GROUPINGS = ("class",)  # rows that have their own conformal quantile
LINKS = ("integral", "mean-field", "probit")  # from uncertain logits to class probabilities

FORMATS = {
    "table": "sublaplace_cli.render.text:table",
    "tsv": "sublaplace_cli.render.text:tsv",
    "json": "sublaplace_cli.results.result:json_text",
    "jsonl": "sublaplace_cli.render.text:jsonl",
    "csv": "sublaplace_cli.render.text:csv_text",
    "markdown": "sublaplace_cli.render.text:markdown",
    "junit": "sublaplace_cli.render.ci:junit",
    "github": "sublaplace_cli.render.ci:github",
}
_SAME_SUFFIX = {f".{name}": name for name in ("json", "jsonl", "csv", "tsv")}
FORMAT_OF_SUFFIX = {**_SAME_SUFFIX, ".md": "markdown", ".txt": "table", ".xml": "junit"}

PICTURES = {
    "curves": "sublaplace_cli.render.plots:curves",
    "calibration": "sublaplace_cli.render.plots:calibration",
    "risk-coverage": "sublaplace_cli.render.plots:risk_coverage",
    "scatter": "sublaplace_cli.render.plots:scatter",
    "map": "sublaplace_cli.render.plots:layer_map",
    "ood": "sublaplace_cli.render.histograms:ood",
}
PICTURE_SUFFIXES = (".png", ".svg", ".pdf")

ARCHITECTURES = {
    "mlp": "sublaplace_cli.architectures.mlp:mlp",
    "cifar_resnet": "sublaplace_cli.architectures.cifar_resnet:cifar_resnet",
}

DATA_FORMATS = {
    "csv": "sublaplace_cli.files.data.tables:read_csv",
    "parquet": "sublaplace_cli.files.data.columnar.parquet:read_parquet",
    "arrow": "sublaplace_cli.files.data.columnar.arrow:read_arrow",
    "npz": "sublaplace_cli.files.data.arrays:read_npz",
    "npy": "sublaplace_cli.files.data.arrays:read_npy",
    "safetensors": "sublaplace_cli.files.data.arrays:read_safetensors",
    "imagefolder": "sublaplace_cli.files.data.images:read_imagefolder",
}


def task_of(name: str, outputs: str | None = None) -> Task:
    """The facts of a task; `outputs` names another meaning of the network's outputs than the usual one."""
    return TASKS[name] if outputs is None else OUTPUTS[name, outputs]


def load(entry: str) -> Callable[..., Any]:
    """The object behind a "module:object" entry."""
    module, _, name = entry.partition(":")
    return getattr(import_module(module), name)


def load_check(method: Method) -> Callable[..., None] | None:
    """The early check in a method's module; None if it has none."""
    return getattr(import_module(method.entry.partition(":")[0]), "check", None)
