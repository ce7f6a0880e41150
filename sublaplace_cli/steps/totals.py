"""Scores gathered during the one pass, for a Jacobian that is neither stored nor held."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..catalog import LIKELIHOODS, load
from ..core.jacobian.capture import Captured


class Totals:
    """Σₙ diag(JₙᵀHₙJₙ) over the rows seen, with and without H."""

    def __init__(self, task: str, size: int, device: torch.device) -> None:
        self.root: Callable[..., Tensor] = load(LIKELIHOODS[task])
        self.sums = {weighted: torch.zeros(size, dtype=torch.float64, device=device) for weighted in (True, False)}

    def add(self, captured: Captured) -> None:
        W = self.root(captured.f, 1.0)
        for block in captured.blocks:
            self.sums[True][block.span] += block.squares(W)
            self.sums[False][block.span] += block.squares(None)
