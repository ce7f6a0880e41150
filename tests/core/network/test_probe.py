"""The probe of a network: the same for the same function, another one for another function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sublaplace_cli.core.network.forward import Inputs
from sublaplace_cli.core.network.layout import weights_digest
from sublaplace_cli.core.network.probe import DIGITS, ROWS, Probe, Range

ROW = torch.linspace(-2.0, 3.0, 8).reshape(2, 4)


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.LayerNorm(40), nn.Linear(40, 30)).eval()


class Changed(nn.Module):
    """A network whose outputs something is done with."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.change = network(), change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.inner(x))


def probe(model: nn.Module, rows: Inputs = ROW) -> Probe:
    found = Probe.of(model, rows)
    assert found is not None
    return found


def test_the_same_network() -> None:
    first, again = probe(network()), probe(copy.deepcopy(network()))
    assert first == again
    assert first.difference(again) is None
    assert first.rounded() == again.rounded()
    assert len(first.outputs) == 16 * ROWS
    assert len(first.gradients) == 6
    assert Probe.from_record(asdict(first)) == first


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda f: f * 1.001, "outputs"),
        (lambda f: f + 0.01, "outputs"),
        (lambda f: f.detach(), "gradients"),
        (lambda f: torch.cat([f[:, :29], f[:, 29:].detach()], 1), "gradients"),
        (lambda f: f[:, :5], "outputs"),
    ],
)
def test_another_function_of_the_same_weights(change: Any, what: str) -> None:
    own, other = probe(Changed(lambda f: f)), probe(Changed(change))
    assert f"other {what}" in (other.difference(own) or "")
    assert other.rounded() != own.rounded()


def test_a_change_that_rounding_could_make_is_none() -> None:
    own = probe(Changed(lambda f: f))
    for size, same_identity in ((1e-13, True), (1e-5, False)):
        other = probe(Changed(lambda f, size=size: f * (1 + size)))
        assert other.difference(own) is None
        assert (other.rounded() == own.rounded()) is same_identity
    assert DIGITS == 6


def test_it_leaves_the_network_alone() -> None:
    model = network()
    before, threads = weights_digest(model), torch.get_num_threads()
    random = torch.get_rng_state()
    probe(model)
    assert weights_digest(model) == before
    assert all(parameter.grad is None and parameter.dtype == torch.float32 for parameter in model.parameters())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), random)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(7, 3), nn.Linear(3, 2)

    def forward(self, ids: Tensor, mask: Tensor, extra: Tensor) -> Tensor:
        assert ids.dtype == torch.int64
        assert mask.dtype == torch.bool
        return self.last((self.embed(ids) * mask.unsqueeze(2)).sum(1)) + extra


@pytest.mark.parametrize("as_dict", [True, False])
def test_several_inputs_of_other_types(as_dict: bool) -> None:
    rows = {
        "ids": torch.tensor([[0, 6, 2, 3], [5, 1, 0, 2]]),
        "mask": torch.tensor([[True, True, False, True], [True, False, False, True]]),
        "extra": torch.tensor([[0.5], [-0.5]]),
    }
    inputs = rows if as_dict else tuple(rows.values())
    found = probe(Tokens().eval(), inputs)
    assert found.fits(inputs)
    assert not found.fits(rows["ids"])
    assert len(set(found.outputs)) == len(found.outputs)


def test_made_up_rows_stay_in_the_range() -> None:
    part = Range.of(torch.tensor([[3, 9], [5, 4]]))
    assert part == Range((2,), 3.0, 9.0)
    many = Range((1000,), 3.0, 9.0)
    assert set(many.fill(torch.tensor([3]), 0).unique().tolist()) == set(range(3, 10))
    floats = many.fill(torch.zeros(1), 0)
    assert (float(floats.min()) >= 3, float(floats.max()) <= 9) == (True, True)
    assert torch.histc(floats, 6, 3, 9).min() > 0.9 * floats.numel() / 6
    assert set(Range((4,), 0.0, 1.0).fill(torch.tensor([True]), 0).flatten().tolist()) == {False, True}


def test_networks_that_cannot_be_tried_out() -> None:
    def refuse(_f: Tensor) -> Tensor:
        raise KeyError("not these rows")

    assert Probe.of(Changed(refuse), ROW) is None
    assert Probe.of(Changed(lambda f: f / 0), ROW) is None


def test_a_network_that_runs_in_float32_only() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + torch.ones(4, dtype=torch.float32)) if x.dtype == torch.float32 else x[0, 9, 9]

    assert probe(Single()).difference(probe(Single())) is None
