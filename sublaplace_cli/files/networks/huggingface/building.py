"""config.json and tensors → a network of the transformers package. All sizes are checked before memory is used."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from ....errors import UserError
from ...reading import reading
from ..checkpoints import State
from ..containers import refuse_above
from . import packages
from .folder import CONFIG, SAVE_AGAIN

Brings = Callable[[str], bool]  # whether an adapter has the tensor of this name

MOST_REPEATS, MOST_LOGITS = 10_000, 100_000
REPEATED_PARTS = re.compile(r"layer|depth|block|stage|group|expert")
# How a layer is computed is decided here; some values of these would name code to download.
NOT_TAKEN = re.compile(r"_?(attn|experts)_implementation\w*|dtype|torch_dtype")
FEW_PARTS, PARTS_PER_TENSOR = 1000, 50  # modules and parameters of a network with so many stored tensors
KEYS_SHOWN = 5
OTHER_CODE = "only networks of the transformers package itself are built; for your own code use build: {import: …}"


@dataclass(frozen=True)
class Blueprint:
    """A class of transformers and its configuration, checked."""

    network: Any  # the class
    content: Mapping[str, Any]
    where: str  # the configuration's file

    @property
    def name(self) -> str:
        return str(self.network.__name__)

    def config(self) -> Any:
        with reading(self.where, f"is not a configuration of {self.name}", SAVE_AGAIN):
            return self.network.config_class.from_dict(dict(self.content))


def blueprint(content: Mapping[str, Any], path: Path, field: str, network: Any = None) -> Blueprint:
    """The class that config.json names, or another one that suits the configuration."""
    where = str(path / CONFIG)
    plain = _without_choices(content, where)
    package = packages.transformers(field)
    return Blueprint(network or _class_of(plain, package, where), plain, where)


def _without_choices(content: Any, where: str) -> Any:
    """The configuration without what is decided here; refused if it names code or sizes beyond reason."""
    if isinstance(content, list):
        return [_without_choices(item, where) for item in content]
    if not isinstance(content, Mapping):
        return content
    for key, value in content.items():
        if key in ("auto_map", "custom_pipelines") and value:
            raise UserError(f"{where}: {key} names code, which is refused", hint=OTHER_CODE)
        if key == "quantization_config" and value:
            raise UserError(f"{where}: the weights are quantised", hint="save them without quantisation")
        if key == "use_pretrained_backbone" and value:
            raise UserError(f"{where}: {key} would download weights", hint=SAVE_AGAIN)
        numbers = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)]
        most = MOST_LOGITS if key == "num_labels" else MOST_REPEATS if REPEATED_PARTS.search(key) else None
        if most is not None and any(number > most for number in numbers):
            raise UserError(f"{where}: {key[:100]} is {max(numbers)}, expected at most {most}")
    return {key: _without_choices(value, where) for key, value in content.items() if not NOT_TAKEN.fullmatch(key)}


def _class_of(content: Mapping[str, Any], package: ModuleType, where: str) -> Any:
    names = content.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise UserError(f"{where}: expected architectures: [NAME], one network of transformers", hint=SAVE_AGAIN)
    found = getattr(package, names[0], None) if re.fullmatch(r"[A-Z]\w{0,99}", names[0], re.ASCII) else None
    is_network = isinstance(found, type) and issubclass(found, package.PreTrainedModel)
    if not is_network or not str(getattr(found, "__module__", "")).startswith("transformers."):
        message = f"{where}: architectures: {names[0][:100]!a} is no network of transformers {package.__version__}"
        raise UserError(message, hint=OTHER_CODE)
    kind = content.get("model_type")
    expected = getattr(getattr(found, "config_class", None), "model_type", None)
    if kind != expected:
        raise UserError(
            f"{where}: model_type is {str(kind)[:100]!a}, but {names[0]} is a {expected!a}", hint=SAVE_AGAIN
        )
    return found


def on_meta(plan: Blueprint, n_tensors: int, memory: int) -> nn.Module:
    """The network without values, refused if it has more parts than so many stored tensors can fill."""
    config = plan.config()
    few = _few_parts(FEW_PARTS + PARTS_PER_TENSOR * n_tensors, plan.where)
    with reading(plan.where, f"{plan.name} cannot be built", SAVE_AGAIN), few, torch.device("meta"):
        module: nn.Module = plan.network(config)
    needed = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    refuse_above(memory, needed, f"{plan.where}: {plan.name} needs")
    return module


@contextmanager
def _few_parts(most: int, where: str) -> Iterator[None]:
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > most:
            raise UserError(f"{where}: the network has more than {most} parts, far more than its weights")

    hooks = [register_module_parameter_registration_hook(counted), register_module_module_registration_hook(counted)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def with_values(
    plan: Blueprint, state: State, weights: Path, *, strict: bool, filled_later: Brings | None = None
) -> nn.Module:
    """The network with these tensors, under the names that transformers saves; each of its own must be among them.

    `filled_later` says which of them an adapter brings.
    """
    wide = any(tensor.dtype == torch.float64 for tensor in state.values())
    options: dict[str, Any] = {"dtype": torch.float64 if wide else torch.float32, "attn_implementation": "eager"}
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # all that is wrong is listed below
    # What is missing gets random numbers, until it is refused: they must not advance the caller's.
    with torch.random.fork_rng(devices=[]), reading(weights, f"the weights do not fit {plan.name}", SAVE_AGAIN):
        module, found = plan.network.from_pretrained(None, config=plan.config(), state_dict=dict(state), **options)
    missing = [name for name in found["missing_keys"] if filled_later is None or not filled_later(name)]
    unlike = [f"{name} {_shape(own)}, expected {_shape(expected)}" for name, own, expected in found["mismatched_keys"]]
    _refuse_unlike(plan, weights, missing, found["unexpected_keys"] if strict else (), unlike)
    _require_finite(module, weights)
    if hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    return module.requires_grad_(True).eval()


def _shape(sizes: Iterable[int]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _refuse_unlike(plan: Blueprint, weights: Path, missing: Any, unexpected: Any, unlike: list[str]) -> None:
    lines = [
        f"  {title}: {', '.join(sorted(names)[:KEYS_SHOWN])}" + (" …" if len(names) > KEYS_SHOWN else "")
        for title, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", unlike))
        if names
    ]
    if lines:
        hint = "weights: {path: …, strict: false} ignores unexpected tensors"
        if unlike:
            hint = f"{CONFIG} is that of another network; {SAVE_AGAIN}"
        elif missing:
            hint = "it would get random values there; use the folder of the trained network, head included"
        raise UserError([f"{weights}: the weights are not all those of {plan.name}", *lines], hint=hint)


def _require_finite(module: nn.Module, weights: Path) -> None:
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            message = f"{weights}: '{name}' has values that are NaN or infinite, expected finite weights"
            raise UserError(message, hint="the training diverged, or the file is damaged; use an earlier checkpoint")
