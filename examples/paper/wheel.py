"""The wheel bandit: Neural Thompson sampling with a posterior over k parameters of the reward network.

As in the paper: contexts uniform in the unit disk, five arms, mean reward 1, but 50 for the outer arm of the context's
quadrant beyond radius δ; noise 0.01; three pulls of each arm, then 20 rounds and 100 updates in turns, T = 16,000;
network 7–100–100–1, Adam at 3e-3 with gradients clipped at 1, batches of 512 from the replay buffer; prior precision 1,
σ₀² the mean square of the last 200 prediction errors (made when the arm was chosen; at least 1e-6). Two readings of
what is sampled: `total` adds σ₀² to the variance, as the formula in the appendix says; `epistemic` leaves it out.
`greedy` searches among 2k candidates, as Algorithm 2 is printed. `sketch` and `gradient+sketch` are not in the paper.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from common import Place, pending
from learner import Learner
from torch import Tensor, nn
from wheel_posterior import variance
from wheel_regions import Network, gradients

from sublaplace_cli import Beside, Regression, Sketch, Subset, fit, jacobian, mlp, precision, select

NAME = "wheel"
ARMS, HIGH, LOW, NOISE = 5, 50.0, 1.0, 0.01
ROUNDS, PER_PHASE, UPDATES, BATCH = 16_000, 20, 100, 512
NETWORK_SEEDS = 1_000_000
VARIANTS = ("total", "epistemic")
RECENT, LEAST_NOISE = 200, 1e-6
MEMORY, ROWS_PER_PASS = 2 * 2**30, 4096
TRACE = 160  # points of a trace
BY_REGION = 1000  # rows from which on linear regions are faster than the package, which knows nothing of them
FIXED = ("neural-linear", "last-k", "sketch")  # methods that choose the same whatever the rows are
SUMS = ("sketch", "gradient+sketch")
COLUMNS = ("method", "k", "delta", "seed", "regret", "variant", "seconds")
KEY = ("method", "k", "delta", "seed", "variant")
TRACE_COLUMNS = (*KEY, "round", "regret")


@dataclass(frozen=True)
class Run:
    method: str
    k: int | None
    delta: float
    seed: int
    variant: str  # total or epistemic
    rounds: int = ROUNDS

    @property
    def key(self) -> tuple[str, ...]:
        return self.method, "" if self.k is None else str(self.k), f"{self.delta:g}", str(self.seed), self.variant


def runs(place: Place) -> Iterator[Run]:
    """25 seeds of the paper's methods, seed by seed, then five of the random sums, then the other reading."""
    if place.quick:
        for method, k in (("map", None), ("gradient", 100), ("greedy", 20), ("sketch", 20), ("gradient+sketch", 20)):
            yield Run(method, k, 0.95, 0, "total", rounds=200)
        return
    paper = [("map", None), ("neural-linear", None)]
    paper += [(method, k) for k in (500, 100) for method in ("gradient", "greedy", "last-k", "subnet-diagonal")]
    sums = [(method, k) for k in (500, 100) for method in SUMS]
    total, epistemic = VARIANTS
    for seeds, variant, ways in (
        (range(25), total, paper),
        (range(5), total, sums),
        (range(10), epistemic, paper[1:]),  # `map` samples nothing
        (range(5), epistemic, sums),
        (range(10, 25), epistemic, paper[1:]),
    ):
        for seed, delta, (method, k) in itertools.product(seeds, (0.95, 0.9), ways):
            yield Run(method, k, delta, seed, variant)


