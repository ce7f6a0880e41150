"""Helpers of the command-line tests: small projects on disk, runs of the tool, and what must hold of them."""

from __future__ import annotations

import atexit
import copy
import csv
import hashlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "sublaplace_cli"]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("SUBLAPLACE")},
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class Run:
    """How one call of the tool ended."""

    code: int
    out: str
    err: str
    cpu: float = 0.0
    peak: int = 0

    def err_but_sanity(self) -> str:
        """stderr without the warning that an untrained network is no better than a guess."""
        return "".join(line for line in self.err.splitlines(True) if not line.startswith("warning: training rows:"))

    def json(self) -> Any:
        """The result, read strictly."""
        assert self.code == 0, self.err
        return strict(self.out)


def strict(text: str) -> Any:
    """JSON without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def call(*args: Any, cwd: Path, env: dict[str, str] | None = None, timeout: float = 60, **more: Any) -> Run:
    """The tool as a process of its own, with stdin closed."""
    done = subprocess.run(
        [*COMMAND, *map(str, args)],
        cwd=cwd,
        env={**ENVIRONMENT, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        **more,
    )
    return Run(done.returncode, done.stdout.decode(), done.stderr.decode())


def shell(folder: Path) -> dict[str, str]:
    """An environment for scripts, with this checkout as the command `sublaplace`."""
    command = folder / "bin" / "sublaplace"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.join(quick_python())} -m sublaplace_cli "$@"\n')
    command.chmod(0o755)
    return {**ENVIRONMENT, "PATH": f"{command.parent}:{os.environ['PATH']}"}


def start(
    *args: Any, cwd: Path, quick: bool = False, env: dict[str, str] | None = None, **more: Any
) -> subprocess.Popen:
    """The tool in the background; quick: through the fork server."""
    command = [*quick_python(), "-m", "sublaplace_cli"] if quick else COMMAND
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen([*command, *map(str, args)], cwd=cwd, env={**ENVIRONMENT, **(env or {})}, **streams)


@cache
def fork_server() -> str:
    """The address of this process's fork server, started on first use; it ends with this process."""
    folder = tempfile.mkdtemp(prefix="fork-server-")
    address = f"{folder}/socket"
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fork_server.py")), address],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"

    def close() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(10)
        shutil.rmtree(folder)

    atexit.register(close)
    return address


def quick_python() -> list[str]:
    """In place of `python` before `-m module`, `-c code` or a script: a real process, forked with torch imported."""
    return [sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), fork_server()]


class Tool:
    """Runs the tool through the fork server: real processes, quick ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        *args: Any,
        cwd: Path,
        env: dict[str, str | None] | None = None,
        fault: tuple[str, int] | None = None,
    ) -> Run:
        out, err = self.folder / "out", self.folder / "err"
        variables = {key: value for key, value in {**ENVIRONMENT, **(env or {})}.items() if value is not None}
        words = ["-m", "sublaplace_cli", *map(str, args)]
        job = {"words": words, "cwd": str(cwd), "env": variables, "fault": fault}
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
            open(os.devnull) as nothing, open(out, "w") as stdout, open(err, "w") as stderr,
        ):  # fmt: skip
            server.connect(fork_server())
            streams = [stream.fileno() for stream in (nothing, stdout, stderr)]
            socket.send_fds(server, [json.dumps(job).encode()], streams)
            answer = json.loads(server.recv(1 << 16))
        return Run(out=out.read_bytes().decode(), err=err.read_bytes().decode(), **answer)


def mlp(sizes: list[int], seed: int = 0) -> nn.Sequential:
    """What `build: {arch: mlp, args: {act: tanh}}` builds, with seeded weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.Tanh()]
        return nn.Sequential(*layers[:-1])


def save(model: nn.Module, path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)


