"""A checkpoint file → its state dict, without running code and without trusting the sizes it claims."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from ...errors import UserError, suggestion
from ...sizes import format_bytes
from ..reading import check_header
from . import containers
from .names import State, some

USUAL_NAMES = ("state_dict", "model_state_dict", "model", "net", "weights")
PICKLE_SUFFIXES = (".pt", ".pth", ".ckpt")
WEIGHTS_FILE = "weights (.safetensors, .pt, .pth or .ckpt)"
RESAVE = "save only the weights, where the model's code is available: torch.save(model.state_dict(), 'weights.pt')"


def load_state(path: Path, *, key: str | None = None, memory: int) -> State:
    """The named CPU tensors in a .safetensors, .pt, .pth or .ckpt file, under the names that they have there."""
    containers.check_file(path, WEIGHTS_FILE, memory)
    kind = _checked_kind(path)
    if kind == "safetensors":
        if key is not None:
            hint = "remove key: from the spec"
            raise UserError(f"{path}: key '{key}' is set, but a safetensors file is flat", hint=hint)
        with _damage_explained(path, "safetensors"):
            check_header(path)
            state = safetensors.torch.load_file(path)
    else:
        state = _find_state(path, _load_pickled(path, kind), key)
    _refuse_impossible(path, state, memory)
    return state


def _checked_kind(path: Path) -> str:
    kind = containers.content_kind(path)
    if kind == "pickle":
        raise UserError(f"{path}: is a plain pickle, not one of torch.save, expected {WEIGHTS_FILE}", hint=RESAVE)
    if kind not in ("zip", "legacy", "safetensors"):
        raise UserError(f"{path}: is {kind}, expected {WEIGHTS_FILE}")
    flat = kind == "safetensors"
    if path.suffix in (PICKLE_SUFFIXES if flat else (".safetensors",)):
        hint = f"rename it to {path.with_suffix('.safetensors' if flat else '.pt').name}"
        content = "safetensors" if flat else "torch.save"
        raise UserError(f"{path}: is called {path.suffix}, but its content is a {content} file", hint=hint)
    return kind


@contextmanager
def _damage_explained(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except (safetensors.SafetensorError, *containers.DAMAGE) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        hint = "copy or save it again"
        raise UserError(f"{path}: is a damaged or truncated {kind} file ({reason})", hint=hint) from error


def _load_pickled(path: Path, kind: str) -> Any:
    with _damage_explained(path, "torch"):
        facts = _facts_of_zip(path) if kind == "zip" else _facts_of_legacy(path)
        if wanted := facts.needs_code():
            message = f"{path}: loading it would run code, which is refused; it needs {some(wanted)}"
            raise UserError(message, hint=RESAVE)
        return torch.load(path, map_location="cpu", weights_only=True)


def _facts_of_zip(path: Path) -> containers.PickleFacts:
    with containers.open_zip(path, WEIGHTS_FILE) as archive:
        members = containers.members_without_root(archive)
        if "constants.pkl" in members or any(name.startswith("code/") for name in members):
            hint = "save only its weights: torch.save(torch.jit.load(FILE).state_dict(), 'weights.pt')"
            raise UserError(f"{path}: is a TorchScript program (torch.jit.save), expected {WEIGHTS_FILE}", hint=hint)
        if "models/model.json" in members or "archive_format" in members:
            hint = f"use it as the model itself: build: {{exported: {path.name}}}"
            raise UserError(f"{path}: is an exported program (torch.export), expected {WEIGHTS_FILE}", hint=hint)
        if "data.pkl" not in members:
            raise UserError(f"{path}: is a zip archive without a data.pkl, expected {WEIGHTS_FILE}", hint=RESAVE)
        containers.check_members(path, archive)
        with archive.open(members["data.pkl"]) as file:
            facts = containers.inspect_pickles(file, 1)
        for storage, claimed in facts.storages.items():
            name = members.get(f"data/{storage}")
            found = archive.getinfo(name).file_size if name else 0
            # torch trusts the claimed size and would read past the end of a shorter record
            if claimed > found:
                message = f"storage {storage} claims {format_bytes(claimed)} and has {format_bytes(found)}"
                raise UserError(f"{path}: refused, {message}", hint="the file is damaged or forged; save it again")
    return facts


def _facts_of_legacy(path: Path) -> containers.PickleFacts:
    with path.open("rb") as file:
        facts = containers.inspect_pickles(file, 5)  # magic number, protocol, system, object, storage keys
    # torch fills only the storages in this list; the others would be whatever the memory held before
    listed = facts.last if isinstance(facts.last, list) else []
    if not all(type(key) is str for key in listed) or sorted(listed) != sorted(facts.storages):
        message = f"{path}: refused, its list of storages is not that of its tensors"
        raise UserError(message, hint="the file is damaged or forged; save it again")
    claimed, size = sum(facts.storages.values()), path.stat().st_size
    if claimed > size:
        message = f"{path}: refused, its tensors claim {format_bytes(claimed)}, the file has {format_bytes(size)}"
        raise UserError(message, hint="the file is truncated or forged; save it again")
    return facts


def _is_state(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in value.items())


def _find_state(path: Path, content: Any, key: str | None) -> State:
    if key is not None:
        content = _at_key(path, content, key)
        if not _is_state(content):
            raise UserError(f"{path}: key '{key}' holds {_describe(content)}, expected a dict of named tensors")
    if _is_state(content):
        return dict(content)
    if not isinstance(content, Mapping) or not content:
        raise UserError(f"{path}: holds {_describe(content)}, expected a dict of named tensors", hint=RESAVE)
    candidates = [str(name) for name, value in content.items() if _is_state(value)]
    if len(candidates) == 1 and candidates[0] in USUAL_NAMES:
        return dict(content[candidates[0]])
    if candidates:
        message = f"{path}: holds tensors under {', '.join(map(repr, candidates))}; which of them are the weights?"
        raise UserError(message, hint=f"choose one in the spec: weights: {{path: …, key: {candidates[0]}}}")
    entries = ", ".join(f"'{name}' ({_describe(value)})" for name, value in list(content.items())[:10])
    hint = "set weights.key (a dotted path reaches deeper, as in key: ema.model)"
    raise UserError(f"{path}: it has no dict of named tensors, only {entries}", hint=hint)


def _at_key(path: Path, content: Any, key: str) -> Any:
    if isinstance(content, Mapping) and key in content:
        return content[key]
    node = content
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            known = [str(name) for name in node] if isinstance(node, Mapping) else []
            hint = suggestion(part, known[:50]) if known else f"it is inside {_describe(node)}"
            raise UserError(f"{path}: key '{key}': '{part}' is not there", hint=hint)
        node = node[part]
    return node


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a dict of {len(value)}" if value else "an empty dict"
    return f"a {type(value).__name__}"


def _refuse_impossible(path: Path, state: State, memory: int) -> None:
    total = 0
    for name, tensor in state.items():
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            raise UserError(f"{path}: '{name}' is a {tensor.layout} tensor, expected a plain dense one")
        if tensor.is_quantized or tensor.device.type != "cpu":
            kind = "quantised" if tensor.is_quantized else f"on device {tensor.device} and has no values"
            raise UserError(f"{path}: '{name}' is {kind}, expected a plain dense tensor")
        size = tensor.numel() * tensor.element_size()
        if size > (stored := tensor.untyped_storage().nbytes()):
            claim = f"'{name}' {tuple(tensor.shape)} claims {format_bytes(size)}"
            message = f"{path}: refused, {claim}, but {format_bytes(stored)} is stored"
            raise UserError(message, hint="save a contiguous copy: tensor.contiguous()")
        total += size
    containers.refuse_above(memory, total, f"{path}: its tensors need")
