"""Certified intervals of the full posterior's variances at test rows, a batch of gradients at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ....errors import NumericsError, Reason
from ...gaussian import diagonal_covariance
from ...jacobian.rows import Jacobian, n_outputs
from ...linalg import row_products
from ...omega.precision import Precision
from ...omega.row_sums import pull
from ...progress import NoProgress, Progress, ProgressFactory
from .block_solver import solve_block
from .preconditioners import Preconditioner, no_preconditioner
from .system import System

# Gradients in a batch: they use each other's directions, so more need fewer products each, until memory is short.
MOST_AT_ONCE = 256
# Vectors over the parameters and over the training rows that are alive per gradient of a batch, and the share of the
# memory that they may take; tiles of rows and the preconditioner need the rest.
PARAMETER_VECTORS, ROW_VECTORS, BATCH_SHARE = 5, 12, 2
SAFETY = 0.9  # of the tolerance: the recurrences stop there, so that rounding rarely makes a second round necessary
LEAST_GAIN = 0.5  # a round that narrows no interval to this part of its width is the last


@dataclass(frozen=True)
class Goal:
    """Each σ to within ± `tolerance` of its middle, with at most so many products with K for a batch of gradients."""

    tolerance: float
    most_steps: int


@dataclass(frozen=True)
class CertifiedVariances:
    """Intervals of the variance at every row and output (M, C), and the covariances of each row's outputs."""

    low: Tensor
    high: Tensor
    covariance: Tensor  # (M, C, C): on the diagonal, squares of the middles of the intervals of σ
    tolerance: float  # that was asked for
    steps: int  # products with K: each reads all training rows twice

    @property
    def std(self) -> Tensor:
        """The middle of the interval of σ (M, C)."""
        return (self.low.sqrt() + self.high.sqrt()) / 2

    @property
    def half_width(self) -> Tensor:
        """Of the interval of σ, relative to its middle (M, C)."""
        return half_width(self.low, self.high)

    @property
    def missed(self) -> Tensor:
        """Rows with an output whose interval is wider than the tolerance (m,)."""
        return (self.half_width > self.tolerance).any(1).nonzero().squeeze(1)


class Solutions(Protocol):
    """Keeps the approximate solutions of an unfinished batch, so that an interrupted run need not start it again."""

    def load(self, first_row: int, shape: tuple[int, int]) -> Tensor | None:
        """Those of the batch of this shape (N·C, m·C) that starts with this row, as they were kept last."""

    def is_due(self) -> bool:
        """Whether they should be kept now."""

    def keep(self, first_row: int, z: Tensor) -> None: ...


class NotKept(Solutions):
    """The default: a batch that is interrupted starts again."""

    def load(self, first_row: int, shape: tuple[int, int]) -> None:
        return None

    def is_due(self) -> bool:
        return False

    def keep(self, first_row: int, z: Tensor) -> None: ...


@dataclass
class _Watch:
    """Shows how many rows of one output are done, and the widest interval."""

    bar: Progress
    label: str
    tolerance: float
    finished: int  # of the batches before this one, and of the rounds before this one
    shown: int
    step: int = 0

    def __call__(self, squares: Tensor, u: Tensor) -> None:
        """The state before a step: squared residuals and bounds u of the columns of this round."""
        low = (u - squares).clamp(min=0.0)
        done = self.finished + int(within(low, u, self.tolerance).sum())
        self.step += 1
        widest = f"the widest ± {100 * float(half_width(low, u).max()):.3g} %"
        self.bar.describe(f"{self.label}, step {self.step}, {widest}")
        self.bar.advance(max(0, done - self.shown))
        self.shown = max(self.shown, done)


def certified_variances(
    precision: Precision,
    test: Jacobian,
    tolerance: float,
    most_steps: int,
    preconditioner: Preconditioner | None = None,
    progress: ProgressFactory = NoProgress,
) -> CertifiedVariances:
    """Variances of the full posterior, each standard deviation known to within ± `tolerance` of its midpoint.

    `most_steps` is the most products with K for one batch of gradients; rows that would need more are `missed`.
    """
    system = System(precision, preconditioner or no_preconditioner(precision))
    goal = Goal(tolerance, most_steps)
    return joined_batches([found for _, found in certified_batches(system, test, goal, 0, progress)])


def certified_batches(
    system: System,
    test: Jacobian,
    goal: Goal,
    first_row: int = 0,
    progress: ProgressFactory = NoProgress,
    label: str = "certified variances of the full posterior",
    solutions: Solutions | None = None,
) -> Iterator[tuple[slice, CertifiedVariances]]:
    """(rows, their variances) of one batch after the other, from a row on; batches lie on a fixed grid."""
    n_rows, C, step = len(test.outputs), n_outputs(test), rows_at_once(system.precision, n_outputs(test))
    with progress(label, n_rows * C) as bar:
        bar.advance(first_row * C)
        watch = _Watch(bar, label, goal.tolerance, first_row * C, first_row * C)
        for first in range(first_row, n_rows, step):
            rows = slice(first, min(first + step, n_rows))
            G, kept = _gradients(system.precision, test, rows), solutions or NotKept()
            yield rows, _certify(system, G, C, goal.most_steps, watch, kept, first)
            watch.finished = rows.stop * C


