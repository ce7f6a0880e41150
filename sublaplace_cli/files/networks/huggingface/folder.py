"""The files of a Hugging Face folder: configuration, weights in one file or several, adapter. None is trusted."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import UserError
from ....json_files import parse_json, read_bounded
from ...reading import reading
from ..checkpoints import State, load_state

Resolve = Callable[[str, str], Path]

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
MODEL_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the safe one first
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
MOST_SETTINGS_BYTES = 4 * 2**20
MOST_NAME = 200  # characters; for some more, the system has an error of its own
MOST_INDEX_BYTES = 16 * 2**20
SAVE_AGAIN = "save the model again: model.save_pretrained(FOLDER)"


@dataclass(frozen=True)
class ModelFolder:
    """A folder that the spec names, whose links may lead only where the spec's own paths may."""

    path: Path
    field: str
    resolve: Resolve

    def file(self, name: str) -> Path | None:
        """A file of the folder, if it is there."""
        path = self.path / name
        if len(name) > MOST_NAME or not (path.exists() or path.is_symlink()):
            return None
        self.resolve(str(path.absolute()), self.field)
        if not path.is_file():
            raise UserError(f"{path}: is not a regular file")
        return path

    def settings(self, name: str) -> dict[str, Any]:
        """The JSON object in a file of the folder."""
        path = self.file(name)
        if path is None:
            hint = "expected a folder that save_pretrained has written"
            raise UserError(f"{self.field}: {self.path} has no {name}", hint=hint)
        return read_object(path)

    def weights(self, names: tuple[str, ...]) -> tuple[Path, ...]:
        """The files of the weights, with the index first if there are several."""
        for name in names:
            if (single := self.file(name)) is not None:
                return (single,)
            if (index := self.file(f"{name}.index.json")) is not None:
                return (index, *self._shards(index))
        raise UserError(f"{self.field}: {self.path} has no weights", hint=f"expected {' or '.join(names)}")

    def _shards(self, index: Path) -> Iterable[Path]:
        names = read_object(index, MOST_INDEX_BYTES).get("weight_map")
        if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{index}: expected a weight_map from tensors to files", hint=SAVE_AGAIN)
        for name in dict.fromkeys(names.values()):
            if Path(name).name != name or name in ("", ".", ".."):
                raise UserError(f"{index}: names the file {name[:100]!a}, expected a file of the same folder")
            if (shard := self.file(name)) is None:
                raise UserError(f"{index}: names the file {name[:100]!a}, which is not there", hint=SAVE_AGAIN)
            yield shard

    def state(self, files: tuple[Path, ...], memory: int) -> State:
        """All tensors in the files of the weights."""
        state: State = {}
        for path in files:
            if path.name.endswith(".index.json"):
                continue
            part = load_state(path, memory=memory - sum(tensor.nbytes for tensor in state.values()))
            if twice := next((name for name in part if name in state), None):
                raise UserError(f"{path}: the tensor '{twice}' is in another file too", hint=SAVE_AGAIN)
            state |= part
        return state


def open_model_folder(value: str, field: str, resolve: Resolve) -> ModelFolder:
    """The folder that a field of the spec names."""
    path = resolve(value, field)
    if not path.is_dir():
        found = "is not a folder" if path.exists() else "is missing"
        hint = "expected a local folder with config.json and the weights; nothing is downloaded"
        raise UserError(f"{field}: {path} {found}", hint=hint)
    return ModelFolder(path, field, resolve)


def read_object(path: Path, most_bytes: int = MOST_SETTINGS_BYTES) -> dict[str, Any]:
    """The JSON object in a file of bounded size."""
    with reading(path, "not a readable JSON file", SAVE_AGAIN):
        content = parse_json(read_bounded(path, most_bytes).decode())
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}, expected an object", hint=SAVE_AGAIN)
    return content
