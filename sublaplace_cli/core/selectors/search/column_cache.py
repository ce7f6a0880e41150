"""A cache of columns of a weighted Jacobian, for a search."""

from itertools import pairwise

import torch
from torch import Tensor

from ...omega.precision import Precision
from .. import largest

HELD = -2.0  # below every bound: bounds of candidates are at least 1, those of chosen parameters −1


class ColumnCache:
    """Columns of A V^(−½) at some of the candidates; it grows in batches, one pass over the rows per batch."""

    def __init__(self, precision: Precision, candidates: Tensor, first: int, most: int) -> None:
        self.precision, self.candidates, self.first, self.most = precision, candidates, first, most
        self.slot = torch.full((len(candidates),), -1, dtype=torch.int64, device=candidates.device)
        self.batches: list[Tensor] = []  # (width, N·C) each; slots are numbered through all of them
        self.ends: list[int] = [0]

    def hold(self, positions: Tensor, bounds: Tensor) -> None:
        """Fetch those of these columns that are missing, with others of the largest bounds: a quarter more columns."""
        missing = int((self.slot[positions] < 0).sum())
        if not missing:
            return
        width = min(self.most, max(self.first, self.ends[-1] * 5 // 4), len(bounds))
        if width - self.ends[-1] < missing:  # no room: drop all, and start again with the best
            self.batches, self.ends = [], [0]
            self.slot.fill_(-1)
        wanted = torch.where(self.slot < 0, bounds, bounds.new_tensor(HELD))
        # In rising order, because neighbours are faster to fetch.
        new = largest(wanted, width - self.ends[-1]).sort().values
        self.batches.append(self.precision.columns(self.candidates[new]))
        self.slot[new] = torch.arange(self.ends[-1], self.ends[-1] + len(new), device=self.slot.device)
        self.ends.append(self.ends[-1] + len(new))

    def columns(self, positions: Tensor) -> Tensor:
        """Cached columns (N·C, len(positions)); fastest in the order of the cache."""
        slots, order = self.slot[positions].sort()
        out = torch.empty(len(positions), self.precision.n_rows, dtype=torch.float64, device=slots.device)
        cuts = torch.searchsorted(slots, torch.tensor(self.ends, device=slots.device)).tolist()
        in_order = bool((order[1:] > order[:-1]).all())
        for batch, first, (a, b) in zip(self.batches, self.ends, pairwise(cuts), strict=False):
            if in_order:
                torch.index_select(batch, 0, slots[a:b] - first, out=out[a:b])
            else:
                out.index_copy_(0, order[a:b], batch.index_select(0, slots[a:b] - first))
        return out.T
