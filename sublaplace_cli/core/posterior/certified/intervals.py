"""Certified intervals of the full posterior's variances at test rows, a batch of gradients at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ....errors import NumericsError, Reason
from ...jacobian.rows import Jacobian, n_outputs
from ...omega.precision import Precision
from ...omega.row_sums import pull
from ...progress import NoProgress, Progress, ProgressFactory
from .block_solver import solve_block
from .preconditioners import Preconditioner, no_preconditioner
from .system import System

# Vectors over the parameters and over the training rows that are alive per gradient of a batch, and the share of the
# memory that they may take; tiles of rows and the preconditioner need the rest.
PARAMETER_VECTORS, ROW_VECTORS, BATCH_SHARE = 5, 12, 2
LABEL = "certified variances of the full posterior"
SAFETY = 0.9  # of the tolerance: the recurrences stop there, so that rounding rarely makes a second round necessary
LEAST_GAIN = 0.5  # a round that narrows no interval to this part of its width is the last


@dataclass(frozen=True)
class CertifiedVariances:
    """Intervals of the variance at every row and output (M, C)."""

    low: Tensor
    high: Tensor
    steps: int  # products with K: each reads all training rows twice
    missed: Tensor  # rows with an output whose interval is wider than the tolerance (m,)


@dataclass
class _Watch:
    """Shows how many rows of one output are done, and the widest interval."""

    bar: Progress
    tolerance: float
    finished: int = 0  # of the batches before this one, and of the rounds before this one
    shown: int = 0

    def __call__(self, squares: Tensor, u: Tensor) -> None:
        """The state before a step: squared residuals and bounds u of the columns of this round."""
        low = (u - squares).clamp(min=0.0)
        done = self.finished + int(within(low, u, self.tolerance).sum())
        self.bar.describe(f"{LABEL}, the widest ± {100 * float(half_width(low, u).max()):.3g} %")
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
    count, C = len(test.outputs) * n_outputs(test), n_outputs(test)
    bounds, steps, at_once = [], 0, batch_size(precision)
    with progress(LABEL, count) as bar:
        watch = _Watch(bar, tolerance)
        for first in range(0, count, at_once):
            gradients = _gradients(precision, test, slice(first, min(first + at_once, count)))
            low, high, taken = _certify(system, gradients, most_steps, watch)
            bounds.append(torch.stack([low, high]))
            steps += taken
            watch.finished = first + gradients.shape[1]
    low, high = torch.cat(bounds, dim=1).reshape(2, -1, C)
    missed = ~within(low, high, tolerance).all(1)
    return CertifiedVariances(low, high, steps, missed.nonzero().squeeze(1))


def half_width(low: Tensor, high: Tensor) -> Tensor:
    """Half of the width of the interval of σ, relative to its midpoint; 0 where σ is 0."""
    return ((high.sqrt() - low.sqrt()) / (high.sqrt() + low.sqrt())).nan_to_num(0.0)


def within(low: Tensor, high: Tensor, tolerance: float) -> Tensor:
    """Whether σ is known to within ± the tolerance of the midpoint of its interval, from bounds of σ²."""
    return half_width(low, high) <= tolerance


def batch_size(precision: Precision) -> int:
    """Gradients whose vectors over the parameters and the training rows fit into a share of the memory."""
    vectors = PARAMETER_VECTORS * len(precision.prior) + ROW_VECTORS * precision.n_rows
    return max(1, precision.memory // BATCH_SHARE // (8 * vectors))


def _gradients(precision: Precision, test: Jacobian, columns: slice) -> Tensor:
    """Some test gradients in the prior's metric (p, r), numbered by row and output."""
    chosen = torch.zeros(len(test.outputs) * n_outputs(test), columns.stop - columns.start, dtype=torch.float64)
    chosen[columns].fill_diagonal_(1.0)
    return pull(test, chosen.to(precision.root.device), precision.memory).mul_(precision.prior.rsqrt().unsqueeze(1))


def _certify(system: System, G: Tensor, most_steps: int, watch: _Watch) -> tuple[Tensor, Tensor, int]:
    """(low, high, steps) of a batch of gradients (p, r)."""
    # Half-width t of σ means low = high·((1 − t)/(1 + t))²: the residual may be the rest of it.
    target = SAFETY * watch.tolerance
    share, before = 1 - ((1 - target) / (1 + target)) ** 2, watch.finished
    root, z = system.preconditioner.inverse_root, G.new_zeros(system.precision.n_rows, G.shape[1])
    found, steps = system.certificate(G), 1
    low, high = found.low, found.high
    if not bool(torch.isfinite(high).all()):
        raise NumericsError("the gradient of a row is not finite", reason=Reason.GRADIENT_NOT_FINITE)
    left = torch.arange(G.shape[1], device=G.device)  # the columns that are not finished
    while True:
        still = ~within(low[left], high[left], watch.tolerance)
        left, residual = left[still], found.residual[:, still]
        watch.finished = before + G.shape[1] - len(left)
        if not len(left) or steps + 2 > most_steps:
            return low, high, steps
        changes, taken = solve_block(
            system.multiply, root(residual), found.high[still], share, most_steps - steps - 1, watch
        )
        width = half_width(low[left], high[left])
        z[:, left] += root(changes)
        found, steps = system.certificate(G[:, left], z[:, left]), steps + taken + 1
        # All intervals hold: so does what they have in common.
        low[left], high[left] = torch.maximum(low[left], found.low), torch.minimum(high[left], found.high)
        if not bool((half_width(low[left], high[left]) <= LEAST_GAIN * width).any()):
            return low, high, steps
