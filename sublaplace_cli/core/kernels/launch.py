"""Launches of the Triton kernels, with tiles from a fixed table: tuning at run time would change bits."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .digits import Digits

PLAIN_BLACKWELL = range(100, 110)  # compute capabilities whose float64 products Triton compiles from NEEDED on
NEEDED = (3, 9)


@dataclass(frozen=True)
class Tiles:
    """Rows, other rows and columns of one step, and the warps and steps ahead of one program."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def grid(self, m: int, n: int) -> tuple[int, int]:
        return -(-m // self.rows), -(-n // self.columns)

    @property
    def constants(self) -> dict[str, int]:
        return {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth}

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


# Compiled without spills, which the tests check for every architecture; with several outputs the places in K take more
# registers, so that tiles are smaller.
LINEAR_TILES = {False: Tiles(64, 64, 16, warps=8, stages=3), True: Tiles(32, 32, 16, warps=4, stages=3)}
DIGIT_TILES = Tiles(128, 64, 128, warps=8, stages=2)
# A product that is rounded before it is added: as torch does it, to the bit.
EXACT_OPTIONS = {"enable_fp_fusion": False}


@dataclass(frozen=True)
class LinearFactors:
    """Rows δₙ ⊗ [aₙ, 1] of a linear layer with one position."""

    inputs: Tensor  # (m, d_in)
    deltas: Tensor  # (m, C, d_out)

    def rows(self, first: int, last: int | None) -> "LinearFactors":
        return LinearFactors(self.inputs[first:last], self.deltas[first:last])

    def with_columns_together(self) -> "LinearFactors":
        """Copied where the numbers of a row do not lie side by side."""
        return LinearFactors(*(X if X.stride(-1) == 1 else X.contiguous() for X in (self.inputs, self.deltas)))


def outer_gram(
    total: Tensor,
    own: LinearFactors,
    other: LinearFactors,
    numbers: tuple[float, float],
    dtype: torch.dtype,
    upper: bool,
) -> None:
    """total += (a a′ᵀ·scale + shift) ∘ (δ δ′ᵀ), products in this dtype; of two equal sets the upper tiles only."""
    import triton.language as tl

    from .triton_code import outer_gram_kernel

    if dtype == torch.float64:
        _require_float64_products(total)
    (m, C, d_out), (n, C2, _) = own.deltas.shape, other.deltas.shape
    several = C * C2 > 1
    own, other, tiles = own.with_columns_together(), other.with_columns_together(), LINEAR_TILES[several]
    strides = own.inputs.stride(0), other.inputs.stride(0), *own.deltas.stride()[:2], *other.deltas.stride()[:2]
    outer_gram_kernel[tiles.grid(m, n)](
        *(own.inputs, other.inputs, own.deltas, other.deltas, total, _on_device(numbers, total.device)),
        *(m, n, own.inputs.shape[1], d_out, C, C2, *strides, _row_stride(total)),
        UPPER=upper,
        DTYPE=tl.float64 if dtype == torch.float64 else tl.float32,
        **tiles.constants,
        **tiles.options,
    )


def level_gram(total: Tensor, own: Digits, other: Digits, factor: float, upper: bool) -> None:
    """total += factor·(products of the rows), with the bits of `Digits.products`."""
    from .triton_code import level_gram_kernel

    (m, s, depth), n, tiles = own.values.shape, len(other.values), DIGIT_TILES
    level_gram_kernel[tiles.grid(m, n)](
        *(own.values.contiguous(), other.values.contiguous(), total, own.scale, other.scale),
        *(_on_device((factor,), total.device), m, n, depth, _row_stride(total)),
        UPPER=upper,
        S=s,
        **tiles.constants,
        **tiles.options,
        **EXACT_OPTIONS,
    )


@lru_cache(maxsize=64)
def _on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _row_stride(total: Tensor) -> int:
    if total.stride(1) != 1:
        raise ValueError("the numbers of a row must lie side by side")
    return total.stride(0)


def _require_float64_products(total: Tensor) -> None:
    """Refuse what would end in an error of the compiler."""
    import triton

    if total.device.type != "cuda":
        return
    capability = int(triton.runtime.driver.active.get_current_target().arch)
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if capability in PLAIN_BLACKWELL and version < NEEDED:
        raise RuntimeError(f"float64 products on compute capability {capability} need Triton 3.9 or newer")
