"""Exact products of 8-bit integers, by whichever way the device has that is right and fast."""

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

# Of columns, and on a GPU of rows on the right: tensor cores take no others, and on the CPU torch 2.13 returns memory
# that was never written for one column.
MULTIPLE = 16
FEWEST_ROWS = 17  # on the left, on a GPU
Multiply = Callable[[Tensor, Tensor], Tensor]


def integer_products(A: Tensor, B: Tensor) -> Tensor:
    """A Bᵀ of int8 rows, in numbers that are exact as long as they stay below 2³¹."""
    if not A.numel() or not B.numel():
        return torch.zeros(len(A), len(B), dtype=torch.int32, device=A.device)
    return _fastest(A.device)(A, B)


@cache
def _fastest(device: torch.device) -> Multiply:
    """Integer products where they are exact, and on the CPU no slower than floats: it has not always instructions."""
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randint(-128, 128, (rows, 512), generator=generator, dtype=torch.int8) for rows in (128, 120))
    A[0], B[0] = -128, -128  # the largest sums, which some instructions saturate
    A, B = A.to(device), B.to(device)
    try:
        exact = torch.equal(by_integers(A, B).to(torch.float64), by_floats(A, B))
    except (RuntimeError, NotImplementedError):
        return by_floats
    if exact and device.type == "cpu":
        exact = _seconds(by_integers, A, B) <= _seconds(by_floats, A, B)
    return by_integers if exact else by_floats


def _seconds(multiply: Multiply, A: Tensor, B: Tensor) -> float:
    """The shortest of a few runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        multiply(A, B)
        times.append(time.perf_counter() - start)
    return min(times)


def by_integers(A: Tensor, B: Tensor) -> Tensor:
    """In int32. Rows and columns of zeros are added where the device asks for them; they change no sum."""
    rows, others, columns = len(A), len(B), -A.shape[1] % MULTIPLE
    few, odd = (0, 0) if takes_any_rows(A.device) else (max(0, FEWEST_ROWS - rows), -others % MULTIPLE)
    A = pad(A, (0, columns, 0, few)) if columns or few else A
    B = pad(B, (0, columns, 0, odd)) if columns or odd else B
    return torch._int_mm(A, B.T)[:rows, :others]


def takes_any_rows(device: torch.device) -> bool:
    return device.type == "cpu"


def by_floats(A: Tensor, B: Tensor) -> Tensor:
    """In float64, which holds such sums exactly: the same numbers."""
    return A.to(torch.float64) @ B.to(torch.float64).T
