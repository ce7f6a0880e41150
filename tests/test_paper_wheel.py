"""The study of the wheel bandit: training, sums over linear regions, and what its report counts."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

PAPER = Path(__file__).resolve().parents[1] / "examples" / "paper"


@pytest.mark.parametrize(("dead", "decay"), [(False, 0.0), (True, 0.0), (False, 0.1)])
def test_the_learner_is_adam_with_clipped_gradients(monkeypatch, dead, decay):
    monkeypatch.syspath_prepend(str(PAPER))
    from learner import Learner

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 20), nn.ReLU(), nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 1)).double()
    if dead:
        nn.init.constant_(model[2].bias[[0, 3, 4, 9]], -100.0)
    plain = copy.deepcopy(model)
    learner = Learner(model, rate=3e-3, most_norm=1.0)
    learner.decay = decay
    adam = torch.optim.Adam(plain.parameters(), lr=3e-3, weight_decay=decay)
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


def test_the_claim_about_the_wheel_is_counted(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    from report_wheel import claim, wheel_claims

    def of(method, k, *regrets):
        common = {"method": method, "k": k, "delta": "0.95", "variant": "total"}
        return [common | {"seed": str(seed), "regret": str(regret)} for seed, regret in enumerate(regrets)]

    ours = of("gradient", "500", *[900, 1100] * 3) + of("greedy", "500", *[1900, 2100] * 3)
    rest = of("map", "", *[9000, 9100] * 3) + of("last-k", "500", *[1500, 1600] * 3)
    rest += of("neural-linear", "", *[400, 500] * 3)
    rest += of("last-k", "100", *[10_000] * 4)  # four seeds: not counted
    assert claim(ours + rest).splitlines()[-1] == "| 0.95 | total | 2 of 3 | 1 of 3 | 1 of 3 | `neural-linear` |"
    small = of("greedy", "100", *[700] * 5) + of("gradient", "100", *[800] * 5) + of("last-k", "100", *[600] * 5)
    failing = of("map", "", *[900] * 5, 50_000)
    counted = {said: str(count) for said, _, count in wheel_claims(ours + failing + rest[6:-4] + small)}
    assert counted["`map` explores too little: more regret than those that sample, in the mean"] == "7 of 7"
    assert counted["`map` explores too little: more regret than those that sample, in the median"] == "4 of 7"
    assert counted["`greedy` has the least regret of those with k = 100"] == "1 of 2"


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


WHEEL_METHODS = [("gradient", 60), ("greedy", 40), ("last-k", 300), ("subnet-diagonal", 200), ("neural-linear", 0)]


@pytest.fixture
def wheel_state(monkeypatch):
    """A network of the wheel in float64 with dead units, rows seen and new ones, sorted by arm."""
    monkeypatch.syspath_prepend(str(PAPER))
    from wheel import ARMS, Wheel

    from sublaplace_cli import mlp

    torch.manual_seed(0)
    model = mlp(**{"in": 7, "hidden": [100, 100], "out": 1, "act": "relu"}).eval().double()
    for layer, units in ((model[0], 10), (model[2], 60)):
        nn.init.constant_(layer.bias[:units], -100.0)
    contexts = Wheel.of(700, 0.95, torch.Generator().manual_seed(1)).contexts.double()
    arms = torch.cat([torch.arange(600) % 3, torch.arange(100) // 20])  # two arms that were never pulled
    rows = torch.cat([contexts, nn.functional.one_hot(arms, ARMS)], 1)
    rows[600:, :2] *= 1.5  # some of them activate units that are dead at the rows seen
    rows[:20, :2] = rows[0, :2].clone()  # the same row many times
    return model, rows[:600], rows[600:]


@pytest.mark.parametrize(("method", "k"), WHEEL_METHODS)
def test_sums_over_linear_regions_give_the_variance_of_the_package(wheel_state, method, k):
    from torch.nn.utils import parameters_to_vector
    from wheel_posterior import variance
    from wheel_regions import Network, gradients

    from sublaplace_cli import Regression, fit, jacobian, precision, select

    model, seen, new = wheel_state
    by_region = gradients(Network(parameters_to_vector(model.parameters()).detach()), seen, new)
    assert sum(rows.u.shape[1] for rows in by_region[0].arms) < len(seen)
    for noise in (1.0, 1e-3):
        omega = precision(jacobian(model, seen), Regression(noise))
        expected = fit(omega, select(omega, method, k, pool="2k").indices).variance(jacobian(model, new)).flatten()
        found = variance(method, k, *by_region, noise)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    assert variance(method, k, *by_region, 1e-14) is None or method == "subnet-diagonal"


def test_sums_over_linear_regions_are_those_over_rows(wheel_state):
    from torch.nn.utils import parameters_to_vector
    from wheel_regions import SIZE, Network, gradients

    from sublaplace_cli import Regression, jacobian, precision

    model, seen, new = wheel_state
    own, _ = gradients(Network(parameters_to_vector(model.parameters()).detach()), seen, new)
    omega = precision(jacobian(model, seen), Regression(1.0))
    torch.testing.assert_close(own.scores, omega.data_diagonal(), rtol=1e-11, atol=1e-12)
    some = torch.randperm(SIZE)[:400].sort().values
    expected = omega.submatrix(some).triu()
    torch.testing.assert_close(own.products(some).triu(), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("method", "k"), [("gradient", 100), ("greedy", 20)])
def test_a_run_by_regions_chooses_the_same_arms(monkeypatch, method, k):
    monkeypatch.syspath_prepend(str(PAPER))
    import wheel

    regrets = []
    for start in (100, 10**9):
        monkeypatch.setattr(wheel, "BY_REGION", start)
        regrets.append(wheel.Agent(wheel.Run(method, k, 0.9, 1, "total", rounds=400)).play())
    assert torch.equal(*regrets)
    assert float(regrets[0][-1]) > 0


def test_the_wheel_is_run_seed_by_seed_over_all_methods(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    import wheel
    from common import Place

    runs = list(wheel.runs(Place(None, PAPER, PAPER, quick=False)))
    assert len({run.key for run in runs}) == len(runs)
    first = runs[: 25 * 2 * 10]
    assert {run.variant for run in first} == {"total"}
    assert {run.seed for run in first[:20]} == {0}
    assert len({(run.delta, run.method, run.k) for run in first[:20]}) == 20


def test_each_change_alters_one_step_of_the_agent(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    import wheel_why
    from common import Place
    from wheel import ARMS, Agent, Run

    def agent(change, method="gradient"):
        made = wheel_why.CHANGES[change][0](Run(method, 20, 0.2, 0, "total", rounds=100))
        made._pull(made._first_arms())
        return made

    plain = Agent(Run("map", None, 0.95, 0, "total", rounds=100))
    values = torch.tensor([[1.0, 1.0, 2.0], [1.005, 1.0, 1.0], [1.009, 3.0, 1.995]])
    assert agent("lowest-of-ties")._best(values).tolist() == [0, 2, 0]
    assert plain._best(values).tolist() == [2, 2, 0]
    assert agent("noise-floor")._noise() >= 1
    assert agent("no-first-pulls").done == 0
    assert agent("anew").done == 3 * ARMS
    with_target = agent("standardised")
    with_target._train()
    target = with_target._target(with_target.rewards[: with_target.done])
    assert float(target.mean()) == pytest.approx(0, abs=1e-4)
    assert float(target.std()) == pytest.approx(1, abs=1e-4)
    late = agent("last-512")
    late.done = 600
    assert late._oldest() == 600 - 512
    for change, decay in (("weight-decay", 1.0), ("weight-decay-over-n", 1 / 15)):
        changed = agent(change)
        changed._train()
        assert changed.learner.decay == pytest.approx(decay)
    anew = agent("anew")
    before = anew.model
    anew._train()
    assert anew.model is not before
    assert anew.learner.steps == 100

    keys = [one.key for one in wheel_why.runs(Place(None, PAPER, PAPER, quick=False))]
    assert len(set(keys)) == len(keys) == 10 * (7 + 8 + 8)


def test_the_audit_of_standard_errors_is_arithmetic(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    from report_audit import audit, audit_summary, largest_deviation, most_runs

    values = torch.tensor([0.0, 8.0, 8.0, 8.0], dtype=torch.float64)  # all at an end
    assert largest_deviation(float(values.mean()), 8.0, 4) == pytest.approx(float(values.std()))
    error = float(values.std()) / 2
    assert most_runs(float(values.mean()), error * 0.999, 8.0) == 4
    assert most_runs(float(values.mean()), error * 1.001, 8.0) == 3
    assert "148,960 / 2 / √24 = 15,203. The paper prints 16,114 to 21,940 in 5 rows" in audit_summary()
    text = audit([])
    assert text.count("| impossible |") == 9
    assert "| 20 | 1 | Setup B | +0 | 271,889 | 271,889 | the same |" in text
    assert text.count("| the same |") == 4


def test_a_change_that_makes_runs_fail_is_named(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    from report_wheel_why import why, why_summary

    def of(change, *regrets):
        common = {"change": change, "method": "map", "k": ""}
        return [common | {"seed": str(seed), "regret": str(regret)} for seed, regret in enumerate(regrets)]

    plain = [line | {"delta": "0.95", "variant": "total"} for line in of("", 5000, 30_000, 5000)]
    other = [line | {"delta": "0.9"} for line in plain]
    both = of("anew", 70_000, 70_000) + of("last-512", 5000, 30_000)
    said = why_summary(both, plain + other)
    assert "with 1 of 2 changes" in said
    assert said.endswith("the network starts anew in each phase: 2 of 2 runs fail, 1 of 2 without it.")
    assert "none of 1 changes" in why_summary(both[2:], plain)
    assert "| none | `map` |  | 2 | 17500 ± 12500 | 5000 … 17500 … 30000 | 1 |" in why(both, plain + other)
    assert why([], plain) == why_summary([], plain) == ""
