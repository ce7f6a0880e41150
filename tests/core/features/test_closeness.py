"""What feature maps are for: at the same size, closer to the full posterior than any single entries."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sublaplace_cli import mlp
from sublaplace_cli.core.features import FeatureMap
from sublaplace_cli.core.features.beside import Beside
from sublaplace_cli.core.features.sketch import Sketch
from sublaplace_cli.core.features.subset import Subset
from sublaplace_cli.core.jacobian.capture import prepare_capture
from sublaplace_cli.core.jacobian.rows import HeldJacobian
from sublaplace_cli.core.likelihoods.regression import Regression
from sublaplace_cli.core.network.layout import Layout
from sublaplace_cli.core.omega.precision import Precision
from sublaplace_cli.core.posterior.features import fit_features
from sublaplace_cli.core.posterior.full import fit_full

QUICKSTART = Path(__file__).parents[3] / "examples/quickstart"
TRAIN_ROWS, SEEDS = 353, 4


@pytest.fixture(scope="module")
def problem() -> tuple[Precision, HeldJacobian]:
    """The quickstart's network and rows."""
    with open(QUICKSTART / "diabetes.csv", newline="") as file:
        values = torch.tensor(
            [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]], dtype=torch.float64
        )
    train = values[:TRAIN_ROWS]
    values = ((values - train.mean(0)) / train.std(0, correction=0)).float()
    model = mlp(**{"in": 10, "hidden": [50, 50], "out": 1, "act": "relu"}).eval()
    model.load_state_dict(load_file(QUICKSTART / "model.safetensors"))
    layout = Layout.of(model)
    capture = prepare_capture(model, layout, values[:20, :-1], 2**30)
    held = []
    for some in (values[:TRAIN_ROWS], values[TRAIN_ROWS:]):
        captured = capture(some[:, :-1])
        held.append(HeldJacobian(layout, captured.f, tuple(captured.blocks)))
    f = held[0].outputs
    sigma2 = float((f - values[:TRAIN_ROWS, -1:]).square().mean())
    prior = torch.ones(layout.size, dtype=torch.float64)
    return Precision(held[0], Regression(sigma2).root(f), prior, 2**30), held[1]


def relative_w2(problem: tuple[Precision, HeldJacobian], maps: list[FeatureMap], full: Tensor) -> tuple[float, float]:
    """(plain, with the one factor that suits best), as a share of the mean σ_full, over these maps."""
    precision, test = problem
    plain, scaled = [], []
    for feature_map in maps:
        own = fit_features(precision, feature_map).variance(test).sqrt()
        best = (own * full).sum() / own.square().sum()
        plain.append(float((own - full).abs().mean() / full.mean()))
        scaled.append(float((best * own - full).abs().mean() / full.mean()))
    return sum(plain) / len(plain), sum(scaled) / len(scaled)


def test_a_sketch_is_close_to_the_full_posterior_and_closer_beside_the_largest_gradients(problem):
    precision, test = problem
    full = fit_full(precision).variance(test).sqrt()
    order = precision.data_diagonal().argsort(descending=True, stable=True)
    entries = relative_w2(problem, [Subset(order[:1000])], full)
    sketch = relative_w2(problem, [Sketch(1000, seed) for seed in range(SEEDS)], full)
    half = [Beside(Subset(order[:500]), Sketch(500, seed)) for seed in range(SEEDS)]
    both = relative_w2(problem, half, full)
    assert sketch[0] < 0.1
    assert sketch[1] < 0.02 < entries[1]
    assert both[0] < 0.03
    assert both[1] < 0.012
