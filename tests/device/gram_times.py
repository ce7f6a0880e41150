"""Times and errors of Gram matrices on a device, as a table to paste into an issue.

python tests/device/gram_times.py                     on the CUDA device
python tests/device/gram_times.py --device cpu --rows 500
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sublaplace_cli import device as devices
from sublaplace_cli.core.jacobian.blocks import Block, DenseBlock
from sublaplace_cli.core.jacobian.linear import LinearBlock
from sublaplace_cli.core.kernels import choice
from sublaplace_cli.core.kernels.arithmetic import Arithmetic

REPEATS = 3
WAYS = [(kernels, by) for by in Arithmetic for kernels in ("torch", "triton")]


def blocks(rows: int, device: torch.device) -> dict[str, Block]:
    """Rows with sizes that vary, kept in float32, as those of a network are."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) * torch.randn(shape[0], *[1] * (len(shape) - 1)).exp()).to(
            device
        )

    return {
        "dense, 16,384 columns": DenseBlock(0, random(rows, 1, 2**14)),
        "linear 1024 × 1024": LinearBlock(0, random(rows, 1, 1024), random(rows, 1, 1, 1024), True),
        "linear 512 × 512, 10 outputs": LinearBlock(
            0, random(rows // 10, 1, 512), random(rows // 10, 10, 1, 512), True
        ),
    }


def gram(block: Block, by: Arithmetic) -> Tensor:
    v = torch.full((block.width,), 0.7, dtype=torch.float64, device=block.tensors()[block.factors[0]].device)
    n = block.n_rows * block.n_outputs
    total = torch.zeros(n, n, dtype=torch.float64, device=v.device)
    block.add_gram(block, v, total, None, by)
    return total


def seconds(work: Callable[[], Tensor], device: torch.device) -> tuple[float, Tensor]:
    """The least of some runs after a first one, which compiles."""
    result, best = work(), float("inf")
    for _ in range(REPEATS):
        devices.synchronise(device)
        start = time.perf_counter()
        result = work()
        devices.synchronise(device)
        best = min(best, time.perf_counter() - start)
    return best, result


def lines(rows: int, device: torch.device) -> list[str]:
    found = ["| block | products | by | seconds | error beside its largest entry |", "|---|---|---|---|---|"]
    notes: list[str] = []
    for name, block in blocks(rows, device).items():
        choice.choose("torch")
        exact = gram(block, Arithmetic.FLOAT64).triu()
        for kernels, by in WAYS:
            choice.choose(kernels, notes.append)
            best, K = seconds(lambda block=block, by=by: gram(block, by), device)
            error = float((K.triu() - exact).abs().max() / exact.abs().max())
            found.append(f"| {name} | {by.name.lower()} | {kernels} | {best:.4f} | {error:.1e} |")
    return [*found, "", *dict.fromkeys(notes)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=8000)
    asked = parser.parse_args()
    device = devices.choose(asked.device)
    torch.manual_seed(0)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = "not installed"
    print(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, triton {version}, {asked.rows} rows\n")  # noqa: T201
    print("\n".join(lines(asked.rows, device)))  # noqa: T201


if __name__ == "__main__":
    main()
