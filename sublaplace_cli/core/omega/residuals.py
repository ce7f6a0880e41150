"""Residuals computed from the rows themselves, where the Gram matrix K = A V⁻¹ Aᵀ has lost digits."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..jacobian.rows import TILE_SHARE, Jacobian, block_groups, loaded, n_outputs, row_tiles
from ..jacobian.sharded import ShardedJacobian, local_part, workers_of
from ..workers import LEADER, collective
from .row_sums import weigh_rows


@collective
def residual_products(
    jacobian: Jacobian, root: Tensor, prior: Tensor, other: Jacobian, chosen: Tensor, w: Tensor, memory: int
) -> Tensor:
    """(G − wᵀA) V⁻¹ (G − wᵀA)ᵀ for the C gradients G of chosen rows of another Jacobian (r, C, C); A has rows WᵀJ."""
    u, C = weigh_rows(w, root), n_outputs(other)  # Aᵀw = Jᵀ(Ww)
    products = torch.zeros(len(chosen), C, C, dtype=torch.float64, device=w.device)
    for group in block_groups(jacobian, other):
        for part in _parts(jacobian, group, len(chosen), C, memory):
            pulled = _pulled(jacobian, u[:, part.start * C : part.stop * C], group, memory)
            for place, gradients in _own_gradients(other, chosen[part], group):
                for total, G, block in zip(pulled, gradients, (jacobian.templates[i] for i in group), strict=True):
                    residual = (G - total[:, place * C : (place + 1) * C].T) * prior[block.span].rsqrt()
                    products[part][place] += residual @ residual.T
    return workers_of(jacobian).sum_to_leader(products)


@collective
def system_residual(
    jacobian: Jacobian, root: Tensor, prior: Tensor, other: Jacobian, chosen: Tensor, w: Tensor, memory: int
) -> Tensor:
    """A V⁻¹(Gᵀ − Aᵀw) − w for the same rows (N·C, r·C): the residual of (I + K) w = A V⁻¹ Gᵀ without K."""
    # Compute the small vectors Gᵀ − Aᵀw first: this avoids the rounding of A V⁻¹ Gᵀ.
    u, workers, (own, rows) = weigh_rows(w, root), workers_of(jacobian), local_part(jacobian)
    N, own_outputs, C = len(jacobian.outputs), n_outputs(jacobian), n_outputs(other)
    pushed = torch.zeros(len(own.outputs) * own_outputs, w.shape[1], dtype=torch.float64, device=w.device)
    for group in block_groups(jacobian, other):
        spans = [jacobian.templates[i].span for i in group]
        for part in _parts(jacobian, group, len(chosen), C, memory // 2):
            columns = slice(part.start * C, part.stop * C)
            pulled = _pulled(jacobian, u[:, columns], group, memory)
            residuals = [torch.zeros_like(total) for total in pulled]
            for place, gradients in _own_gradients(other, chosen[part], group):
                for residual, G in zip(residuals, gradients, strict=True):
                    residual[:, place * C : (place + 1) * C] = G.T
            for residual, total, span in zip(residuals, pulled, spans, strict=True):
                workers.sum_to_leader(residual)
                workers.broadcast(residual, LEADER)
                residual.sub_(total).div_(prior[span].unsqueeze(1))
            for a, b, blocks in loaded(own, row_tiles(own, memory, group), group):
                for residual, block in zip(residuals, blocks, strict=True):
                    pushed[a * own_outputs : b * own_outputs, columns] += block.push(residual)
    whole = pushed.new_zeros(N, own_outputs, w.shape[1])
    whole[rows] = pushed.reshape(-1, own_outputs, w.shape[1])
    return weigh_rows(workers.sum_to_leader(whole).flatten(0, 1), root.mT) - w


def _parts(jacobian: Jacobian, group: list[int], n_rows: int, C: int, memory: int) -> list[slice]:
    """Slices of the chosen rows whose vectors over the parameters of a group fit into a share of the memory."""
    width = sum(jacobian.templates[i].width for i in group)
    step = max(1, memory // TILE_SHARE // (8 * C * width))
    return [slice(first, min(first + step, n_rows)) for first in range(0, n_rows, step)]


def _pulled(jacobian: Jacobian, u: Tensor, group: list[int], memory: int) -> list[Tensor]:
    """Jᵀu for each block of a group (width, r), on every worker."""
    C, workers = n_outputs(jacobian), workers_of(jacobian)
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
    """(place among the chosen rows, G (C, width) by block) of those that this worker holds."""
    own, _ = local_part(other)
    for place, row in enumerate(chosen.tolist()):
        if isinstance(other, ShardedJacobian):
            if int(other.owners[row]) != other.workers.rank:
                continue
            row = other.local_number(row)
        yield place, [block.dense().values[0].double() for block in own.load(row, row + 1, group)]
