"""What random sums cost: `python features.py` prints a Markdown table, time per row in milliseconds.

For each network the plain forward and backward of a batch, making the rows that both kinds of posterior need, then the
k columns of a sub-network and k random sums of all parameters; in turns, and the least times count. The last line is a
linear layer over 128 positions, whose written-out row takes more memory than all that its sums need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import problems
import torch
from large import TextClassifier, resnet
from torch import Tensor, nn

from sublaplace_cli import Regression, Sketch, jacobian, precision

K, ROUNDS, SECONDS = 1000, 5, 4.0
Work = Callable[[], object]


@dataclass(frozen=True)
class Network:
    """A network and a batch of rows."""

    name: str
    model: nn.Module
    x: Tensor


def networks() -> list[Network]:
    tokens = torch.randint(8000, (4, 64), generator=torch.Generator().manual_seed(0))
    return [
        Network("MLP 3×200", problems.ready(problems.mlp), problems.rows(2000, 90, seed=1)),
        Network("ResNet-20", problems.ready(lambda: resnet(20, 1)), problems.rows(64, 3, 32, 32, seed=1)),
        Network("transformer, 64 tokens", problems.ready(TextClassifier), tokens),
    ]


def plain(network: Network) -> None:
    """One forward and one backward of the batch."""
    network.model.zero_grad()
    network.model(network.x).sum().backward()


def seconds(works: dict[str, Work]) -> dict[str, float]:
    """The least time of each, in turns; quick ones more often."""
    found: dict[str, list[float]] = {name: [] for name in works}
    begun = problems.now()
    while len(next(iter(found.values()))) < ROUNDS or problems.now() - begun < SECONDS:
        for name, work in works.items():
            start = problems.now()
            work()
            found[name].append(problems.now() - start)
    return {name: min(times) for name, times in found.items()}


def measured(network: Network) -> str:
    J = jacobian(network.model, network.x)
    omega, n = precision(J, Regression(1.0)), len(network.x)
    features, S = Sketch(K).on(J.layout, omega.prior), torch.arange(0, J.layout.size, J.layout.size // K)[:K]
    works = {
        "plain": lambda: plain(network),
        "rows": lambda: jacobian(network.model, network.x, like=J),
        "columns": lambda: omega.columns(S),
        "sums": lambda: features.rows(J.load(0, n)),
    }
    least = seconds(works)
    per_row = [f"{1000 * least[name] / n:.3g}" for name in works]
    return f"| {network.name} | {J.layout.size:,} | {' | '.join(per_row)} | {least['sums'] / least['plain']:.2f} |"


class OverPositions(nn.Module):
    """One linear layer at every position, and their mean."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.layer = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh().mean((1, 2)).unsqueeze(1)


def positions() -> str:
    """Memory for the sums of a 768 × 3072 layer with 128 positions, beside its written-out row."""
    d_in, d_out, T = 3072, 768, 128
    J = jacobian(OverPositions(d_in, d_out).eval(), torch.randn(1, T, d_in))
    features = Sketch(K).on(J.layout, torch.ones(J.layout.size, dtype=torch.float64))
    features.rows(J.load(0, 1))  # bins and signs are made once
    with torch.profiler.profile(profile_memory=True) as profile:
        features.rows(J.load(0, 1))
    taken = held = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            taken = max(taken, held)
    one = f"one row of a {d_out} × {d_in} layer over {T} positions"
    return f"{one}: {taken / 1e6:.1f} MB, written out {4 * J.layout.size / 1e6:.1f} MB"


def main() -> None:
    sys.stdout.write(
        "| network | p | plain forward + backward | making the rows | k columns | k sums | sums / plain |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|\n")
    for network in networks():
        sys.stdout.write(measured(network) + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"\n{positions()}\n")


if __name__ == "__main__":
    main()
