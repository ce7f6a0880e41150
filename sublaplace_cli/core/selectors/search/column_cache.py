"""Columns of a weighted Jacobian that a search has fetched, kept for as long as there is room."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from ...omega.precision import Precision
from .. import largest

HELD = -2.0  # below every bound: those of candidates are at least 1, those of chosen ones −1


class ColumnCache:
    """Columns of A V^(−½) at some of the candidates, widened a batch at a time: one pass over the rows a batch."""

    def __init__(self, precision: Precision, candidates: Tensor, first: int, most: int) -> None:
        self.precision, self.candidates, self.first, self.most = precision, candidates, first, most
        self.slot = torch.full((len(candidates),), -1, dtype=torch.int64, device=candidates.device)
        self.batches: list[Tensor] = []  # (width, N·C) each; slots count through all of them
        self.ends: list[int] = [0]

    def hold(self, positions: Tensor, bounds: Tensor) -> None:
        """See to it that these are held; `bounds` decide which others are fetched along with them."""
        missing = int((self.slot[positions] < 0).sum())
        if missing:
            self._fetch(bounds, missing)

    def columns(self, positions: Tensor) -> Tensor:
        """Columns that are held (N·C, len(positions)); quickest in the order in which they are held."""
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

    def in_held_order(self, positions: Tensor) -> Tensor:
        """The same positions, in the order in which their columns are held."""
        return positions[self.slot[positions].argsort()]

    def _fetch(self, bounds: Tensor, missing: int) -> None:
        """Hold the candidates with the largest bounds: a quarter as many again, as far as memory allows."""
        width = min(self.most, max(self.first, self.ends[-1] * 5 // 4), len(bounds))
        if width - self.ends[-1] < missing:  # no room for more: let go of all, and begin anew with the best
            self.batches, self.ends = [], [0]
            self.slot.fill_(-1)
        wanted = torch.where(self.slot < 0, bounds, bounds.new_tensor(HELD))
        # In rising order: neighbours are quicker to fetch.
        new = largest(wanted, width - self.ends[-1]).sort().values
        self.batches.append(self.precision.columns(self.candidates[new]))
        self.slot[new] = torch.arange(self.ends[-1], self.ends[-1] + len(new), device=self.slot.device)
        self.ends.append(self.ends[-1] + len(new))
