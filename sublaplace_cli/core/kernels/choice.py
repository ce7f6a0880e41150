"""Which code adds up products on a GPU: torch, or Triton kernels, which must first give what torch gives.

The first use of a kernel per device and configuration computes a small block of odd sizes by both. If they differ, or
anything fails, one note says so, and torch does the rest of the run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .digits import Digits
from .launch import LinearFactors, level_gram, outer_gram

AUTO_KERNELS = "torch"  # until the others have passed their check on a GPU
# Of a product, as a share of the lengths of its factors.
CHECK_WITHIN = {torch.float64: 1e-12, torch.float32: 1e-5}
ODD_ROWS, ODD_OTHERS, ODD_COLUMNS = 201, 65, 37


@dataclass
class KernelChoice:
    """The choice of this process; checks are made once."""

    name: str = AUTO_KERNELS
    note: Callable[[str], None] = lambda text: None
    passed: dict[tuple[Any, ...], bool] = field(default_factory=dict)

    def usable(self, check: Callable[..., None], device: torch.device, *settings: Any) -> bool:
        """Whether this kernel gives the numbers of torch on this device."""
        if self.name != "triton" or not on_gpu(device):
            return False
        key = (check.__name__, device, *settings)
        if key not in self.passed:
            self.passed[key] = self._passes(check, device, *settings)
        return self.passed[key]

    def _passes(self, check: Callable[..., None], device: torch.device, *settings: Any) -> bool:
        try:
            check(device, *settings)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever it is, torch can do it
            self.name = "torch"
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.note(f"the Triton kernels are not used on {device}, but torch: {lines[0]}")
            return False
        return True


_chosen = KernelChoice()


def choose(name: str, note: Callable[[str], None] = lambda text: None) -> KernelChoice:
    """Use auto, torch or triton from now on; the note is given if it turns out that triton cannot be used."""
    global _chosen
    _chosen = KernelChoice(AUTO_KERNELS if name == "auto" else name, note)
    return _chosen


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def takes_factors(own: LinearFactors, other: LinearFactors, dtype: torch.dtype) -> bool:
    """Whether the kernel for rows of a linear layer is used."""
    several = own.deltas.shape[1] * other.deltas.shape[1] > 1
    return _chosen.usable(check_outer_gram, own.inputs.device, dtype, own.inputs.dtype, several)


def takes_digits(device: torch.device, digits: int) -> bool:
    """Whether the kernel for products of digits is used."""
    return _chosen.usable(check_level_gram, device, digits)


def check_outer_gram(device: torch.device, dtype: torch.dtype, kept: torch.dtype, several: bool) -> None:
    """Raise if it is not what torch computes, for a block with itself and with other rows."""
    C = 3 if several else 1
    own, other = (_odd_factors(rows, C, seed, device, kept) for seed, rows in enumerate((ODD_ROWS, ODD_OTHERS)))
    for met, upper in ((other, False), (own, True)):
        found = torch.zeros(len(own.inputs) * C, len(met.inputs) * C, dtype=torch.float64, device=device)
        outer_gram(found, own, met, (0.7, 0.3), dtype, upper)
        error = (found - by_torch(own, met, (0.7, 0.3))).div_(_lengths(own)[:, None] * _lengths(met))
        worst = float((error.triu() if upper else error).abs().max())
        if not worst <= CHECK_WITHIN[dtype]:
            raise ArithmeticError(f"a product of a linear layer's rows is off by {worst:.2g}")


def by_torch(own: LinearFactors, other: LinearFactors, numbers: tuple[float, float]) -> Tensor:
    """(a a′ᵀ·scale + shift) ∘ (δ δ′ᵀ) in float64."""
    inputs = own.inputs.double() @ other.inputs.double().T * numbers[0] + numbers[1]
    deltas = torch.einsum("nco,mdo->ncmd", own.deltas.double(), other.deltas.double())
    return (deltas * inputs[:, None, :, None]).flatten(2).flatten(0, 1)


def check_level_gram(device: torch.device, digits: int) -> None:
    """Raise if it has not the bits that torch computes."""
    X, Y = (
        _odd_factors(rows, 1, seed, device, torch.float64).inputs for seed, rows in ((5, ODD_ROWS), (6, ODD_OTHERS))
    )
    own, other = Digits.of(X, digits), Digits.of(Y, digits)
    for met, upper in ((other, False), (own, True)):
        found = torch.ones(len(X), len(met.scale), dtype=torch.float64, device=device)
        expected = found + own.products(met).mul_(0.7)
        level_gram(found, own, met, 0.7, upper)
        if not torch.equal(found.triu() if upper else found, expected.triu() if upper else expected):
            raise ArithmeticError("sums of products of digits are not exact")


def _odd_factors(rows: int, C: int, seed: int, device: torch.device, kept: torch.dtype) -> LinearFactors:
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, ODD_COLUMNS), (rows, C, ODD_COLUMNS + 4)
    return LinearFactors(
        *(torch.randn(shape, generator=generator, dtype=torch.float64).to(device, kept) for shape in shapes)
    )


def _lengths(factors: LinearFactors) -> Tensor:
    inputs, deltas = factors.inputs.double(), factors.deltas.double()
    return ((inputs.square().sum(1, keepdim=True) + 1).sqrt() * deltas.square().sum(2).sqrt()).flatten()
