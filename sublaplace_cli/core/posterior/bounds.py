"""Theorem 1 as a run-time check, and bounds of the full posterior's variance if its Gram matrix is too large.

Lower bound: any sub-network's variance (Theorem 1). Upper bound: the full posterior of some of the training rows,
because more data never increase the variance; with several disjoint sets of rows, the smallest per test row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import NumericsError, Reason
from ..jacobian.rows import Jacobian
from ..jacobian.sharded import some_rows
from ..omega.gram_float32 import allowed_error
from ..omega.precision import Precision
from .full import fit_full

MOST_SETS = 4  # of rows: each costs another Gram matrix and improves the bound less than the one before


@dataclass(frozen=True)
class Bracket:
    """Bounds of the full posterior's variance at every test row and output (M, C)."""

    low: Tensor
    high: Tensor
    n_sets: int


def bracket(
    precision: Precision, test: Jacobian, products: Tensor, full_rows: int, subnets: Sequence[Tensor]
) -> Bracket:
    """Bounds from sub-network variances and from disjoint runs of `full_rows` training rows."""
    starts = range(0, len(precision.root) - full_rows + 1, full_rows)[:MOST_SETS]
    highs = []
    for start in starts:
        rows = range(start, start + full_rows)
        some = replace(precision, jacobian=some_rows(precision.jacobian, rows), root=precision.root[start : rows.stop])
        highs.append(fit_full(some).covariance(test, products).diagonal(dim1=1, dim2=2))
    high = torch.stack(highs).amin(0)
    low = torch.stack([torch.zeros_like(high), *subnets]).amax(0)
    allowed = allowed_error(precision.gram_dtype)
    require_not_larger(low, high, products, "a sub-network", f"the full posterior of {full_rows} rows", allowed)
    return Bracket(torch.minimum(low, high), high, len(highs))


def require_not_larger(
    smaller: Tensor, larger: Tensor, products: Tensor, who: str, than: str, allowed: float = 0.0
) -> None:
    """Refuse variances that break PV(S) ≤ PV(S′), S ⊆ S′, by more than rounding: 1e-9·PV + 400·eps·‖g‖²_{V⁻¹}.

    `allowed` is the error of the larger one, as a share of it, that is known of.
    """
    tolerance = (1e-9 + allowed) * larger + 400 * torch.finfo(torch.float64).eps * products.diagonal(dim1=1, dim2=2)
    broken = ~(smaller <= larger + tolerance)  # a NaN breaks it too
    if bool(broken.any()):
        row, output = (int(i) for i in broken.nonzero()[0])
        found = f"the variance of {who} is {float(smaller[row, output]):.12g}"
        found += f", that of {than} is {float(larger[row, output]):.12g}"
        found += f"; {int(broken.sum())} of {broken.numel()} values are affected"
        problem = f"Theorem 1 is broken at test row {row}, output {output}: {found}"
        raise NumericsError(problem, reason=Reason.THEOREM_1_BROKEN)
