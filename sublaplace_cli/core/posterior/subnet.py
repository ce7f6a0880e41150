"""Common to both forms of a sub-network's posterior: base class, memory sizes, and the choice of the smaller form."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ...errors import Reason, RunError
from ..jacobian.rows import Jacobian, n_outputs
from ..omega.precision import Precision
from ..omega.row_sums import column_chunks
from . import Posterior

Form = Literal["primal", "dual"]
WEAK_DATA = 1e-3  # degrees of freedom per row below which their plain difference would lose more than 13 digits


@dataclass(frozen=True)
class SubnetPosterior(Posterior):
    """Gaussian over the parameters in S; all others stay at their value."""

    indices: Tensor  # S (k,)
    prior: Tensor  # v_S (k,)
    factor: Tensor  # L (k, k) or (N·C, N·C)
    condition: float  # κ = λmax(A′ᵀA′), or a harmless bound of it
    count_freedom: Callable[[], float]
    memory: int
    form: ClassVar[Form]
    shares_cancel: ClassVar[bool]  # whether small own shares have lost digits

    @cached_property
    def freedom(self) -> float:
        return self.count_freedom()

    def tensors(self) -> dict[str, Tensor]:
        """Everything to store besides numbers."""
        return {"indices": self.indices, "prior": self.prior, "factor": self.factor}

    def covariance(self, jacobian: Jacobian) -> Tensor:
        C, chunks = n_outputs(jacobian), column_chunks(jacobian, self.indices, self.memory)
        return torch.cat([self.column_covariance(J_S, C) for _, J_S in chunks])

    @abstractmethod
    def column_covariance(self, J_S: Tensor, n_outputs: int) -> Tensor:
        """G_S Ω_SS⁻¹ G_Sᵀ of each row for J_Sᵀ (k, m·C), which is overwritten → (m, C, C)."""

    @abstractmethod
    def serving_covariance(self, n_outputs: int) -> Callable[[Tensor], Tensor]:
        """`column_covariance` for many small batches: what does not depend on the rows is computed once, now."""

    @abstractmethod
    def draw(self, count: int, seed: int) -> Tensor:
        """Deviations of the parameters in S, each column N(0, Ω_SS⁻¹) (k, count)."""

    def _normal(self, seed: int, count: int) -> Callable[[int], Tensor]:
        """rows → N(0, 1) numbers (rows, count), drawn on the CPU so that every device gets the same ones."""
        device, generator = self.factor.device, torch.Generator().manual_seed(seed)
        return lambda rows: torch.randn(rows, count, dtype=torch.float64, generator=generator).to(device)

    @abstractmethod
    def own_shares(self, precision: Precision) -> Tensor:
        """A_n Ω⁻¹ A_nᵀ of every training row (N, C, C)."""


def natural_form(k: int, rows: int) -> Form:
    """The form with the smaller matrix to factorise."""
    return "primal" if k <= rows else "dual"


def subnet_bytes(k: int, rows: int, form: Form) -> int:
    """Memory for the matrices of a sub-network's posterior while it is fitted."""
    return 8 * (k * k if form == "primal" else rows * (rows + k))


def require_room(precision: Precision, needed: int, what: str, reason: Reason = Reason.NO_ROOM_FOR_SUBNET) -> None:
    """Refuse matrices that are larger than the memory budget."""
    if needed > precision.memory:
        allowed = f"more than the {precision.memory / 2**30:.2g} GiB allowed"
        raise RunError(f"{what} needs about {needed / 2**30:.2g} GiB, {allowed}", reason=reason)


def require_room_for_subnet(precision: Precision, k: int, form: Form) -> None:
    """Refuse a posterior over k parameters that is larger than the memory budget."""
    rows = precision.n_rows
    require_room(precision, subnet_bytes(k, rows, form), f"a posterior over {k} parameters with {rows} rows")
