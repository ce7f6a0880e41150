"""Theorem 1 as a run-time check: PV(S) ≤ PV(S′) ≤ PV_full for S ⊆ S′, at every row and output."""

import torch
from torch import Tensor

from ...errors import NumericsError, Reason


def require_not_larger(smaller: Tensor, larger: Tensor, norms: Tensor, who: str, than: str) -> None:
    """Refuse variances that break the order by more than rounding: 1e-9·PV + 400·eps·‖g‖²_{V⁻¹}."""
    tolerance = 1e-9 * larger + 400 * torch.finfo(torch.float64).eps * norms.reshape(larger.shape)
    broken = ~(smaller <= larger + tolerance)  # a NaN breaks it too
    if bool(broken.any()):
        row, output = (int(i) for i in broken.nonzero()[0])
        found = f"the variance of {who} is {float(smaller[row, output]):.12g}"
        found += f", that of {than} is {float(larger[row, output]):.12g}"
        found += f"; {int(broken.sum())} of {broken.numel()} values are affected"
        problem = f"Theorem 1 is broken at test row {row}, output {output}: {found}"
        raise NumericsError(problem, reason=Reason.THEOREM_1_BROKEN)
