"""Pivots of a panel on a device: commands are queued, and the outcome is read once for many pivots."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import rounded

AT_ONCE = 64  # pivots between two reads of the outcome; those after the last valid one are discarded
Ends = Callable[[int, float, int], bool]  # (pivots before it, value, column) → whether to stop before this pivot


def pivots_on_device(B: Tensor, most: int, ends: Ends) -> tuple[list[int], list[float], Tensor]:
    """(columns, values, remaining diagonal) of the pivots of B in order, ties to the first, until `ends` or `most`."""
    rows = B.new_empty(min(most, len(B)), len(B))  # of the Cholesky factor
    d, first = B.diagonal().clone(), torch.arange(len(B), device=B.device)
    taken: list[int] = []
    pivots: list[float] = []
    while len(taken) < len(rows):
        done = len(taken)
        some = min(AT_ONCE, len(rows) - done)
        columns, values = first.new_empty(some), B.new_empty(some)
        for i in range(some):
            t = done + i
            sizes = rounded(d)
            best = torch.where(sizes == sizes.amax(), first, len(B) - 1).amin().reshape(1)  # the last where all is NaN
            pivot = d.index_select(0, best)
            earlier = rows[:t].index_select(1, best)
            row = (B.index_select(0, best).squeeze(0) - earlier.squeeze(1) @ rows[:t]) * pivot.rsqrt()
            rows[t] = row
            d = (d - row.square()).index_fill(0, best, 0.0)  # valid pivots are at least about 1
            columns[i : i + 1], values[i : i + 1] = best, pivot
        for column, value in zip(columns.tolist(), values.tolist(), strict=True):
            if ends(len(taken), value, column):
                return taken, pivots, B.diagonal() - rows[: len(taken)].square().sum(0)
            taken.append(column)
            pivots.append(value)
    return taken, pivots, B.diagonal() - rows[: len(taken)].square().sum(0)
