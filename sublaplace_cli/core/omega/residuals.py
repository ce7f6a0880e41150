"""Residuals formed from the rows themselves, where the Gram matrix has lost digits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..jacobian.rows import TILE_SHARE, Jacobian, block_groups, loaded, row_tiles
from ..jacobian.sharded import ShardedJacobian, local_part, workers_of
from ..workers import LEADER, collective
from .weighting import weigh_rows


@collective
def residual_norms(
    jacobian: Jacobian, root: Tensor, prior: Tensor, other: Jacobian, chosen: Tensor, w: Tensor, memory: int
) -> Tensor:
    """‖g − Aᵀw‖² in the metric V⁻¹ for chosen rows g (flat over M·C) of another Jacobian; A has the rows WᵀJ."""
    u = weigh_rows(w, root)  # Aᵀw = Jᵀ(Ww)
    totals = torch.zeros(len(chosen), dtype=torch.float64, device=w.device)
    for group in block_groups(jacobian, other):
        width = sum(jacobian.templates[i].width for i in group)
        step = max(1, memory // TILE_SHARE // (8 * width))
        for left in range(0, len(chosen), step):
            part = slice(left, left + step)
            totals[part] += _group_residual(jacobian, prior, other, chosen[part], u[:, part], group, memory)
    return workers_of(jacobian).sum_to_leader(totals)


def _group_residual(
    jacobian: Jacobian, prior: Tensor, other: Jacobian, chosen: Tensor, u: Tensor, group: list[int], memory: int
) -> Tensor:
    C, workers = jacobian.outputs.shape[1], workers_of(jacobian)
    own, rows = local_part(jacobian)
    mine = u.reshape(-1, C, u.shape[1])[rows].flatten(0, 1)
    pulled = [torch.zeros(jacobian.templates[i].width, u.shape[1], dtype=torch.float64, device=u.device) for i in group]
    for a, b, blocks in loaded(own, row_tiles(own, memory, group), group):
        for total, block in zip(pulled, blocks, strict=True):
            total += block.pull(mine[a * C : b * C])
    for total in pulled:
        workers.sum_to_leader(total)
        workers.broadcast(total, LEADER)
    result = torch.zeros(len(chosen), dtype=torch.float64, device=u.device)
    theirs, _ = local_part(other)
    for column, row in enumerate((chosen // C).tolist()):
        place = other.local_number(row) if isinstance(other, ShardedJacobian) else row
        if isinstance(other, ShardedJacobian) and not other.owns(row):
            continue
        for total, block in zip(pulled, theirs.load(place, place + 1, group), strict=True):
            residual = block.dense().flat[int(chosen[column]) % C].double() - total[:, column]
            result[column] += (residual.square() / prior[block.span]).sum()
    return result
