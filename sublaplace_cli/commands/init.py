"""`init`: a spec for a checkpoint and its data. Guesses what it can, says how sure it is, never overwrites."""

import os
from dataclasses import dataclass
from pathlib import Path

from .. import device as devices
from ..architectures.mlp import ACTIVATIONS
from ..errors import UserError, suggestion
from ..files.artifacts.atomic import explain_write_errors, sync_folder
from .starting.checkpoint import CHECKPOINT_SUFFIXES, NetworkGuess, guess_network
from .starting.data import DATA_SUFFIXES, DataGuess, guess_data
from .starting.fitting import GOOD, Fit, best_fit
from .starting.inference import Inference
from .starting.spec_text import spec_text

STUB_FILE = "my_network.py"


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
    checkpoint, data_path = wishes.checkpoint or _only(folder, CHECKPOINT_SUFFIXES), wishes.data
    if data_path is None:
        data_path = _only(folder, [suffix for suffix in DATA_SUFFIXES if suffix != ".safetensors"])
    network = None if checkpoint is None else guess_network(_existing(checkpoint), _shown(checkpoint, folder), memory)
    nothing = NetworkGuess({}, {}, ())
    data = None
    if data_path is not None:
        shown = _shown(data_path, folder)
        data = guess_data(_existing(data_path), shown, network or nothing, wishes.task, memory)
    fit = _fit(network, data, wishes)
    findings = [
        *(network.findings if network else ()),
        *(data.findings if data else ()),
        *_open_questions(network, fit),
    ]
    findings += list(fit.findings) if fit else []
    setting = fit.setting if fit is not None and fit.explained >= GOOD else None
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
    return best_fit(network, data.X, data.y, data.task, wishes.activation)


def _open_questions(network: NetworkGuess | None, fit: Fit | None) -> list[Inference]:
    if network is None:
        return [Inference("model", "a template", "check", "no checkpoint was given or found")]
    if fit is None and network.build.get("arch") == "mlp" and network.build["args"]["hidden"]:
        return [Inference("activation", "relu", "check", "weights do not tell it; the default")]
    return []


def _existing(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"{path} does not exist", hint="sublaplace init CHECKPOINT DATA")
    return path


def _only(folder: Path, suffixes: tuple[str, ...] | list[str]) -> Path | None:
    """The only file with such a suffix, if it is the only one."""
    found = [path for path in sorted(folder.iterdir()) if path.suffix in suffixes and path.is_file()]
    return found[0] if len(found) == 1 else None


def _shown(path: Path, folder: Path) -> str:
    """Relative to the spec."""
    return Path(os.path.relpath(path.absolute(), folder)).as_posix()


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        hint = "remove it first, or write another one with --spec FILE"
        raise UserError(f"{path} exists already and is left alone", hint=hint)


def _write_new(path: Path, text: str) -> None:
    """Never over an existing file, not even over one that appears at this moment."""
    with explain_write_errors(path), open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.absolute().parent)


def _next_command(
    wishes: Wishes,
    network: NetworkGuess | None,
    data: DataGuess | None,
    folder: Path,
    checkpoint: Path | None,
    data_path: Path | None,
) -> str:
    words = ["sublaplace evaluate --method gradient --k 1000"]
    if network is None or data is None:
        words[0] = "sublaplace evaluate --dry-run"
    if wishes.spec.name != "sublaplace.yaml" or folder != Path.cwd():
        words.append(f"--spec {wishes.spec}")
    if network is not None and network.stub is not None:
        words.append(f"--allow-code {Path(STUB_FILE).stem}")
    if any(path is not None and _shown(path, folder).startswith("..") for path in (checkpoint, data_path)):
        words.append("--allow-outside")
    return " ".join(words)
