"""How many rows it takes to see that outputs are logits."""

from __future__ import annotations

import torch
from torch import nn

from sublaplace_cli.core.network.logits import FIRST_ROWS, doubt_about_logits


class Counting(nn.Module):
    """A row's outputs are the row itself, scaled, through a last layer."""

    def __init__(self, scale: float, last: nn.Module) -> None:
        super().__init__()
        self.scale, self.last, self.rows = scale, last, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(x))
        return self.last(self.scale * x)


ROWS = torch.linspace(-1.0, 1.0, 128).reshape(64, 2)


def test_an_output_outside_the_unit_interval_among_the_first_rows_settles_it() -> None:
    network = Counting(5.0, nn.Identity())
    assert doubt_about_logits(network, ROWS) is None
    assert network.rows == [FIRST_ROWS]


def test_otherwise_every_row_runs_once() -> None:
    network = Counting(5.0, nn.Sigmoid())
    doubt = doubt_about_logits(network, ROWS)
    assert doubt is not None
    assert doubt.is_certain
    assert network.rows == [FIRST_ROWS, 64 - FIRST_ROWS]


def test_outputs_that_leave_the_interval_later_are_logits() -> None:
    rows = torch.cat([torch.rand(2 * FIRST_ROWS, 2), 5 + torch.rand(2 * FIRST_ROWS, 2)])
    assert doubt_about_logits(Counting(1.0, nn.Identity()), rows) is None
    within = doubt_about_logits(Counting(1.0, nn.Identity()), torch.rand(64, 2))
    assert within is not None
    assert not within.is_certain
