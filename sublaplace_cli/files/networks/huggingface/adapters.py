"""LoRA adapters of peft: a frozen base network, and the small trainable tensors of a second folder."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ....errors import UserError
from ...reading import reading
from ..checkpoints import State
from . import packages
from .building import Blueprint, blueprint, on_meta, with_values
from .folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CONFIG,
    MODEL_WEIGHTS,
    SAVE_AGAIN,
    ModelFolder,
    open_model_folder,
)

if TYPE_CHECKING:
    from .network import OtherWeights

# Settings that are passed on; each other one must have its default, because it may change the forward.
TAKEN = {"r", "lora_alpha", "target_modules", "modules_to_save", "exclude_modules", "fan_in_fan_out"}
TAKEN |= {"rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "layers_to_transform", "layers_pattern"}
# Settings that only matter for training, or are only notes.
IGNORED = {"base_model_name_or_path", "revision", "peft_type", "peft_version", "task_type", "inference_mode"}
IGNORED |= {"lora_dropout", "init_lora_weights", "auto_mapping", "loftq_config", "megatron_core", "runtime_config"}
IGNORED |= {"qalora_group_size", "ensure_weight_tying"}
MOST_RANK = 4096
# Of names of modules. With few wildcards and no other repetition, a search takes little time.
MOST_PATTERN, HARMLESS_PATTERN, MOST_WILDCARDS = 200, r"(?:[\w|^$()\\-]|\.\*?)*", 3
MOST_COUNTS = 20  # numbers of outputs that are tried
ADAPTER, PREFIX = "default", "base_model.model."
NAMED = 3  # tensors in a message
WHOLE_ROWS = "SEQ_CLS"
OF_LAYERS = re.compile(r"\.(lora_(?:A|B|embedding_A|embedding_B|magnitude_vector))(?=\.|$)")


@dataclass(frozen=True)
class Adapter:
    """The settings and tensors of an adapter, its tensors under the names that they have in the base network."""

    settings: Mapping[str, Any]
    tensors: State
    path: Path  # of the tensors

    @property
    def saved_modules(self) -> list[str]:
        return list(self.settings.get("modules_to_save") or ())

    def brings(self, name: str) -> bool:
        """Whether it replaces this tensor of the base network."""
        return any(f".{module}." in f".{name}" for module in self.saved_modules)


def base_of(folder: ModelFolder, named: str | None, field: str) -> ModelFolder:
    """The folder of the base network: that of the spec, or the one that the adapter names, if it is local."""
    if named is not None:
        return open_model_folder(named, field, folder.resolve)
    name = folder.settings(ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise UserError(f"{folder.path / ADAPTER_CONFIG}: names no base network", hint=_base_hint(folder))
    path = _local_folder(folder, name, field)
    if path is None:
        message = f"{folder.path / ADAPTER_CONFIG}: the base network {name[:100]!a} is no local folder"
        raise UserError(f"{message}, and nothing is downloaded", hint=_base_hint(folder))
    return open_model_folder(str(path.absolute()), folder.field, folder.resolve)


def _local_folder(folder: ModelFolder, name: str, field: str) -> Path | None:
    """Relative to the adapter, else to the spec. The name may be any text."""
    try:
        if (beside := folder.path / name).is_dir():
            return beside
        path = folder.resolve(name, field)
        return path if path.is_dir() else None
    except (UserError, OSError, ValueError):  # it leads out of the spec's folder, or is too long
        return None


def _base_hint(folder: ModelFolder) -> str:
    return f"build: {{huggingface: {folder.path.name}, base: FOLDER}} names the folder of the base network"


def add_adapter(
    folder: ModelFolder, base: ModelFolder, memory: int, other: "OtherWeights | None"
) -> tuple[nn.Module, tuple[Path, ...]]:
    """The base network with the adapter, of which only the adapter's tensors are trainable."""
    package, where = packages.peft(folder.field), folder.path / ADAPTER_CONFIG
    settings = folder.settings(ADAPTER_CONFIG)
    config = _config(settings, package, where)
    paths = folder.weights(ADAPTER_WEIGHTS) if other is None else (other.path,)
    tensors = folder.state(paths, memory) if other is None else other.fitted({}, other.state)
    saved = settings.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(name, str) for name in saved):
        raise UserError(f"{where}: expected a list of names in modules_to_save", hint=SAVE_AGAIN)
    adapter = Adapter(settings, {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}, paths[0])
    base_paths = base.weights(MODEL_WEIGHTS)
    state = base.state(base_paths, memory)
    plan = _plan(base, adapter, len(state), memory)
    changed = plan.name not in (plan.content.get("architectures") or ())
    module = with_values(plan, state, base_paths[0], strict=not changed, filled_later=adapter.brings)
    with torch.random.fork_rng(devices=[]), reading(where, f"the adapter does not fit {plan.name}", SAVE_AGAIN):
        module = package.inject_adapter_in_model(config, module, ADAPTER)
    _fill(module, adapter)
    files = (where, base.path / CONFIG, *base_paths)
    return module.eval(), (*files, *paths) if other is None else files


