"""A block is the part of a Jacobian that belongs to one parameter tensor, and answers questions about it.

Every answer is float64 whatever the dtype of the passes, and adds up: over row chunks for the score and
`pull`, over blocks for the Gram and the norms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Columns turned into float64 at a time: large enough for GEMM to run at full speed,
# small enough that the float64 copy of a wide layer never exists as a whole.
PANEL = 4096


@dataclass(frozen=True)
class DenseBlock:
    """Rows of the Jacobian for the flat range [start, start + width)."""

    start: int
    values: Tensor  # (m, C, width)

    @property
    def width(self) -> int:
        return self.values.shape[2]

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.width)

    @property
    def flat(self) -> Tensor:
        return self.values.reshape(-1, self.width)  # (m·C, width)

    def squares(self, W: Tensor | None = None) -> Tensor:
        """Σₙ diag(Jₙᵀ Hₙ Jₙ) over this block's rows (width,); unweighted without W."""
        return torch.cat([self._panel_squares(cut, W) for cut in self._panels()])

    def _panel_squares(self, cut: slice, W: Tensor | None) -> Tensor:
        J = self.values[:, :, cut].double()  # (m, C, panel)
        A = J if W is None else weighted(J, W)
        return A.square().sum(dim=(0, 1))

    def columns(self, local: Tensor) -> Tensor:
        """Columns at these positions within the block (m, C, len(local))."""
        return self.values.index_select(2, local).double()

    def gram(self, other: DenseBlock, prior: Tensor) -> Tensor:
        """J V⁻¹ J′ᵀ of this block's columns (m·C, m′·C), `prior` being its part of v."""
        total: Tensor | None = None
        for cut in self._panels():
            left = self.flat[:, cut].double() / prior[cut]
            right = other.flat[:, cut].double()
            total = left @ right.T if total is None else torch.addmm(total, left, right.T)
        assert total is not None, "a block has at least one column"
        return total

    def norms(self, prior: Tensor) -> Tensor:
        """Squared row norms in the metric V⁻¹ (m·C,)."""
        parts = [(self.flat[:, cut].double().square() / prior[cut]).sum(1) for cut in self._panels()]
        return torch.stack(parts).sum(0)

    def pull(self, u: Tensor) -> Tensor:
        """Jᵀ u for coefficients u of the rows (m·C, r) → (width, r)."""
        return torch.cat([self.flat[:, cut].double().T @ u for cut in self._panels()])

    def rows(self, start: int, stop: int) -> DenseBlock:
        """The same block for some of its rows."""
        return DenseBlock(self.start, self.values[start:stop])

    def _panels(self) -> Iterator[slice]:
        for left in range(0, self.width, PANEL):
            yield slice(left, min(left + PANEL, self.width))


def weighted(J: Tensor, W: Tensor) -> Tensor:
    """Rows Wₙᵀ Jₙ: (m, C, q) with (m, C, C) → (m, C, q)."""
    if W.shape[1] == 1:  # one output: a number a row, no need for a batched product
        return J * W
    return torch.einsum("ncd,ncq->ndq", W, J)