def joined_batches(batches: list[CertifiedVariances]) -> CertifiedVariances:
    """Of all rows."""
    low, high, covariance = (torch.cat([getattr(each, name) for each in batches]) for name in _BY_ROW)
    return CertifiedVariances(low, high, covariance, batches[0].tolerance, sum(each.steps for each in batches))


_BY_ROW = ("low", "high", "covariance")


def half_width(low: Tensor, high: Tensor) -> Tensor:
    """Half of the width of the interval of σ, relative to its midpoint; 0 where σ is 0."""
    return ((high.sqrt() - low.sqrt()) / (high.sqrt() + low.sqrt())).nan_to_num(0.0)


def within(low: Tensor, high: Tensor, tolerance: float) -> Tensor:
    """Whether σ is known to within ± the tolerance of the midpoint of its interval, from bounds of σ²."""
    return half_width(low, high) <= tolerance


def rows_at_once(precision: Precision, C: int) -> int:
    """Rows whose gradients' vectors over the parameters and the training rows fit into a share of the memory."""
    return max(1, vectors_at_once(precision.n_rows, len(precision.prior), precision.memory) // C)


def vectors_at_once(rows: int, p: int, memory: int) -> int:
    """Gradients in a batch, at least one."""
    return max(1, min(MOST_AT_ONCE, memory // BATCH_SHARE // vector_bytes(rows, p)))


def vector_bytes(rows: int, p: int) -> int:
    """Of all that is alive for one gradient of a batch."""
    return 8 * (PARAMETER_VECTORS * p + ROW_VECTORS * rows)


def _gradients(precision: Precision, test: Jacobian, rows: slice) -> Tensor:
    """Test gradients of some rows in the prior's metric (p, m·C), numbered by row and output."""
    C = n_outputs(test)
    columns = slice(rows.start * C, rows.stop * C)
    chosen = torch.zeros(len(test.outputs) * C, columns.stop - columns.start, dtype=torch.float64)
    chosen[columns].fill_diagonal_(1.0)
    return pull(test, chosen.to(precision.root.device), precision.memory).mul_(precision.prior.rsqrt().unsqueeze(1))


def _certify(
    system: System, G: Tensor, C: int, most_steps: int, watch: _Watch, solutions: Solutions, first_row: int
) -> CertifiedVariances:
    """Of a batch of gradients (p, m·C)."""
    # Half-width t of σ means low = high·((1 − t)/(1 + t))²: the residual may be the rest of it.
    target = SAFETY * watch.tolerance
    share, before = 1 - ((1 - target) / (1 + target)) ** 2, watch.finished
    root, shape = system.preconditioner.inverse_root, (system.precision.n_rows, G.shape[1])
    known = solutions.load(first_row, shape)
    z = G.new_zeros(shape) if known is None else known
    found, steps, dtype = system.certificate(G, known), 1, system.row_dtype
    low, high = found.low, found.high
    if not bool(torch.isfinite(high).all()):
        raise NumericsError("the gradient of a row is not finite", reason=Reason.GRADIENT_NOT_FINITE)
    left = torch.arange(G.shape[1], device=G.device)  # the columns that are not finished

    def tell(squares: Tensor, u: Tensor, X: Tensor) -> None:
        watch(squares, u)
        if solutions.is_due():
            solutions.keep(first_row, z.index_add(1, left, root(X)))

    while True:
        still = ~within(low[left], high[left], watch.tolerance)
        left, residual = left[still], found.residual[:, still]
        watch.finished = before + G.shape[1] - len(left)
        if not len(left) or steps + 2 > most_steps:
            break
        # Nothing depends on how well the solver does: float32 products make it faster, and the certificate is exact.
        multiply = partial(system.multiply, dtype=dtype)
        changes, taken = solve_block(multiply, root(residual), found.high[still], share, most_steps - steps - 1, tell)
        width = half_width(low[left], high[left])
        z[:, left] += root(changes)
        found, steps = system.certificate(G[:, left], z[:, left]), steps + taken + 1
        # All intervals hold: so does what they have in common.
        low[left], high[left] = torch.maximum(low[left], found.low), torch.minimum(high[left], found.high)
        if not bool((half_width(low[left], high[left]) <= LEAST_GAIN * width).any()):
            if dtype == torch.float64:
                break
            dtype = torch.float64
    low, high = low.reshape(-1, C), high.reshape(-1, C)
    return CertifiedVariances(low, high, _covariance(system, G, z, low, high), watch.tolerance, steps)


def _covariance(system: System, G: Tensor, z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """HᵀH + ZᵀZ of each row, which is the covariance and a small excess, with the middles of the intervals."""
    C, std = low.shape[1], (low.sqrt() + high.sqrt()) / 2
    if C == 1:
        return diagonal_covariance(std.square())
    found = row_products(system.rest(G, z), C) + row_products(z, C)
    own = found.diagonal(dim1=1, dim2=2)
    factor = torch.where(own > 0, std / own.clamp(min=torch.finfo(torch.float64).tiny).sqrt(), torch.zeros_like(std))
    return found * factor.unsqueeze(2) * factor.unsqueeze(1)
