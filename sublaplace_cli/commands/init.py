"""`init`: a spec for a checkpoint and its data. Guesses what it can, says how sure it is, never overwrites."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import device as devices
from ..architectures.mlp import ACTIVATIONS
from ..errors import UserError, suggestion
from ..files.artifacts.atomic import sync_folder
from ..files.networks.huggingface.folder import ADAPTER_CONFIG, CONFIG
from .starting.checkpoint import CHECKPOINT_SUFFIXES, guess_network
from .starting.data import DATA_SUFFIXES, DataGuess, guess_data, sibling_of
from .starting.fitting import GOOD, Fit, Setting, best_fit
from .starting.inference import CLASSES, Inference, NetworkGuess
from .starting.spec_text import spec_text

STUB_FILE = "my_network.py"
USUAL_K, MOST_FILES_NAMED = 1000, 5
DEFAULT_ACTIVATION = "relu"


@dataclass(frozen=True)
class Wishes:
    """What the user said."""

    checkpoint: Path | None
    data: Path | None
    spec: Path
    task: str | None = None
    activation: str | None = None


@dataclass(frozen=True)
class Started:
    """What was written, and why."""

    files: tuple[Path, ...]
    findings: tuple[Inference, ...]
    next_command: str


def start(wishes: Wishes) -> Started:
    """Write the spec, and a stub where the network has to be built by the user's code."""
    if wishes.activation is not None and wishes.activation not in ACTIVATIONS:
        raise UserError(
            f"there is no activation {wishes.activation!r}", hint=suggestion(wishes.activation, ACTIVATIONS)
        )
    folder, memory = wishes.spec.absolute().parent, devices.free_memory(devices.choose("cpu"))
    _refuse_existing(wishes.spec)
    checkpoint = wishes.checkpoint or _only(_networks_in(folder), "checkpoints")
    data_path = wishes.data or _only(_data_in(folder), "data files")
    network = None if checkpoint is None else guess_network(_existing(checkpoint), _shown(checkpoint, folder), memory)
    nothing = NetworkGuess({}, {}, ())
    data = None
    if data_path is not None:
        shown = _shown(data_path, folder)
        data = guess_data(_existing(data_path), shown, network or nothing, wishes.task, memory)
    fit = _fit(network, data, wishes)
    setting = _setting(fit, data, wishes)
    if data is not None and setting.classes:
        data = data.with_classes(setting.classes)
    findings = [
        *(network.findings if network else ()),
        *(data.findings if data else ()),
        *_open_questions(network, fit, wishes),
        *(_as_written(fit.findings, setting) if fit else ()),
    ]
    by_topic = {finding.topic: finding for finding in findings}
    written = [wishes.spec]
    if network is not None and network.stub is not None:
        _refuse_existing(folder / STUB_FILE)
        written.append(folder / STUB_FILE)
        _write_new(folder / STUB_FILE, network.stub)
    _write_new(wishes.spec, spec_text(network, data, setting, by_topic))
    return Started(tuple(written), tuple(findings), _next_command(wishes, network, data, folder, checkpoint, data_path))


def _fit(network: NetworkGuess | None, data: DataGuess | None, wishes: Wishes) -> Fit | None:
    if network is None or data is None or data.X is None or data.y is None:
        return None
    if network.module is None and network.build.get("arch") != "mlp":
        return None
    return best_fit(network, data.X, data.y, data.task, wishes.activation, data.open_classes)


def _setting(fit: Fit | None, data: DataGuess | None, wishes: Wishes) -> Setting:
    """What is written: that of a good fit, else what the user said and the defaults."""
    if fit is not None and fit.explained >= GOOD:
        return fit.setting
    return Setting(
        wishes.activation or DEFAULT_ACTIVATION, "from-train" if data and data.scales_differ else "none", "none"
    )


def _as_written(findings: Sequence[Inference], setting: Setting) -> Iterator[Inference]:
    """Never another value than the spec has: where nothing fits, the best of all settings is not written."""
    written = {"activation": setting.activation, "standardise input": setting.input}
    written |= {"standardise target": setting.target, CLASSES: ", ".join(setting.classes)}
    for finding in findings:
        if finding.topic != CLASSES or setting.classes:
            yield replace(finding, value=written[finding.topic] or finding.value)


