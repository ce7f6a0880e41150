"""A Hugging Face folder → how its network is built, and how many tokens the rows of its texts need."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...files.data.tokenizing import tokenizer_in
from ...files.networks.checkpoints import load_state
from ...files.networks.huggingface.folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG, ModelFolder, read_object
from .inference import Inference, NetworkGuess

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
USUAL_LABELS = 2  # of transformers, which does not write them into the configuration then
MOST_ADAPTER_BYTES = 2**32
LENGTH, LENGTH_STEP = 128, 8  # most tokens of a row that are proposed, and a multiple of this


def guess_from_folder(path: Path, shown: str) -> NetworkGuess:
    """`shown` is the path as the spec names it."""
    config = path / CONFIG
    if not config.is_file() and (path / ADAPTER_CONFIG).is_file():
        return _from_adapter(path, shown)
    if not config.is_file():
        raise UserError(f"{path}: is a folder without a config.json", hint="expected a Hugging Face folder or a file")
    content = read_object(config)
    names = content.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "?"
    finding = Inference("model", f"Hugging Face {json.dumps(name)[1:-1]}", "sure", CONFIG)
    facts: dict[str, Any] = {"n_outputs": _outputs(content, name), "takes": _takes(path), "folder": path}
    return NetworkGuess({"huggingface": shown}, {}, (finding,), **facts)


def _from_adapter(path: Path, shown: str) -> NetworkGuess:
    base = read_object(path / ADAPTER_CONFIG).get("base_model_name_or_path")
    places = [path / base, path.parent / base] if isinstance(base, str) and base else []
    folder = next((place for place in places if place.is_dir()), None)
    value = f"an adapter (LoRA) of {json.dumps(base)[:60]}"
    if folder is None:
        finding = Inference("model", value, "check", "its base is no local folder; add base: FOLDER to build")
    else:
        finding = Inference("model", value, "sure", ADAPTER_CONFIG)
    with_tokenizer = [place for place in (path, folder) if place is not None and _takes(place) == "text"]
    facts: dict[str, Any] = {"takes": "text" if with_tokenizer else "numbers", "n_outputs": _outputs_of_head(path)}
    return NetworkGuess({"huggingface": shown}, {}, (finding,), folder=(*with_tokenizer, path)[0], **facts)


def _outputs_of_head(path: Path) -> int | None:
    """The rows of the last matrix that the adapter brings as a whole."""
    weights = path / ADAPTER_WEIGHTS[0]
    state = load_state(weights, memory=MOST_ADAPTER_BYTES) if weights.is_file() else {}
    matrices = [state[name] for name in sorted(state) if ".lora_" not in name and state[name].ndim == 2]
    return len(matrices[-1]) if matrices else None


def _takes(path: Path) -> str:
    return "text" if any((path / name).is_file() for name in TOKENIZERS) else "numbers"


def _outputs(content: dict[str, Any], name: str) -> int | None:
    labels, count = content.get("id2label"), content.get("num_labels")
    if isinstance(labels, dict):
        return len(labels)
    return count if isinstance(count, int) else USUAL_LABELS if name.endswith("Classification") else None


def labels_in(folder: Path | None) -> tuple[str, ...]:
    """The labels of the outputs in their order (id2label), if the folder's configuration has them."""
    config = None if folder is None else folder / CONFIG
    labels = read_object(config).get("id2label") if config is not None and config.is_file() else None
    known = labels if isinstance(labels, dict) else {}
    numbers = [str(number) for number in range(len(known))]
    return tuple(str(known[number]) for number in numbers) if set(known) == set(numbers) else ()


def guess_length(folder: Path, texts: Sequence[str]) -> Inference:
    """The value is the number of tokens that rows are padded to."""
    config = folder / CONFIG
    positions = read_object(config).get("max_position_embeddings") if config.is_file() else None
    most = min(LENGTH, positions) if isinstance(positions, int) and positions > 0 else LENGTH
    try:
        tokenizer = tokenizer_in(ModelFolder(folder, "the folder", lambda value, _: Path(value)), most)
        longest = int(tokenizer(texts, None).lengths.max())
    except UserError as error:
        return Inference("max_length", str(most), "check", f"texts could not be counted ({error.message})")
    if longest > most:
        return Inference("max_length", str(most), "check", f"texts are cut: the longest has {longest} tokens")
    rounded = min(most, -(-longest // LENGTH_STEP) * LENGTH_STEP)
    return Inference("max_length", str(rounded), "likely", f"the longest of {len(texts)} texts has {longest} tokens")