def _config(settings: Mapping[str, Any], package: Any, where: Path) -> Any:
    if settings.get("peft_type") != "LORA":
        kind = str(settings.get("peft_type"))[:40]
        raise UserError(f"{where}: peft_type is {kind!a}, expected LORA", hint="merge it: model.merge_and_unload()")
    defaults = vars(package.LoraConfig())
    for key, value in settings.items():
        if key in TAKEN:
            _require_harmless(key, value, where)
        elif key not in IGNORED and value and value != defaults.get(key):
            message = f"{where}: the setting {key[:100]!a} is not supported"
            raise UserError(message, hint="merge the adapter into its base: model.merge_and_unload()")
    with reading(where, "not a configuration of peft.LoraConfig", SAVE_AGAIN):
        return package.LoraConfig(**{key: value for key, value in settings.items() if key in TAKEN})


def _require_harmless(key: str, value: Any, where: Path) -> None:
    """No pattern that takes for ever, no rank beyond reason."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
    for part in parts:
        if isinstance(part, str) and not _is_harmless(part):
            raise UserError(f"{where}: {key} has the pattern {part[:100]!a}", hint="list the names of the modules")
        if isinstance(part, int | float) and not 0 <= part <= MOST_RANK:
            raise UserError(f"{where}: {key} is {part}, expected at most {MOST_RANK}")


def _is_harmless(pattern: str) -> bool:
    few = len(pattern) <= MOST_PATTERN and pattern.count(".*") <= MOST_WILDCARDS
    return few and re.fullmatch(HARMLESS_PATTERN, pattern) is not None


def _plan(base: ModelFolder, adapter: Adapter, n_tensors: int, memory: int) -> Blueprint:
    """The base's own class, or the one for whole rows if the adapter was trained for that, with as many outputs."""
    content = base.settings(CONFIG)
    plan = blueprint(content, base.path, base.field)
    if adapter.settings.get("task_type") == WHOLE_ROWS:
        package = packages.transformers(base.field)
        kinds = package.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
        kind = type(plan.config())
        if kind in kinds and plan.network is not kinds[kind]:
            plan = blueprint(content, base.path, base.field, network=kinds[kind])
    if _fits(plan, adapter, n_tensors, memory):
        return plan
    # The base may have another number of outputs than the adapter's head, or none.
    brought = {name: t for name, t in adapter.tensors.items() if t.ndim and adapter.brings(name)}
    for count in sorted({len(tensor) for tensor in brought.values()})[:MOST_COUNTS]:
        own = {key: value for key, value in plan.content.items() if key not in ("id2label", "label2id")}
        other = replace(plan, content={**own, "num_labels": count})
        if _fits(other, adapter, n_tensors, memory):
            return other
    message = f"{adapter.path}: its tensors do not fit the base network {plan.name} of {base.path}"
    raise UserError(message, hint="is it the base that the adapter was trained on?")


def _fits(plan: Blueprint, adapter: Adapter, n_tensors: int, memory: int) -> bool:
    """Whether the modules that the adapter replaces have the shapes of its tensors."""
    expected = {name: t.shape for name, t in on_meta(plan, n_tensors, memory).state_dict().items()}
    brought = {name: tensor.shape for name, tensor in adapter.tensors.items() if adapter.brings(name)}
    return all(expected.get(name) == shape for name, shape in brought.items() if not OF_LAYERS.search(name))


def _fill(module: nn.Module, adapter: Adapter) -> None:
    """Copy the adapter's tensors; each trainable tensor must be among them."""
    places: dict[str, str] = {}
    for name in adapter.tensors:
        inside, count = OF_LAYERS.subn(rf".\1.{ADAPTER}", name)
        places[inside if count else _saved_place(name, adapter.saved_modules)] = name
    wanted = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    own = dict(module.named_parameters())
    for what, names in (("missing", wanted.keys() - places.keys()), ("unexpected", places.keys() - wanted.keys())):
        if names:
            shown = ", ".join(sorted(names)[:NAMED])
            raise UserError(f"{adapter.path}: not the tensors of this adapter; {what}: {shown}", hint=SAVE_AGAIN)
    with torch.no_grad():
        for place, name in places.items():
            tensor = adapter.tensors[name]
            if tensor.shape != own[place].shape:
                shapes = f"{tuple(tensor.shape)}, expected {tuple(own[place].shape)}"
                raise UserError(f"{adapter.path}: '{name}' has the shape {shapes}", hint=SAVE_AGAIN)
            if not bool(torch.isfinite(tensor).all()):
                raise UserError(f"{adapter.path}: '{name}' has values that are NaN or infinite")
            own[place].copy_(tensor)
        for name, parameter in own.items():
            if ".original_module." in f".{name}":
                parameter.zero_()  # never used; the base may have had no values for it


def _saved_place(name: str, saved_modules: list[str]) -> str:
    for module in saved_modules:
        if f".{module}." in f".{name}":
            before, _, after = f".{name}".rpartition(f".{module}.")
            return f"{before}.{module}.modules_to_save.{ADAPTER}.{after}".removeprefix(".")
    return name
