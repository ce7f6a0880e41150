"""The tokenizer in a local folder, as transformers loads it: nothing is downloaded, and no code of the folder runs."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import SublaplaceError, UserError
from ...sizes import format_bytes
from ..networks.huggingface import packages
from ..networks.huggingface.folder import ADAPTER_CONFIG, ModelFolder, Resolve, open_model_folder, read_object
from ..reading import reason_of
from ..spec.models import Spec

TOKENIZER_CONFIG = "tokenizer_config.json"
SETTINGS = ("config.json", TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json")
VOCABULARY = re.compile(r"(tokenizer|vocab|merges|spiece|sentencepiece|bpe|source|target|tekken).*")
MOST_FILE_BYTES = 64 * 2**20
SAVE_TOKENIZER = "save it beside the network: tokenizer.save_pretrained(FOLDER)"


@dataclass(frozen=True)
class Encoded:
    """Texts as rows of numbers, all of the same length."""

    arrays: dict[str, np.ndarray]  # by input of the network, (rows, length)
    lengths: np.ndarray  # tokens of each text before it was cut or padded


@dataclass(frozen=True)
class Tokenizer:
    path: Path
    max_length: int
    of_package: Any

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Encoded:
        """Each text (with its pair) cut and padded to `max_length`, so that no row depends on the others."""
        both = [list(texts)] if pairs is None else [list(texts), list(pairs)]
        with _parsing(self.path, "the tokenizer cannot encode the texts"):
            whole = self.of_package(*both, truncation=False, padding=False)
            rows = self.of_package(*both, truncation=True, max_length=self.max_length, padding="max_length")
            arrays = {str(name): np.array(values, dtype=np.int32) for name, values in rows.items()}
            lengths = np.array([len(ids) for ids in whole["input_ids"]])
        expected = (len(texts), self.max_length)
        if wrong := next((name for name, values in arrays.items() if values.shape != expected), None):
            found = arrays[wrong].shape
            raise UserError(f"{self.path}: the tokenizer gives {wrong} of shape {found}, expected {expected}")
        return Encoded(arrays, lengths)


def tokenizer_files(spec: Spec, resolve: Resolve) -> list[Path]:
    """The files of the tokenizer, if the spec has texts, for hashing."""
    return [] if spec.data.text is None else _files(_folder_of(spec, resolve))


def _files(folder: ModelFolder) -> list[Path]:
    found = [path.name for path in folder.path.iterdir() if path.name in SETTINGS or VOCABULARY.fullmatch(path.name)]
    files = [path for name in sorted(found) if (path := folder.file(name)) is not None]
    if all(path.name in SETTINGS for path in files):
        raise UserError(
            f"{folder.field}: {folder.path} has no tokenizer", hint=f"expected tokenizer.json; {SAVE_TOKENIZER}"
        )
    for path in files:
        if (size := path.stat().st_size) > MOST_FILE_BYTES:
            message = f"{path}: has {format_bytes(size)}, more than {format_bytes(MOST_FILE_BYTES)}"
            raise UserError(message, hint="is it the file of a tokenizer?")
    return files


def open_tokenizer(spec: Spec, resolve: Resolve) -> Tokenizer:
    """The tokenizer of the spec's texts."""
    assert spec.data.text is not None, "there are texts"
    return tokenizer_in(_folder_of(spec, resolve), spec.data.text.max_length)


def tokenizer_in(folder: ModelFolder, max_length: int) -> Tokenizer:
    """The tokenizer of a folder, whose rows have `max_length` tokens."""
    package = packages.transformers(folder.field)
    for path in _files(folder):
        if path.name in SETTINGS and read_object(path).get("auto_map"):
            hint = "only tokenizers of the transformers package itself are used"
            raise UserError(f"{path}: auto_map names code, which is refused", hint=hint)
    with _parsing(folder.path, "not a readable tokenizer"):
        found = package.AutoTokenizer.from_pretrained(
            str(folder.path), local_files_only=True, trust_remote_code=False, use_fast=True
        )
        padding = found.pad_token
    if padding is None:
        message = f"{folder.path}: the tokenizer has no padding token, and texts have different lengths"
        raise UserError(message, hint=f"set pad_token as in the training and {SAVE_TOKENIZER}")
    return Tokenizer(folder.path, max_length, found)


def _folder_of(spec: Spec, resolve: Resolve) -> ModelFolder:
    """The folder of the tokenizer: its own, that of the network, or that of an adapter's base."""
    assert spec.data.text is not None, "there are texts"
    build = spec.model.build
    if spec.data.text.tokenizer is not None:
        return open_model_folder(spec.data.text.tokenizer, "data.text.tokenizer", resolve)
    folder = open_model_folder(str(build.huggingface), "model.build.huggingface", resolve)
    if folder.file(ADAPTER_CONFIG) is not None and folder.file(TOKENIZER_CONFIG) is None:
        from ..networks.huggingface.adapters import base_of  # imports torch

        return base_of(folder, build.base, "model.build.base")
    return folder


@contextmanager
def _parsing(path: Path, problem: str) -> Iterator[None]:
    """Any exception becomes “path: problem: …”, also a panic of the tokenizers package, which is no Exception."""
    try:
        yield
    except SublaplaceError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{path}: {problem}: {reason_of(error)}", hint=SAVE_TOKENIZER) from error  # type: ignore[arg-type]
