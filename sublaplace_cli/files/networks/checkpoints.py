"""A checkpoint file → its state dict, without running code and without trusting the sizes it claims."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from ...errors import UserError, suggestion
from .containers import binary_size, check_members, content_kind, existing_file, members_without_root, open_zip
from .pickles import DAMAGE, PickleFacts, inspect_legacy, inspect_zip

USUAL_NAMES = ("state_dict", "model_state_dict", "model", "net", "weights")
PICKLE_SUFFIXES = (".pt", ".pth", ".ckpt")
WEIGHTS_FILE = "weights (.safetensors, .pt, .pth or .ckpt)"
RESAVE = "save only the weights, where the model's code is available: torch.save(model.state_dict(), 'weights.pt')"


def load_state(
    path: Path,
    *,
    key: str | None = None,
    strip_prefix: str | None = None,
    rename: Mapping[str, str] | None = None,
    memory: int,
) -> dict[str, torch.Tensor]:
    """The named CPU tensors in a .safetensors, .pt, .pth or .ckpt file."""
    size = existing_file(path, WEIGHTS_FILE)
    if size > memory:
        raise UserError(
            f"{path}: has {binary_size(size)}, more than the allowed memory ({binary_size(memory)})",
            hint="raise --memory if the machine has it",
        )
    if _format_of(path) == "safetensors":
        if key is not None:
            raise UserError(
                f"{path}: key '{key}' is set, but a safetensors file is flat", hint="remove key: from the spec"
            )
        state = _load_safetensors(path)
    else:
        state = _find_state(path, _load_pickled(path), key)
    _refuse_impossible(path, state, memory)
    return _rename(path, _strip(path, state, strip_prefix), rename or {})


def _format_of(path: Path) -> str:
    kind = content_kind(path)
    by_suffix = "safetensors" if path.suffix == ".safetensors" else "pickle" if path.suffix in PICKLE_SUFFIXES else ""
    by_content = {"zip": "pickle", "legacy": "pickle", "safetensors": "safetensors"}.get(kind)
    if by_content is None:
        found = "a plain pickle, not one of torch.save" if kind == "pickle" else kind
        raise UserError(f"{path}: is {found}, expected {WEIGHTS_FILE}", hint=RESAVE if kind == "pickle" else None)
    if by_suffix and by_suffix != by_content:
        right_suffix = ".safetensors" if by_content == "safetensors" else ".pt"
        names = {"safetensors": "a safetensors file", "pickle": "a torch.save file"}
        raise UserError(
            f"{path}: is called {path.suffix}, but its content is {names[by_content]}",
            hint=f"rename it to {path.with_suffix(right_suffix).name}",
        )
    return by_content


def _load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, *DAMAGE) as error:
        raise UserError(
            f"{path}: is a damaged or truncated safetensors file ({error})", hint="copy or save it again"
        ) from error


def _load_pickled(path: Path) -> Any:
    facts = _facts_of_zip(path) if content_kind(path) == "zip" else _facts_of_legacy(path)
    _refuse_code(path, facts)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGE as error:
        raise _damaged(path, error) from error


def _facts_of_zip(path: Path) -> PickleFacts:
    with open_zip(path, WEIGHTS_FILE) as archive:
        members = members_without_root(archive)
        _refuse_other_archives(path, members)
        check_members(path, archive)
        try:
            facts = inspect_zip(archive, members["data.pkl"])
        except DAMAGE as error:
            raise _damaged(path, error) from error
        for storage, claimed in facts.storages.items():
            name = members.get(f"data/{storage}")
            found = archive.getinfo(name).file_size if name else 0
            # torch trusts the claimed size and would read past the end of a shorter record
            if claimed > found:
                raise UserError(
                    f"{path}: refused, storage {storage} claims {binary_size(claimed)} and has {binary_size(found)}",
                    hint="the file is damaged or forged; save it again",
                )
    return facts


def _refuse_other_archives(path: Path, members: Mapping[str, str]) -> None:
    if "constants.pkl" in members or any(name.startswith("code/") for name in members):
        raise UserError(
            f"{path}: is a TorchScript program (torch.jit.save), expected {WEIGHTS_FILE}",
            hint="save only its weights: torch.save(torch.jit.load(FILE).state_dict(), 'weights.pt')",
        )
    if "models/model.json" in members or "archive_format" in members:
        raise UserError(
            f"{path}: is an exported program (torch.export), expected {WEIGHTS_FILE}",
            hint=f"use it as the model itself: build: {{exported: {path.name}}}",
        )
    if "data.pkl" not in members:
        raise UserError(f"{path}: is a zip archive without a data.pkl, expected {WEIGHTS_FILE}", hint=RESAVE)


def _facts_of_legacy(path: Path) -> PickleFacts:
    try:
        facts = inspect_legacy(path)
    except DAMAGE as error:
        raise _damaged(path, error) from error
    claimed, size = sum(facts.storages.values()), path.stat().st_size
    if claimed > size:
        raise UserError(
            f"{path}: refused, its tensors claim {binary_size(claimed)}, the file has {binary_size(size)}",
            hint="the file is truncated or forged; save it again",
        )
    return facts


def _refuse_code(path: Path, facts: PickleFacts) -> None:
    wanted = facts.needs_code()
    if not wanted:
        return
    listed = ", ".join(wanted[:10]) + (f" ... and {len(wanted) - 10} more" if len(wanted) > 10 else "")
    raise UserError(f"{path}: loading it would run code, which is refused; it needs {listed}", hint=RESAVE)


def _damaged(path: Path, error: BaseException) -> UserError:
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return UserError(f"{path}: is a damaged or truncated torch file ({reason})", hint="copy or save it again")


def _is_state(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in value.items())
    )


def _find_state(path: Path, content: Any, key: str | None) -> dict[str, torch.Tensor]:
    if key is not None:
        chosen = _at_key(path, content, key)
        if not _is_state(chosen):
            raise UserError(f"{path}: key '{key}' holds {_describe(chosen)}, expected a dict of named tensors")
        return dict(chosen)
    if _is_state(content):
        return dict(content)
    if not isinstance(content, Mapping) or not content:
        raise UserError(f"{path}: holds {_describe(content)}, expected a dict of named tensors", hint=RESAVE)
    candidates = [str(name) for name, value in content.items() if _is_state(value)]
    if len(candidates) == 1 and candidates[0] in USUAL_NAMES:
        return dict(content[candidates[0]])
    if candidates:
        raise UserError(
            f"{path}: holds tensors under {', '.join(map(repr, candidates))}; which of them are the weights?",
            hint=f"choose one in the spec: weights: {{path: …, key: {candidates[0]}}}",
        )
    entries = ", ".join(f"'{name}' ({_describe(value)})" for name, value in list(content.items())[:10])
    raise UserError(
        f"{path}: it has no dict of named tensors, only {entries}",
        hint="set weights.key (a dotted path reaches deeper, as in key: ema.model)",
    )


def _at_key(path: Path, content: Any, key: str) -> Any:
    if isinstance(content, Mapping) and key in content:
        return content[key]
    node = content
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            known = [str(name) for name in node] if isinstance(node, Mapping) else []
            raise UserError(
                f"{path}: key '{key}': '{part}' is not there",
                hint=suggestion(part, known[:50]) if known else f"it is inside {_describe(node)}",
            )
        node = node[part]
    return node


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a dict of {len(value)}" if value else "an empty dict"
    return f"a {type(value).__name__}"


def _refuse_impossible(path: Path, state: Mapping[str, torch.Tensor], memory: int) -> None:
    total = 0
    for name, tensor in state.items():
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            raise UserError(f"{path}: '{name}' is a {tensor.layout} tensor, expected a plain dense one")
        if tensor.is_quantized or tensor.device.type != "cpu":
            kind = "quantised" if tensor.is_quantized else f"on device {tensor.device} and has no values"
            raise UserError(f"{path}: '{name}' is {kind}, expected a plain dense tensor")
        size = tensor.numel() * tensor.element_size()
        if size > tensor.untyped_storage().nbytes():
            raise UserError(
                f"{path}: refused, '{name}' {tuple(tensor.shape)} claims {binary_size(size)},"
                f" but only {binary_size(tensor.untyped_storage().nbytes())} are stored for it",
                hint="save a contiguous copy: tensor.contiguous()",
            )
        total += size
    if total > memory:
        raise UserError(
            f"{path}: its tensors need {binary_size(total)}, more than the allowed memory ({binary_size(memory)})",
            hint="raise --memory if the machine has it",
        )


def _strip(path: Path, state: dict[str, torch.Tensor], prefix: str | None) -> dict[str, torch.Tensor]:
    if not prefix:
        return state
    if not any(name.startswith(prefix) for name in state):
        raise UserError(
            f"{path}: no key starts with strip_prefix '{prefix}'", hint=f"the keys are {_some(list(state))}"
        )
    whole = prefix if prefix.endswith(".") else f"{prefix}."
    # 'module' means 'module.' if keys continue that way
    cut = whole if any(name.startswith(whole) for name in state) else prefix
    return _with_new_names(path, state, {name: name.removeprefix(cut) for name in state}, "strip_prefix")


def _rename(path: Path, state: dict[str, torch.Tensor], rename: Mapping[str, str]) -> dict[str, torch.Tensor]:
    new_names = {name: name for name in state}
    for old, new in sorted(rename.items(), key=lambda item: len(item[0])):  # the longest match wins
        matches = [name for name in state if name == old or (old.endswith(".") and name.startswith(old))]
        if not matches:
            raise UserError(f"{path}: rename '{old}' matches no key", hint=f"the keys are {_some(list(state))}")
        new_names.update({name: new + name[len(old) :] for name in matches})
    return _with_new_names(path, state, new_names, "rename")


def _with_new_names(
    path: Path, state: Mapping[str, torch.Tensor], new_names: Mapping[str, str], option: str
) -> dict[str, torch.Tensor]:
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if new_names[name] in renamed:
            raise UserError(f"{path}: after {option} two keys have the name '{new_names[name]}' (one was '{name}')")
        renamed[new_names[name]] = tensor
    return renamed


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" ... and {len(names) - 8} more" if len(names) > 8 else "")
