"""A folder of the spec → its network, with the folder's weights or with those of a checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from ....errors import UserError
from ...spec.models import BuildSpec
from ..checkpoints import State
from .adapters import add_adapter, base_of
from .building import blueprint, on_meta, with_values
from .folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG, MODEL_WEIGHTS, ModelFolder, Resolve, open_model_folder
from .logits import give_logits

Fitted = Callable[[Mapping[str, Tensor], State], State]  # (expected, found) → found, under the names that fit best


@dataclass(frozen=True)
class OtherWeights:
    """A checkpoint in place of the folder's weights."""

    path: Path
    state: State
    strict: bool
    fitted: Fitted


Made = tuple[nn.Module, tuple[Path, ...]]


def load_from_folder(build: BuildSpec, field: str, resolve: Resolve, memory: int, other: OtherWeights | None) -> Made:
    """The network in eval mode, its forward returning logits, and the files that define it."""
    where = f"{field}.build.huggingface"
    folder = open_model_folder(str(build.huggingface), where, resolve)
    if folder.file(ADAPTER_CONFIG) is None:
        if build.base is not None:
            message = f"{field}.build.base: {folder.path} is no adapter, it has no {ADAPTER_CONFIG}"
            raise UserError(message, hint="remove base")
        module, files = _whole(folder, memory, other)
    else:
        base = base_of(folder, build.base, f"{field}.build.base")
        module, files = add_adapter(folder, base, memory, other)
    return give_logits(module), files


def _whole(folder: ModelFolder, memory: int, other: OtherWeights | None) -> Made:
    content = folder.settings(CONFIG)
    plan = blueprint(content, folder.path, folder.field)
    paths = () if other is not None else folder.weights(MODEL_WEIGHTS)
    state = other.state if other is not None else folder.state(paths, memory)
    expected = on_meta(plan, len(state), memory).state_dict()
    source, strict = paths[0] if other is None else other.path, other is None or other.strict
    if other is not None:
        state = other.fitted(expected, state)
    return with_values(plan, state, source, strict=strict), (folder.path / CONFIG, *paths)


def folder_files(build: BuildSpec, field: str, resolve: Resolve) -> list[Path]:
    """The files that define the network of a folder, for hashing without loading them."""
    folder = open_model_folder(str(build.huggingface), f"{field}.huggingface", resolve)
    if folder.file(ADAPTER_CONFIG) is None:
        return _settings_and_weights(folder, CONFIG, MODEL_WEIGHTS)
    base = base_of(folder, build.base, f"{field}.base")
    of_base = _settings_and_weights(base, CONFIG, MODEL_WEIGHTS)
    return [*_settings_and_weights(folder, ADAPTER_CONFIG, ADAPTER_WEIGHTS), *of_base]


def _settings_and_weights(folder: ModelFolder, settings: str, names: tuple[str, ...]) -> list[Path]:
    folder.settings(settings)  # refuses a folder without them
    return [folder.path / settings, *folder.weights(names)]
