"""What identifies a network, where several workers see it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sublaplace_cli.core.network.layout import network_digest, weights_digest
from sublaplace_cli.core.network.probe import Probe
from sublaplace_cli.core.workers import SINGLE_WORKER, SingleWorker
from sublaplace_cli.errors import UserError
from sublaplace_cli.run.identity.network import identify

ROWS = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()


class Ranks(SingleWorker):
    """The second of two workers; the first one has seen this."""

    def __init__(self, seen_by_the_leader: Any) -> None:
        self.seen = seen_by_the_leader

    def exchange(self, own: Any) -> list[Any]:
        return [self.seen, own]


def probe() -> Probe:
    found = Probe.of(network(), ROWS)
    assert found is not None
    return found


def test_workers_that_differ_by_rounding_take_the_leaders_numbers() -> None:
    leading = replace(probe(), outputs=tuple(value * (1 + 1e-5) for value in probe().outputs))
    found = identify("w", network(), ROWS, [], Ranks(asdict(leading)))
    assert found.probe == leading
    own = identify("w", network(), ROWS, [], SINGLE_WORKER)
    assert own.probe == probe()
    assert found.function != own.function


@pytest.mark.parametrize(("factor", "words"), [(1.01, "other outputs"), (None, "no outputs")])
def test_workers_with_other_networks_are_refused(factor: float | None, words: str) -> None:
    leading = replace(probe(), outputs=tuple(value * (factor or 1.0) for value in probe().outputs))
    model = network()
    if factor is None:
        model.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(UserError, match=rf"the network of rank 1 gives {words}"):
        identify("w", model, ROWS, [], Ranks(asdict(leading)))


def test_a_network_that_cannot_be_tried_out_is_known_by_its_files(tmp_path: Path) -> None:
    model, code = network(), tmp_path / "net.py"
    model.register_forward_hook(lambda *_: 1 / 0)
    found = []
    for text in ("a", "a", "b"):
        code.write_text(text)
        found.append(identify("w", model, ROWS, [code], SINGLE_WORKER))
    assert found[0] == found[1] != found[2]
    assert all(one.probe is None for one in found)


def test_frozen_parameters_count() -> None:
    model = network()
    before = identify("w", model, ROWS, [], SINGLE_WORKER).function
    model[0].requires_grad_(False)
    assert identify("w", model, ROWS, [], SINGLE_WORKER).function != before


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net[0].weight.data.mul_(1 + 1e-6),
        lambda net: net[2].running_mean.add_(1e-6),
        lambda net: net[2].num_batches_tracked.add_(1),
        lambda net: net.register_buffer("more", torch.ones(1), persistent=False),
        lambda net: net.double(),
    ],
)
def test_every_change_of_a_tensor_is_another_digest(change: Any) -> None:
    model = network()
    before = weights_digest(model)
    change(model)
    assert weights_digest(model) != before


def test_the_digest_for_serving_is_the_same_for_every_dtype() -> None:
    assert network_digest(network()) == network_digest(network().double())


def test_real_rows_tell_apart_what_made_up_ones_do_not_show() -> None:
    """Made-up rows are evenly filled: their sums stay small, those of a real row need not."""
    model, limited = network(), network()
    limited.register_forward_pre_hook(lambda _, rows: rows[0] * (rows[0].sum(1, keepdim=True) < 2.9))
    rows = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]])
    own, other = (identify("w", each, rows, [], SINGLE_WORKER) for each in (model, limited))
    assert own.probe == other.probe
    assert own.function != other.function
