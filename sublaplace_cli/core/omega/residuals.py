"""Residuals computed from the rows themselves, where the Gram matrix K = A V⁻¹ Aᵀ has lost digits."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..jacobian.rows import TILE_SHARE, Jacobian, block_groups, loaded, row_tiles
from ..jacobian.sharded import ShardedJacobian, local_part, workers_of
from ..workers import LEADER, collective
from .row_sums import weigh_rows


@collective
def residual_norms(
    jacobian: Jacobian, root: Tensor, prior: Tensor, other: Jacobian, chosen: Tensor, w: Tensor, memory: int
) -> Tensor:
    """‖g − Aᵀw‖² in the metric V⁻¹ for chosen rows g (flat over M·C) of another Jacobian; A has the rows WᵀJ."""
    u = weigh_rows(w, root)  # Aᵀw = Jᵀ(Ww)
    norms = torch.zeros(len(chosen), dtype=torch.float64, device=w.device)
    for group in block_groups(jacobian, other):
        for part in _parts(jacobian, group, len(chosen), memory):
            pulled = _pulled(jacobian, u[:, part], group, memory)
            for column, gradients in _own_gradients(other, chosen[part], group):
                for total, g, block in zip(pulled, gradients, (jacobian.templates[i] for i in group), strict=True):
                    residual = g - total[:, column]
                    norms[part][column] += (residual.square() / prior[block.span]).sum()
    return workers_of(jacobian).sum_to_leader(norms)


@collective
def system_residual(
    jacobian: Jacobian, root: Tensor, prior: Tensor, other: Jacobian, chosen: Tensor, w: Tensor, memory: int
) -> Tensor:
    """A V⁻¹(g − Aᵀw) − w for the same rows (N·C, len(chosen)): the residual of (I + K) w = A V⁻¹ g without K."""
    # Compute the small vector g − Aᵀw first: this avoids the rounding of A V⁻¹ g.
    u, workers, (own, rows) = weigh_rows(w, root), workers_of(jacobian), local_part(jacobian)
    N, C = jacobian.outputs.shape
    pushed = torch.zeros(len(own.outputs) * C, len(chosen), dtype=torch.float64, device=w.device)
    for group in block_groups(jacobian, other):
        spans = [jacobian.templates[i].span for i in group]
        for part in _parts(jacobian, group, len(chosen), memory // 2):
            pulled = _pulled(jacobian, u[:, part], group, memory)
            residuals = [torch.zeros_like(total) for total in pulled]
            for column, gradients in _own_gradients(other, chosen[part], group):
                for residual, g in zip(residuals, gradients, strict=True):
                    residual[:, column] = g
            for residual, total, span in zip(residuals, pulled, spans, strict=True):
                workers.sum_to_leader(residual)
                workers.broadcast(residual, LEADER)
                residual.sub_(total).div_(prior[span].unsqueeze(1))
            for a, b, blocks in loaded(own, row_tiles(own, memory, group), group):
                for residual, block in zip(residuals, blocks, strict=True):
                    pushed[a * C : b * C, part] += block.push(residual)
    whole = pushed.new_zeros(N, C, len(chosen))
    whole[rows] = pushed.reshape(-1, C, len(chosen))
    return weigh_rows(workers.sum_to_leader(whole).flatten(0, 1), root.mT) - w


def _parts(jacobian: Jacobian, group: list[int], count: int, memory: int) -> list[slice]:
    """Slices of `count` vectors over the parameters of a group, each within a share of the memory."""
    step = max(1, memory // TILE_SHARE // (8 * sum(jacobian.templates[i].width for i in group)))
    return [slice(left, min(left + step, count)) for left in range(0, count, step)]


def _pulled(jacobian: Jacobian, u: Tensor, group: list[int], memory: int) -> list[Tensor]:
    """Jᵀu for each block of a group (width, r), on every worker."""
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
    return pulled


def _own_gradients(other: Jacobian, chosen: Tensor, group: list[int]) -> Iterator[tuple[int, list[Tensor]]]:
    """(column, g by block) of the chosen rows that this worker holds."""
    C, (own, _) = other.outputs.shape[1], local_part(other)
    for column, index in enumerate(chosen.tolist()):
        row, output = divmod(index, C)
        if isinstance(other, ShardedJacobian):
            if int(other.owners[row]) != other.workers.rank:
                continue
            row = other.local_number(row)
        yield column, [block.dense().flat[output].double() for block in own.load(row, row + 1, group)]
