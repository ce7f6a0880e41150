"""A sub-network's posterior in primal form: one k × k factor. The smaller form where k ≤ N·C."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import linalg
from ..omega.precision import Precision
from ..panels.products import add_upper
from .subnet import WEAK_DATA, Form, SubnetPosterior, require_room, require_room_for_subnet, subnet_bytes


@dataclass(frozen=True)
class SubnetPrimal(SubnetPosterior):
    """L Lᵀ = I + A′ᵀA′ over S."""

    form: ClassVar[Form] = "primal"
    shares_cancel: ClassVar[bool] = False

    def column_covariance(self, J_S: Tensor, n_outputs: int) -> Tensor:
        return self.metric_covariance(J_S.mul_(self.prior.rsqrt().unsqueeze(1)), n_outputs)

    def metric_covariance(self, g: Tensor, n_outputs: int) -> Tensor:
        """The same for g′ in the prior's metric (k, m·C)."""
        return linalg.row_products(linalg.solve_lower(self.factor, g), n_outputs)

    def serving_covariance(self, n_outputs: int) -> Callable[[Tensor], Tensor]:
        L = self.factor * self.prior.sqrt().unsqueeze(1)
        return lambda J_S: linalg.row_products(linalg.solve_lower(L, J_S), n_outputs)

    def draw(self, count: int, seed: int) -> Tensor:
        normal = self._normal(seed, count)(len(self.indices))
        return linalg.solve_lower_transposed(self.factor, normal) * self.prior.rsqrt().unsqueeze(1)

    def own_shares(self, precision: Precision) -> Tensor:
        C, parts = precision.root.shape[1], []
        for A in precision.column_chunks(self.indices):
            X = linalg.solve_lower(self.factor, A).reshape(len(A), -1, C)  # (k, m, C)
            parts.append(torch.einsum("knc,knd->ncd", X, X))
        return torch.cat(parts)


def fit_primal(precision: Precision, S: Tensor, ks: Sequence[int], columns: Tensor | None = None) -> list[SubnetPrimal]:
    """Posteriors over the first k of S for each k: the factor of a prefix is the leading block of the whole factor."""
    require_room_for_subnet(precision, len(S), "primal")
    v = precision.prior[S]
    L, conditions = primal_factor(precision, S, ks, columns)

    def freedom(k: int) -> float:
        own = L[:k, :k]
        plain = float((1.0 - linalg.inverse_square_sums(own)).clamp(min=0.0).sum())  # k − tr(Ω⁻¹V)
        if plain >= WEAK_DATA * k:
            return plain  # … which cancels where the data say little; ‖L⁻¹A′ᵀ‖² does not
        return sum(float(linalg.solve_lower(own, A).square_().sum()) for A in precision.column_chunks(S[:k]))

    return [
        SubnetPrimal(S[:k], v[:k], L[:k, :k], condition, lambda k=k: freedom(k), precision.memory)  # type: ignore[misc]
        for k, condition in zip(ks, conditions, strict=True)
    ]


def primal_factor(
    precision: Precision, S: Tensor, ks: Sequence[int], columns: Tensor | None = None
) -> tuple[Tensor, list[float]]:
    """L of I + A′ᵀA′ in the order of S, and κ of each leading block of size k; `columns` is A′ᵀ if known."""
    if columns is not None:
        B = torch.zeros(len(S), len(S), dtype=torch.float64, device=S.device)
        add_upper(B, columns[: len(S)])
    else:
        B = precision.submatrix(S)
    linalg.mirrored(B)
    conditions = [linalg.condition_of(B[:k, :k]) for k in ks]
    if max(conditions) > linalg.QR_CONDITION:
        del B
        require_room(precision, 4 * subnet_bytes(len(S), 0, "primal"), f"an ill-conditioned posterior over {len(S)}")
        return linalg.factor_of_rows((A.T for A in precision.column_chunks(S)), len(S), precision.prior), conditions
    B.diagonal().add_(1.0)
    return linalg.safe_cholesky(B, lambda i: precision.layout.describe(int(S[i]))), conditions
