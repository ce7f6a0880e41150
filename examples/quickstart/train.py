"""Creates the files of the quickstart: diabetes.csv (scikit-learn's copy, BSD licence) and the networks.

Only needed to create them again: pip install scikit-learn, then python train.py.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_diabetes

from sublaplace_cli import mlp

HERE = Path(__file__).parent
TRAIN_ROWS = 353
EPOCHS = 60  # stopped early: longer training overfits so few rows


def main() -> None:
    data = load_diabetes(scaled=False)
    order = np.random.default_rng(0).permutation(len(data.target))
    with open(HERE / "diabetes.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*data.feature_names, "target"])
        writer.writerows([[*map(repr, map(float, data.data[i])), repr(float(data.target[i]))] for i in order])
    x, y = (np.asarray(a, dtype=np.float64)[order] for a in (data.data, data.target))
    train(standardised(x), standardised(y[:, None]), seed=0, hidden=[50, 50], name="model")
    train(standardised(x), standardised(y[:, None]), seed=1, hidden=[100, 100], name="oracle")


def standardised(values: np.ndarray) -> torch.Tensor:
    """By the training rows, as the spec does it."""
    chosen = values[:TRAIN_ROWS]
    return torch.from_numpy((values - chosen.mean(0)) / chosen.std(0)).float()


def train(x: torch.Tensor, y: torch.Tensor, *, seed: int, hidden: list[int], name: str) -> None:
    torch.manual_seed(seed)
    model = mlp(**{"in": 10, "hidden": hidden, "out": 1, "act": "relu"})
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for _ in range(EPOCHS):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(x[:TRAIN_ROWS]), y[:TRAIN_ROWS]).backward()
        optimiser.step()
        schedule.step()
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, HERE / f"{name}.safetensors")


if __name__ == "__main__":
    main()