def run(place: Place) -> None:
    """All runs that are not in the table yet."""
    torch.set_num_threads(1)
    table = place.table(NAME, COLUMNS, KEY)
    traces = place.table(f"{NAME}-traces", TRACE_COLUMNS, KEY)
    for one, _ in pending(place, NAME, table, runs(place)):
        start = time.process_time()
        regret = Agent(one).play()
        seconds = time.process_time() - start
        common = {"method": one.method, "k": one.k, "delta": one.delta, "seed": one.seed, "variant": one.variant}
        marks = range(one.rounds // TRACE or 1, one.rounds + 1, one.rounds // TRACE or 1)
        traces.add([{**common, "round": n, "regret": float(regret[n - 1])} for n in marks])
        table.add([{**common, "regret": float(regret[-1]), "seconds": round(seconds, 1)}])
        sys.stderr.write(f"wheel: {' '.join(one.key)}: regret {float(regret[-1]):.0f}, {seconds:.0f} s\n")


@dataclass(frozen=True)
class Wheel:
    """Contexts and mean rewards of one run, drawn beforehand."""

    contexts: Tensor  # (T, 2)
    means: Tensor  # (T, 5)
    noise: Tensor  # (T,)

    @classmethod
    def of(cls, rounds: int, delta: float, generator: torch.Generator) -> Wheel:
        radius = torch.rand(rounds, generator=generator).sqrt()
        angle = 2 * torch.pi * torch.rand(rounds, generator=generator)
        contexts = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
        quadrant = 1 + 2 * (contexts[:, 0] < 0).long() + (contexts[:, 1] < 0).long()
        means = torch.full((rounds, ARMS), LOW)
        means[(radius > delta).nonzero().squeeze(1), quadrant[radius > delta]] = HIGH
        return cls(contexts, means, NOISE * torch.randn(rounds, generator=generator))


class Agent:
    """Thompson sampling with one method; `wheel_why` changes a step of it at a time."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.generator = torch.Generator().manual_seed(run.seed)
        self.wheel = Wheel.of(run.rounds, run.delta, self.generator)
        torch.manual_seed(NETWORK_SEEDS + run.seed)  # not the stream that the contexts come from
        self._new_network()
        self.inputs = torch.empty(run.rounds, 2 + ARMS)
        self.rewards, self.errors = torch.empty(run.rounds, 1), torch.empty(run.rounds)
        self.done = 0
        self.regret = torch.zeros(run.rounds, dtype=torch.float64)
        self.fixed: Sketch | Beside | Subset | None = None

    def _new_network(self) -> None:
        self.model = mlp(**{"in": 2 + ARMS, "hidden": [100, 100], "out": 1, "act": "relu"}).eval()
        self.learner = Learner(self.model, rate=3e-3, most_norm=1.0)
        self.first: Any = None  # some Jacobian of this network, whose checks are not repeated

    def play(self) -> Tensor:
        """Cumulative regret after each round (T,)."""
        self._pull(self._first_arms())
        while self.done < self.run.rounds:
            self._train()
            count = min(PER_PHASE, self.run.rounds - self.done)
            self._pull(self._choose(count))
        return self.regret.cumsum(0)

    def _first_arms(self) -> Tensor:
        return torch.arange(min(3 * ARMS, self.run.rounds)) % ARMS

    def _rows(self, start: int, arms: Tensor) -> Tensor:
        contexts = self.wheel.contexts[start : start + len(arms)]
        return torch.cat([contexts, nn.functional.one_hot(arms, ARMS).float()], 1)

    def _pull(self, arms: Tensor) -> None:
        """These arms in the next rounds."""
        rounds = slice(self.done, self.done + len(arms))
        means = self.wheel.means[rounds]
        reward = means.gather(1, arms.unsqueeze(1)) + self.wheel.noise[rounds].unsqueeze(1)
        self.inputs[rounds], self.rewards[rounds] = self._rows(self.done, arms), reward
        with torch.no_grad():
            self.errors[rounds] = (self._target(reward) - self.model(self.inputs[rounds])).squeeze(1)
        self.regret[rounds] = (means.amax(1) - means.gather(1, arms.unsqueeze(1)).squeeze(1)).double()
        self.done += len(arms)

    def _target(self, reward: Tensor) -> Tensor:
        """What the network learns."""
        return reward

    def _train(self) -> None:
        batches = torch.randint(self._oldest(), self.done, (UPDATES, BATCH), generator=self.generator)
        for x, y in zip(self.inputs[batches], self._target(self.rewards[batches]), strict=True):
            self.learner.update(x, y)

    def _oldest(self) -> int:
        """The first of the rounds that it learns from."""
        return 0

    def _choose(self, count: int) -> Tensor:
        """The arm with the largest sampled reward in each of the next rounds."""
        rows = torch.cat([self._rows(self.done, torch.full((count,), arm)) for arm in range(ARMS)])
        with torch.no_grad():
            values = self.model(rows).double().squeeze(1)
        if self.run.method != "map":
            noise = self._noise()
            variance = self._variance(rows, noise) + (noise if self.run.variant == "total" else 0.0)
            draws = torch.randn(len(values), generator=self.generator, dtype=torch.float64)
            values = values + variance.sqrt() * draws
        return self._best(values.reshape(ARMS, count))

    def _noise(self) -> float:
        """σ₀²."""
        return max(float(self.errors[max(0, self.done - RECENT) : self.done].square().mean()), LEAST_NOISE)

    def _best(self, values: Tensor) -> Tensor:
        """The arm of each round, from the values of all (5, rounds)."""
        return values.argmax(0)

    def _variance(self, rows: Tensor, noise: float) -> Tensor:
        """g_Sᵀ Ω_SS⁻¹ g_S with S chosen again for the rows seen so far; or with sums, which stay the same."""
        if self.done >= BY_REGION and self.run.method not in SUMS:
            by_region = gradients(Network(self.learner.theta), self.inputs[: self.done], rows)
            found = variance(self.run.method, self.run.k or 0, *by_region, noise)
            if found is not None:
                return found
        if self.first is None:
            self.first = jacobian(self.model, rows, memory=MEMORY)
        seen, new = (
            jacobian(self.model, x, like=self.first, rows_per_pass=ROWS_PER_PASS)
            for x in (self.inputs[: self.done], rows)
        )
        omega = precision(seen, Regression(noise), memory=MEMORY)
        chosen = self.fixed or features(omega, self.run)
        if self.run.method in FIXED:
            self.fixed = chosen
        return fit(omega, chosen).variance(new).flatten()


def features(omega: Any, run: Run) -> Sketch | Beside | Subset:
    """What the posterior is over; the sums of a run have its seed."""
    k = run.k or 0
    if run.method == "sketch":
        return Sketch(k, run.seed)
    if run.method == "gradient+sketch":
        half = k // 2
        return Beside(Subset(select(omega, "gradient", half).indices), Sketch(k - half, run.seed))
    return Subset(select(omega, run.method, k, pool="2k").indices)