class Project:
    """A folder with a spec, data and weights: an mlp 3-8-C on 30 rows, 22 of them for training."""

    def __init__(
        self, folder: Path, task: str = "regression", outputs: int = 1, rows: int = 30, meaning: str | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.task, self.outputs, self.meaning = folder, task, outputs, meaning
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(rows, 3))
        classes = 2 if task == "binary" else outputs
        self.y = rng.normal(size=(rows, self.targets)) if task == "regression" else np.arange(rows)[:, None] % classes
        names = [f"y{c}" for c in range(self.y.shape[1])]
        self.write_csv("data.csv", ["a", "b", "c", *names], np.hstack([self.x, self.y]))
        self.model = mlp([3, 8, outputs])
        save(self.model, folder / "model.safetensors")
        self.spec: dict[str, Any] = {
            "version": 1,
            "task": task,
            **({} if meaning is None else {"outputs": meaning}),
            "model": {
                "build": {"arch": "mlp", "args": {"in": 3, "hidden": [8], "out": outputs, "act": "tanh"}},
                "weights": {"path": "model.safetensors"},
            },
            "data": {
                "format": "csv",
                "path": "data.csv",
                "columns": {"target": names if len(names) > 1 else names[0], "input": ["a", "b", "c"]},
                "splits": {"train": {"rows": "0:22"}, "test": {"rows": "22:"}},
            },
            "posterior": {"prior_precision": 1.0},
        }
        self.save()

    @property
    def kind(self) -> str:
        """The likelihood, as the reference calls it."""
        return self.meaning or self.task

    @property
    def targets(self) -> int:
        """Outputs that predict targets: half of them, if the others are log-variances."""
        return self.outputs // (1 if self.meaning is None else 2)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def write_csv(self, name: str, header: list[str], values: Any) -> None:
        with open(self.folder / name, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows([[repr(float(v)) for v in row] for row in values])

    def save(self, spec: dict[str, Any] | None = None, name: str = "sublaplace.yaml") -> Path:
        path = self.folder / name
        plain = json.loads(json.dumps(self.spec if spec is None else spec))  # no value twice: the spec has no aliases
        path.write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
        return path

    def changed(self, **parts: Any) -> dict[str, Any]:
        """The spec with whole sections replaced; None removes one."""
        spec = {**copy.deepcopy(self.spec), **parts}
        return {key: value for key, value in spec.items() if value is not None}

    def use(self, **parts: Any) -> Project:
        """Change sections of the spec on disk."""
        self.spec = self.changed(**parts)
        self.save()
        return self

    def npz(self, **arrays: Any) -> None:
        """Data from an npz with these arrays, `x` and `y`."""
        everything = {"x": self.x.astype(np.float32), "y": self.y, **arrays}
        np.savez(self.folder / "data.npz", **everything)
        target = {} if "y" not in everything else {"target": "y"}
        data = {
            "format": "npz",
            "path": "data.npz",
            "arrays": {"input": "x", **target},
            "splits": self.spec["data"]["splits"],
        }
        self.use(data=data)

    def tensors(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.x), torch.from_numpy(self.y)


def kink_project(folder: Path, classes: int = 0) -> Project:
    """1-3-1 with relu(3x − 2.1) as its first unit, and five rows within 3e-9 of its kink: one number in float32.

    With `classes` it has so many outputs with random weights.
    """
    project = Project(folder, "multiclass" if classes else "regression", classes or 1)
    model = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, classes or 1))
    values = [[3.0, 1.0, -1.0], [-2.1, 0.5, 0.21], [2.0, 0.5, 0.7], [0.1]]
    if classes:
        rng = np.random.default_rng(2)
        values[2:] = [rng.normal(size=count).tolist() for count in (3 * classes, classes)]
    with torch.no_grad():
        for parameter, own in zip(model.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(own).reshape(parameter.shape))
    save(model, folder / "model.safetensors")
    x = np.random.default_rng(1).uniform(0.3, 1.2, size=30)
    kink = float(torch.tensor(2.1)) / 3  # with the bias as float32 holds it
    x[[5, 9, 12, 17, 22]] = kink + np.array([-1e-9, 1e-9, 3e-9, 2e-9, -2e-9])
    project.write_csv("data.csv", ["a", "y0"], np.stack([x, project.y[:, 0] if classes else np.sin(5 * x)], 1))
    return project.use(
        model={
            "build": {"arch": "mlp", "args": {"in": 1, "hidden": [3], "out": classes or 1}},
            "weights": {"path": "model.safetensors"},
        },
        data={**project.spec["data"], "columns": {"target": "y0", "input": ["a"]}},
        posterior={"prior_precision": 0.5, **({} if classes else {"noise_variance": 0.05})},
    )


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder with its sha256."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def core(result: dict[str, Any]) -> dict[str, Any]:
    """The numbers: without times and places."""
    return {key: value for key, value in result.items() if key not in ("seconds", "artifacts")}


def refused(run: Run, *words: str, code: int = 2, folder: Path | None = None) -> None:
    """One clear message with these words, nothing on stdout, nothing half-written."""
    assert run.code == code, f"exit code {run.code}\n{run.out[:500]}\n{run.err}"
    assert run.out == "", run.out[:500]
    assert "Traceback" not in run.err, run.err
    assert "error: unexpected " not in run.err, run.err
    assert run.err.count("error: ") == 1 or run.err.count("Error: ") == 1, run.err
    for word in words:
        assert word in run.err, f"{word!r} is not in:\n{run.err}"
    if folder is not None:
        whole(folder)


def whole(folder: Path) -> None:
    """What has a final name in a run folder can be read by safetensors and by JSON."""
    from safetensors import safe_open

    for path in folder.glob("*.safetensors") if folder.exists() else []:
        with safe_open(path, framework="pt") as file:
            meta = strict(file.metadata()["sublaplace"])
            for name in file.keys():  # noqa: SIM118
                data = file.get_tensor(name)
                step = meta["tensors"][name]["rows_per_piece"]
                pieces = [data[i : i + step] for i in range(0, max(1, len(data)), step)]
                digests = [hashlib.sha256(piece.contiguous().numpy().tobytes()).hexdigest() for piece in pieces]
                assert digests == meta["tensors"][name]["sha256"], f"{path}: {name}"
    for path in folder.glob("*.json") if folder.exists() else []:
        if not path.name.endswith(".part.json"):
            strict(path.read_text())
