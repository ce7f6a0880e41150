"""The paper's studies in their quick form: they run, go on where they were, and count what they say."""

from __future__ import annotations

import copy
import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli.cli_tools import ENVIRONMENT
from torch import nn

PAPER = Path(__file__).resolve().parents[1] / "examples" / "paper"


def study(*words, code=0):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PAPER / "main.py"), *map(str, words)],
        env={name: value for name, value in ENVIRONMENT.items() if name != "SUBLAPLACE_DATA"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == code, done.stderr
    return done


def lines_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    study("--quick", "--results", folder)
    return folder


def test_every_study_leaves_a_table(results):
    uci, wheel, theory = (lines_of(results / f"{name}.csv") for name in ("uci", "wheel", "theory"))
    assert {"dataset", "model", "method", "k", "seed", "w2"} <= uci[0].keys()
    assert {line["rescale"] for line in uci} == {"none", "scale", "hybrid"}
    assert {"gradient", "greedy", "subnet-diagonal", "last-k", "neural-linear", "kfac", "full"} <= {
        line["method"] for line in uci
    }
    cifar = lines_of(results / "cifar.csv")
    assert {line["model"] for line in cifar} == {"resnet20"}
    assert all(float(line["w2_relative"]) >= 0 for line in cifar)
    assert list(wheel[0])[:5] == ["method", "k", "delta", "seed", "regret"]
    assert {(line["method"], line["k"]) for line in wheel} == {("map", ""), ("gradient", "100"), ("greedy", "20")}
    assert all(0 <= float(line["regret"]) <= 200 * 49 for line in wheel)
    claims = [line for line in theory if line["dataset"] != "best" and line["holds"]]
    assert len(claims) > 10
    assert {line["holds"] for line in claims} == {"1"}


def test_the_report_has_pictures_and_says_how_many_runs_there_were(results):
    text = (results / "RESULTS.md").read_text()
    assert "made small 1" in text
    assert "**binary, resnet20, N = 24** (p = 269722)" in text
    for name in ("uci.png", "uci-rescaled.png", "wheel.png", "wheel-bars.png"):
        assert f"({name})" in text
        assert (results / name).stat().st_size > 5_000


def test_what_is_done_is_not_done_again(results):
    before = {path.name: path.read_bytes() for path in results.glob("*.csv")}
    again = study("--quick", "uci", "wheel", "--results", results)
    assert "regret" not in again.stderr
    assert {path.name: path.read_bytes() for path in results.glob("*.csv")} == before


def test_wrong_words_are_refused(tmp_path):
    assert "unknown study 'ucy'" in study("ucy", "--quick", code=2).stderr
    assert "the full studies need the data sets" in study("uci", code=2).stderr
    assert "there is no such folder" in study("uci", "--data-dir", tmp_path / "nowhere", code=2).stderr


def test_the_learner_is_adam_with_clipped_gradients(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    from learner import Learner

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 20), nn.ReLU(), nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 1)).double()
    plain = copy.deepcopy(model)
    learner, adam = Learner(model, rate=3e-3, most_norm=1.0), torch.optim.Adam(plain.parameters(), lr=3e-3)
    for scale in (50.0, 0.01):  # with gradients that are clipped, and with some that are not
        x, y = torch.randn(64, 7).double(), scale * torch.randn(64, 1).double()
        for _ in range(20):
            learner.update(x, y)
            adam.zero_grad()
            nn.functional.mse_loss(plain(x), y).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            adam.step()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_the_wheel_rewards_the_arm_of_the_quadrant_beyond_delta(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    from wheel import Wheel

    made = Wheel.of(20_000, 0.95, torch.Generator().manual_seed(0))
    radius = made.contexts.norm(dim=1)
    high = (made.means == 50).sum(1)
    assert torch.equal(high, (radius > 0.95).long())
    assert float(high.double().mean()) == pytest.approx(1 - 0.95**2, abs=0.007)
    arms = made.means[radius > 0.95].argmax(1)
    assert sorted(arms.unique().tolist()) == [1, 2, 3, 4]
    first = made.contexts[radius > 0.95][arms == 1]
    assert bool((first > 0).all())
