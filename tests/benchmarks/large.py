"""Networks that others cannot fit into memory, through the command line, each command in a fresh process.

`benchmark.py --large` runs these; one alone: `python large.py CASE` prints {seconds, peak, …} as JSON. Random
weights and synthetic data: only time and memory are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sublaplace_cli import cifar_resnet

HERE = Path(__file__).resolve().parent


class TextClassifier(nn.Module):
    """A transformer encoder over tokens with one logit: 15.5 million parameters."""

    def __init__(self, tokens: int = 8000, width: int = 384, layers: int = 7, length: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        one = nn.TransformerEncoderLayer(width, 6, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.encoder(self.embed(tokens) + self.place)
        return self.head(self.norm(hidden).mean(1))


def resnet(depth: int, out: int) -> nn.Module:
    """With damped residual branches, so that a deep network of random weights keeps its gradients in range."""
    torch.manual_seed(0)
    model = cifar_resnet(depth=depth, out=out, shortcut="B")
    for name, tensor in model.named_parameters():
        if name.endswith("bn2.weight"):
            nn.init.constant_(tensor, 0.1)
    return model


def images(folder: Path, n: int, classes: int) -> None:
    made = np.random.default_rng(0)
    x = made.standard_normal((n, 3, 32, 32), dtype=np.float32)
    np.savez(folder / "rows.npz", x=x, y=made.integers(classes, size=n))


def prepare(folder: Path, model: nn.Module, build: str, task: str, train: int, test: int) -> None:
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "sublaplace.yaml").write_text(
        f"""\
version: 1
task: {task}
model:
  build: {build}
  weights: {{path: model.safetensors}}
data:
  format: npz
  path: rows.npz
  arrays: {{input: x, target: y}}
  splits:
    train: {{rows: "0:{train}"}}
    test: {{rows: "{train}:{train + test}"}}
"""
    )


def sublaplace(folder: Path, *arguments: str) -> dict:
    """Seconds and peak memory of one command, and the JSON that it prints."""
    device = os.environ.get("BENCHMARK_DEVICE", "cpu")
    command = [sys.executable, "-m", "sublaplace_cli", *arguments, "--device", device, "--json", "-o", "out.json"]
    (folder / "out.json").unlink(missing_ok=True)
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    start = time.perf_counter()
    child = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)  # the usage of this one child
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {child.returncode}")
    result = json.loads((folder / "out.json").read_text())
    return {"seconds": time.perf_counter() - start, "peak": usage.ru_maxrss * 1024, "steps": result.get("seconds")}


def resnet110(folder: Path) -> dict:
    """N = 2000, M = 1000, gradient at eight k, and the full posterior."""
    images(folder, 3000, 2)
    prepare(
        folder, resnet(110, 1), "{arch: cifar_resnet, args: {depth: 110, out: 1, shortcut: B}}", "binary", 2000, 1000
    )
    return sublaplace(folder, "evaluate", "--method", "gradient", "--k", "50,100,200,500,1000,2000,5000,10000")


def resnet32(folder: Path) -> dict:
    """Ten classes, N = 2000, M = 200, gradient at k = 1000, and the full posterior: a Gram matrix of side 20,000."""
    images(folder, 2200, 10)
    build = "{arch: cifar_resnet, args: {depth: 32, out: 10, shortcut: B}}"
    prepare(folder, resnet(32, 10), build, "multiclass", 2000, 200)
    return sublaplace(folder, "evaluate", "--method", "gradient", "--k", "1000")


def transformer(folder: Path) -> dict:
    """N = 200: select and fit."""
    torch.manual_seed(0)
    made = np.random.default_rng(0)
    np.savez(folder / "rows.npz", x=made.integers(8000, size=(220, 64)), y=made.integers(2, size=220))
    model = TextClassifier()
    prepare(folder, model, '{import: "large:TextClassifier", args: {}}', "binary", 200, 20)
    steps = [
        sublaplace(folder, command, "--method", "gradient", "--k", "1000", "--allow-code", "large")
        for command in ("select", "fit")
    ]
    size = sum(parameter.numel() for parameter in model.parameters())
    total = sum(step["seconds"] for step in steps)
    return {"seconds": total, "peak": max(step["peak"] for step in steps), "n_params": size}


CASES: dict[str, Callable[[Path], dict]] = {"resnet110": resnet110, "resnet32": resnet32, "transformer": transformer}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        json.dump(CASES[sys.argv[1]](Path(folder)), sys.stdout)


if __name__ == "__main__":
    main()
