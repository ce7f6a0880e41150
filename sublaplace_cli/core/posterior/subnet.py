"""What the two forms of a sub-network's posterior share: the protocol, their sizes, and which form is smaller."""

from collections.abc import Iterator
from typing import Literal, Protocol

from torch import Tensor

from ...errors import Reason, RunError
from ..jacobian.rows import Jacobian
from ..omega.precision import Precision
from ..omega.row_sums import column_chunks
from . import Posterior

Form = Literal["primal", "dual"]
WEAK_DATA = 1e-3  # degrees of freedom per row below which their plain difference would lose more than 13 digits


class SubnetPosterior(Posterior, Protocol):
    """Gaussian over the parameters in S; all others stay at their value."""

    @property
    def form(self) -> Form: ...
    @property
    def indices(self) -> Tensor: ...  # S (k,)
    @property
    def prior(self) -> Tensor: ...  # v_S (k,)
    @property
    def factor(self) -> Tensor: ...
    @property
    def condition(self) -> float: ...  # κ = λmax(A′ᵀA′), or a harmless bound of it

    def tensors(self) -> dict[str, Tensor]:
        """Everything to store besides numbers."""

    def column_variance(self, J_S: Tensor) -> Tensor:
        """g_Sᵀ Ω_SS⁻¹ g_S for J_Sᵀ (k, m·C), which is overwritten → (m·C,)."""

    def draw(self, count: int, seed: int) -> Tensor:
        """Deviations of the parameters in S, each column N(0, Ω_SS⁻¹) (k, count)."""

    def own_shares(self, precision: Precision) -> Tensor:
        """A_n Ω⁻¹ A_nᵀ of every training row (N, C, C)."""

    @property
    def shares_cancel(self) -> bool:
        """Whether small own shares have lost digits."""


def natural_form(k: int, rows: int) -> Form:
    """The form with the smaller matrix to factorise."""
    return "primal" if k <= rows else "dual"


def subnet_bytes(k: int, rows: int, form: Form) -> int:
    """Memory for the matrices of a sub-network's posterior while it is fitted."""
    return 8 * (k * k if form == "primal" else rows * (rows + k))


def require_room(precision: Precision, needed: int, what: str, reason: Reason = Reason.NO_ROOM_FOR_SUBNET) -> None:
    """Refuse matrices that are larger than the memory budget."""
    if needed > precision.memory:
        raise RunError(
            f"{what} needs about {needed / 2**30:.2g} GiB, more than the {precision.memory / 2**30:.2g} GiB allowed",
            reason=reason,
        )


def variance_by_chunks(posterior: SubnetPosterior, jacobian: Jacobian, memory: int) -> Iterator[Tensor]:
    """`column_variance` of all rows, one chunk of rows at a time."""
    for _, J_S in column_chunks(jacobian, posterior.indices, memory):
        yield posterior.column_variance(J_S)
