"""Products of rows that are written out, in strips of rows and panels of columns."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.arithmetic import Rows, add_row_products
from ..kernels.choice import takes_digits
from ..kernels.digits import DigitRows
from .sizes import sizes_of

Strips = Sequence[tuple[int, int]]  # [first, last) rows of each
Prior = Tensor | float  # a block's part of v, or its one value where it is known to be constant


MOST_CHANGES = 10_000  # of neighbouring prior precisions that are looked through


@dataclass(frozen=True)
class RowSquares:
    """Σₙ diag(JₙᵀHₙJₙ) of rows that are written out for their products: the bits of the sum by tiles of rows."""

    W: Tensor | None  # (N, C, C); None: H = I
    tiles: Strips  # rows that are added up at a time

    def of(self, J: Tensor, C: int) -> Tensor:
        """Over the rows of J (N·C, columns) → (columns,)."""
        total = J.new_zeros(J.shape[1])
        for a, b in self.tiles:
            total += panel_squares(J[a * C : b * C], None if self.W is None else self.W[a:b])
        return total


def panel_squares(J: Tensor, W: Tensor | None) -> Tensor:
    """Σₙ diag(JₙᵀHₙJₙ) with Hₙ = WₙWₙᵀ, over rows J (m·C, columns) float64."""
    if W is None:
        return J.square().sum(0)
    if W.shape[1] == 1:  # one output: weighted after the square
        return W.flatten().square() @ J.square()
    return weighted(J.unflatten(0, (-1, W.shape[1])), W).square().sum((0, 1))


def is_constant(prior: Tensor) -> bool:
    return bool((prior == prior[0]).all())


def constant_of(prior: Prior) -> float | None:
    """The one value of all entries, if there is one."""
    if isinstance(prior, float):
        return prior
    return float(prior[0]) if is_constant(prior) else None


def constants_of(prior: Tensor, spans: Sequence[slice]) -> list[Prior]:
    """The part of v at each span, as a number where it is constant; a device is asked only once for all of them."""
    changes = (prior[1:] != prior[:-1]).nonzero().squeeze(1)
    if len(changes) > MOST_CHANGES:
        return [prior[span] for span in spans]
    at, firsts = changes.tolist(), prior[[span.start for span in spans]].tolist()
    return [
        first if bisect_left(at, span.start) == bisect_left(at, span.stop - 1) else prior[span]
        for span, first in zip(spans, firsts, strict=True)
    ]


def in_metric(prior: Prior, cut: slice, *rows: Tensor) -> tuple[float, tuple[Tensor, ...]]:
    """(s, rows Y) with s·Y Y′ᵀ = X V⁻¹ X′ᵀ at these columns: the rows themselves where v is one number there."""
    part = prior if isinstance(prior, float) else prior[cut]
    v = constant_of(part)
    if v is not None:
        return 1 / v, rows
    assert isinstance(part, Tensor), "a number is constant"
    scale = part.rsqrt()
    return 1.0, tuple(X * scale for X in rows)


def add_upper(total: Tensor, X: Rows, strips: Strips | None = None, factor: float = 1.0) -> None:
    """total += factor·X Xᵀ on and above the diagonal, in strips that skip most of what lies below it."""
    if strips is None:
        step = sizes_of(total.device).gram.strip
        strips = [(a, min(a + step, len(X))) for a in range(0, len(X), step)]
    if isinstance(X, DigitRows) and takes_digits(total.device, X.panels[0].s):
        strips = joined_strips(strips)  # a kernel leaves out what lies below the diagonal
    for a, b in strips:
        add_row_products(total[a:b, a:], X[a:b], X[a:], factor, upper=True)


def add_products(total: Tensor, A: Rows, B: Rows, strips: Strips, factor: float = 1.0) -> None:
    """total += factor·A Bᵀ in the rows of the strips."""
    for a, b in strips:
        add_row_products(total[a:b], A[a:b], B, factor)


def joined_strips(strips: Strips) -> Strips:
    """Strips that follow each other as one."""
    joined: list[tuple[int, int]] = []
    for a, b in strips:
        if joined and joined[-1][1] == a:
            joined[-1] = joined[-1][0], b
        else:
            joined.append((a, b))
    return joined


def flat_strips(strips: Strips | None, n_rows: int, C: int, device: torch.device) -> Strips:
    """The requested strips, or narrow ones of all rows, as rows of the Gram matrix: C for each row."""
    return [(a * C, b * C) for a, b in (narrow_strips(None, n_rows, C, device) if strips is None else strips)]


def narrow_strips(strips: Strips | None, n_rows: int, C: int, device: torch.device) -> Strips:
    """The requested strips, or all rows, cut so that on a CPU the products of a strip stay in the cache."""
    step = max(1, sizes_of(device).gram.strip // C)
    return [(x, min(x + step, b)) for a, b in ([(0, n_rows)] if strips is None else strips) for x in range(a, b, step)]


def weighted(J: Tensor, W: Tensor) -> Tensor:
    """Rows Wₙᵀ Jₙ: (m, C, …) with (m, C, C) → (m, C, …)."""
    if W.shape[1] == 1:  # one output: one number per row, no batched product
        return J * W.reshape(-1, *[1] * (J.ndim - 1))
    return torch.einsum("ncd,nc...->nd...", W, J)
