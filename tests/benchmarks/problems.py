"""The networks and made data that both sides of the benchmark work on. Imports torch only."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

REPEATS = 3
SIGMA2 = 0.5


def mlp() -> nn.Module:
    """90-200-200-200-1, the paper's Setup A."""
    sizes = [90, 200, 200, 200]
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(200, 1))


def rows(n: int, *shape: int, seed: int) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def ready(build: Callable[[], nn.Module]) -> nn.Module:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    return build().eval()


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    """Least wall time of some repeats, and the last answer."""
    best, answer = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        answer = work()
        best = min(best, time.perf_counter() - start)
    return best, answer


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
