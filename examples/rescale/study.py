"""Relative W2 of a sub-network as it is, rescaled in both ways, and of the rivals that use no sub-network.

Without --data-dir: the quickstart's network. With it (or SUBLAPLACE_DATA): those of uci_NAME.npz (X, y, train_idx,
test_idx) and the CIFAR-10 ResNet-20 that are there. UCI networks are trained here, on the first split, as in Setup D
of the paper: 2 × 50 units, Adam at 1e-2 with a cosine schedule, 1,500 epochs, noise variance from the test residual,
prior precision 1. The ResNet is read as log-odds of classes 5–9 against 0–4, with 500 training and 200 test images.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from sublaplace_cli import mlp

QUICKSTART = Path(__file__).resolve().parents[1] / "quickstart"
UCI = ("boston", "concrete", "energy", "wine-quality-red")
METHODS = ("gradient", "greedy", "random")
EPOCHS = 1500


def uci(data: Path, name: str, folder: Path) -> Path:
    """Train on the first split and write the spec beside the weights."""
    rows = np.load(data / f"uci_{name}.npz")
    X, y, chosen = rows["X"], rows["y"].reshape(-1, 1), rows["train_idx"][0]
    x, target = (torch.from_numpy((a - a[chosen].mean(0)) / a[chosen].std(0)).float() for a in (X, y))
    torch.manual_seed(0)
    sizes = {"in": X.shape[1], "hidden": [50, 50], "out": 1, "act": "relu"}
    model = mlp(**sizes)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for _ in range(EPOCHS):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(x[chosen]), target[chosen]).backward()
        optimiser.step()
        schedule.step()
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, folder / "model.safetensors")
    spec = {
        "version": 1,
        "task": "regression",
        "model": {"build": {"arch": "mlp", "args": sizes}, "weights": {"path": "model.safetensors"}},
        "data": {
            "format": "npz",
            "path": str(data / f"uci_{name}.npz"),
            "arrays": {"input": "X", "target": "y"},
            "standardise": {"input": "from-train", "target": "from-train"},
            "splits": {
                "train": {"indices": {"array": "train_idx", "row": 0}},
                "test": {"indices": {"array": "test_idx", "row": 0}},
            },
        },
        "posterior": {"prior_precision": 1.0, "noise_variance": {"from": "test"}},
    }
    return write(folder, spec)


def cifar(data: Path, folder: Path) -> Path:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    spec = {
        "version": 1,
        "task": "binary",
        "model": {
            "build": {"arch": "cifar_resnet", "args": {"depth": 20, "out": 10, "shortcut": "A"}},
            "weights": {"path": str(data / "resnet20_cifar10_akamaster.safetensors")},
            "wrap": {"binary-logodds": {"classes": [5, 6, 7, 8, 9]}},
        },
        "data": {
            "format": "npz",
            "path": str(data / "cifar10_subset_2000_1000.npz"),
            "transforms": [
                {"scale": 1 / 255},
                {"permute": [2, 0, 1]},
                {"normalise": {"mean": mean, "std": std, "axis": 0}},
            ],
            "splits": {
                "train": {"arrays": {"input": "x_train", "target": "y_train"}, "rows": "0:500"},
                "test": {"arrays": {"input": "x_test", "target": "y_test"}, "rows": "0:200"},
            },
        },
        "posterior": {"prior_precision": 1.0},
    }
    return write(folder, spec)


def write(folder: Path, spec: dict) -> Path:
    path = folder / "sublaplace.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def relative_w2(spec: Path, k: int, rescale: str, run_dir: Path) -> dict[str, float]:
    """By method, from one call of the tool."""
    words = ["evaluate", "--spec", str(spec), "--method", ",".join([*METHODS, "norm", "constant"]), "--k", str(k)]
    words += ["--rescale", rescale, "--run-dir", str(run_dir), "--allow-outside", "--quiet", "--json"]
    done = subprocess.run([sys.executable, "-m", "sublaplace_cli", *words], stdout=subprocess.PIPE, check=True)
    return {row["method"]: row["w2_relative"] for row in json.loads(done.stdout)["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("SUBLAPLACE_DATA"))
    parser.add_argument("--k", type=int, default=200)
    parser.add_argument("-o", "--output", type=Path, help="the table as csv")
    options = parser.parse_args()
    data = Path(options.data_dir).resolve() if options.data_dir else None
    lines = [["data", "method", "k", "none", "scale", "hybrid"]]
    with tempfile.TemporaryDirectory() as scratch:
        for name in names(data):
            folder = Path(scratch) / name
            folder.mkdir()
            spec = QUICKSTART / "sublaplace.yaml"
            if data is not None:
                spec = cifar(data, folder) if name == "resnet20" else uci(data, name, folder)
            found = {kind: relative_w2(spec, options.k, kind, folder / "run") for kind in ("none", "scale", "hybrid")}
            for method in METHODS:
                lines.append([name, method, options.k, *(f"{found[kind][method]:.3f}" for kind in found)])
            lines += [[name, rival, "", f"{found['none'][rival]:.3f}", "", ""] for rival in ("norm", "constant")]
            for line in lines[-len(METHODS) - 2 :] if len(lines) > len(METHODS) + 3 else lines:
                sys.stdout.write("\t".join(map(str, line)) + "\n")
                sys.stdout.flush()
    if options.output is not None:
        with open(options.output, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)


def names(data: Path | None) -> list[str]:
    if data is None:
        return ["quickstart"]
    there = [name for name in UCI if (data / f"uci_{name}.npz").exists()]
    return [*there, *(["resnet20"] if (data / "resnet20_cifar10_akamaster.safetensors").exists() else [])]


if __name__ == "__main__":
    main()
