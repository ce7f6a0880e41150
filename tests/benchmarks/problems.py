"""The networks and synthetic data that both sides of the benchmark use. Imports torch only."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

DEVICE = torch.device(os.environ.get("BENCHMARK_DEVICE", "cpu"))  # `benchmark.py --device` sets it
REPEATS = int(os.environ.get("BENCHMARK_REPEATS", "3"))
THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
SIGMA2 = 0.5


def mlp() -> nn.Module:
    """90-200-200-200-1, the paper's Setup A."""
    return plain_mlp([90, 200, 200, 200, 1])


def plain_mlp(sizes: list[int]) -> nn.Module:
    """What `build: {arch: mlp}` builds."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def rows(n: int, *shape: int, seed: int) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def dense_rows(model: nn.Module, x: Tensor) -> Tensor:
    """Gradients of a network with one output at each row (N, p), by plain autograd."""
    parameters = dict(model.named_parameters())

    def f(values: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, values, (row.unsqueeze(0),)).squeeze()

    each = torch.func.vmap(torch.func.grad(f), in_dims=(None, 0))(parameters, x)
    return torch.cat([each[name].detach().flatten(1) for name in parameters], 1)


def ready(build: Callable[[], nn.Module]) -> nn.Module:
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    return build().eval().to(DEVICE)


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    """Least wall time of some repeats, and the last result."""
    best, result = float("inf"), None
    for _ in range(repeats):
        start = now()
        result = work()
        best = min(best, now() - start)
    return best, result


def now() -> float:
    """The time, after the device has finished its queue."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_bytes() -> int:
    """Peak memory: on a GPU of its allocator, else of the whole process."""
    if DEVICE.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