def _open_questions(network: NetworkGuess | None, fit: Fit | None, wishes: Wishes) -> list[Inference]:
    if network is None:
        return [Inference("model", "a template", "check", "no checkpoint was given or found")]
    if fit is None and network.build.get("arch") == "mlp" and network.build["args"]["hidden"]:
        if wishes.activation is not None:
            return [Inference("activation", wishes.activation, "sure", "--activation")]
        return [Inference("activation", DEFAULT_ACTIVATION, "check", "weights do not tell it; the default")]
    return []


def _existing(path: Path) -> Path:
    if not (_is_there(path) and path.exists()):  # a link may lead nowhere
        raise UserError(f"{path} does not exist", hint="sublaplace init CHECKPOINT DATA")
    return path


def _is_there(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except OSError as error:  # a name that is too long
        raise UserError(f"{path}: {error.strerror}") from error


def _networks_in(folder: Path) -> list[Path]:
    """Checkpoints, and folders of Hugging Face."""
    return [
        path
        for path in sorted(folder.iterdir())
        if (path.suffix in CHECKPOINT_SUFFIXES and path.is_file())
        or any((path / config).is_file() for config in (CONFIG, ADAPTER_CONFIG))
    ]


def _data_in(folder: Path) -> list[Path]:
    """Data files; test.csv beside train.csv belongs to it."""
    suffixes = [suffix for suffix in DATA_SUFFIXES if suffix != ".safetensors"]
    found = [path for path in sorted(folder.iterdir()) if path.suffix in suffixes and path.is_file()]
    siblings = {sibling_of(path) for path in found}
    return [path for path in found if path not in siblings]


def _only(found: list[Path], what: str) -> Path | None:
    """One of several would be a guess that looks like an answer."""
    if len(found) > 1:
        more = " …" if len(found) > MOST_FILES_NAMED else ""
        named = ", ".join(path.name for path in found[:MOST_FILES_NAMED]) + more
        raise UserError(
            f"there are {len(found)} {what} here: {named}", hint="name both: sublaplace init CHECKPOINT DATA"
        )
    return found[0] if found else None


def _shown(path: Path, folder: Path) -> str:
    """Relative to the spec."""
    return Path(os.path.relpath(path.absolute(), folder)).as_posix()


def _refuse_existing(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}", hint="make it first")
    if _is_there(path):
        hint = "remove it first, or write another one with --spec FILE"
        raise UserError(f"{path} exists already and is left alone", hint=hint)


def _write_new(path: Path, text: str) -> None:
    """Never over an existing file, not even over one that appears at this moment; whole or not at all."""
    is_ours = False
    try:
        with open(path, "x", encoding="utf-8") as file:
            is_ours = True
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.absolute().parent)
    except OSError as error:
        if is_ours:
            path.unlink(missing_ok=True)
        hint = "write it where there is room and permission: --spec FILE; paths in it are relative to its folder"
        raise UserError(f"could not write {path}: {error.strerror or error}", hint=hint) from error


def _size(network: NetworkGuess | None) -> str:
    """The usual k, or half of the parameters where they are few; the default, which always fits, where nobody knows."""
    if network is None or network.n_params is None:
        return ""
    return f" --k {max(1, network.n_params // 2) if network.n_params <= USUAL_K else USUAL_K}"


def _next_command(
    wishes: Wishes,
    network: NetworkGuess | None,
    data: DataGuess | None,
    folder: Path,
    checkpoint: Path | None,
    data_path: Path | None,
) -> str:
    words = [f"sublaplace evaluate --method gradient{_size(network)}"]
    if network is None or data is None:
        words[0] = "complete the TODO lines, then: sublaplace evaluate --dry-run"
    if wishes.spec.name != "sublaplace.yaml" or folder != Path.cwd():
        words.append(f"--spec {shlex.quote(str(wishes.spec))}")
    if network is not None and network.stub is not None:
        words.append(f"--allow-code {Path(STUB_FILE).stem}")
    if any(path is not None and _shown(path, folder).startswith("..") for path in (checkpoint, data_path)):
        words.append("--allow-outside")
    return " ".join(words)
