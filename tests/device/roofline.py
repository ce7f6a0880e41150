"""How long a Gram matrix takes on a GPU at the least, by a model: `python tests/device/roofline.py` prints the table.

Every product takes as long as its arithmetic at the peak of the data sheet, or as its traffic with the GPU's memory at
full bandwidth, whichever is longer. Real kernels reach 50 to 90 % of either.
"""

from __future__ import annotations

from dataclasses import dataclass

ROWS, COLUMNS = 20_000, 1_000_000  # N·C, and p of dense blocks
PANEL = 2048  # columns at a time: K is read and written once for each


@dataclass(frozen=True)
class Gpu:
    """Of the data sheet: operations per second (a multiply-add is two), without sparsity, and bytes per second."""

    name: str
    float64: float
    float32: float
    int8: float
    bandwidth: float


GPUS = (
    Gpu("H100 SXM", 67e12, 67e12, 1979e12, 3.35e12),
    Gpu("A100 SXM 80 GB", 19.5e12, 19.5e12, 624e12, 2.04e12),
    Gpu("RTX 4090", 1.29e12, 82.6e12, 660.6e12, 1.01e12),
)


def seconds(operations: float, peak: float, traffic: float, bandwidth: float) -> float:
    return max(operations / peak, traffic / bandwidth)


def half() -> float:
    """Entries of K on and above the diagonal."""
    return ROWS**2 / 2


def panels() -> float:
    return COLUMNS / PANEL


def plain(gpu: Gpu, peak: float, size: int) -> float:
    """One product of numbers of this size, added to K (float64) panel by panel."""
    extra = 0 if size == 8 else 2 * size  # a product of its own, written and read
    return seconds(2 * half() * COLUMNS, peak, half() * panels() * (16 + extra), gpu.bandwidth)


def split(gpu: Gpu, digits: int, fused: bool) -> float:
    """Products of digits; by torch, every level is written, read, and added to a sum that is read and written."""
    products = digits * (digits + 1) / 2
    traffic = 16 if fused else 16 + digits * (4 + 4 + 16) + 3 * 16
    return seconds(2 * half() * COLUMNS * products, gpu.int8, half() * panels() * traffic, gpu.bandwidth)


def table() -> str:
    """In Markdown, one GPU per row."""
    head = ["seconds", "float64", "float32", "split, 4 digits", "5 digits", "split by torch, 4 digits"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for gpu in GPUS:
        times = [
            plain(gpu, gpu.float64, 8),
            plain(gpu, gpu.float32, 4),
            *(split(gpu, digits, fused=True) for digits in (4, 5)),
            split(gpu, 4, fused=False),
        ]
        lines.append(f"| {gpu.name} | {' | '.join(f'{time:.3g}' for time in times)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
