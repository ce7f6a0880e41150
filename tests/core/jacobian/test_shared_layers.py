"""Layers whose input all rows share (positions): a formula where their output is only broadcast, and always right."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from core.jacobian.test_formulas import assert_right, prepared
from torch import Tensor, nn

from sublaplace_cli.core.jacobian.embedding import EmbeddingBlock
from sublaplace_cli.core.jacobian.layer_io import RowAxis
from sublaplace_cli.core.network.forward import map_inputs

ENTRIES, LENGTH, WIDTH = 9, 6, 4


class Positions(nn.Module):
    """Tokens and positions, mixed over the tokens so that a row's gradient at a position is its own."""

    def __init__(self, out: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(ENTRIES, WIDTH), self.table()
        self.mix, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, out)

    def table(self) -> nn.Module:
        return nn.Embedding(LENGTH + 2, WIDTH)

    def ids(self, tokens: Tensor) -> Tensor:
        return torch.arange(tokens.shape[1]).unsqueeze(0)

    def placed(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + self.place(self.ids(tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.placed(tokens)
        return self.head(torch.tanh(self.mix(h) * h.mean(1, keepdim=True)).mean(1))


class RepeatedIds(Positions):
    """A position that occurs three times."""

    def ids(self, tokens: Tensor) -> Tensor:
        return torch.tensor([[3, 1, 3, 0, 3, 2]])


class WithPadding(RepeatedIds):
    """… and has no gradient."""

    def table(self) -> nn.Module:
        return nn.Embedding(LENGTH + 2, WIDTH, padding_idx=3)


class Flat(Positions):
    """Ids without an axis for the rows."""

    def ids(self, tokens: Tensor) -> Tensor:
        return torch.arange(tokens.shape[1])


class OneId(Positions):
    """One segment for all positions of all rows: ids of shape (1, 1)."""

    def ids(self, tokens: Tensor) -> Tensor:
        return torch.ones(1, 1, dtype=torch.long)


class Expanded(Positions):
    """The table's output is expanded to the batch by the network itself."""

    def placed(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + self.place(self.ids(tokens)).expand(len(tokens), -1, -1)


class InPlace(Positions):
    def placed(self, tokens: Tensor) -> Tensor:
        place = self.place(self.ids(tokens))
        place *= 2.0
        return self.embed(tokens) + torch.sin(place)


class Chain(Positions):
    """Several shared layers behind each other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.shift = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def placed(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) * self.shift(torch.tanh(self.norm(self.place(self.ids(tokens)))))


class FlatChain(Chain, Flat):
    pass


class Frozen(Chain):
    """The table is frozen; what follows it is shared all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.place.requires_grad_(False)


class FirstOfTheBatch(Positions):
    """Repeated rows would not change f, but all gradients would go to the first."""

    def placed(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + self.place(self.ids(tokens))[0]


class MeanOverTheBatch(Positions):
    """The same, with the gradients divided among the rows."""

    def placed(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + self.place(self.ids(tokens)).mean(0)


class NewAxis(Flat):
    """With an axis for the rows, one more is too many."""

    def placed(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + self.place(self.ids(tokens)).unsqueeze(0)


class Matrix(Flat):
    """The output is a weight that vectors are multiplied by: with an axis for the rows it would mix them."""

    def placed(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        return h + (torch.tanh(h.mean(1)) @ self.place(self.ids(tokens))[:WIDTH]).unsqueeze(1)


class NewAxisThenNorm(Chain, NewAxis):
    """The first shared layer cannot be repeated, those behind it can."""

    def placed(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) * self.shift(torch.tanh(self.norm(self.place(self.ids(tokens)).unsqueeze(0))))


@dataclass(frozen=True)
class Shared:
    """A network, and how its shared layers are taken."""

    build: type[Positions]
    place: RowAxis | None = RowAxis.ONE
    others: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    notes: int = 0

    def __str__(self) -> str:
        return self.build.__name__

    def make(self, rows: int = 7) -> tuple[nn.Module, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return self.build().double().eval(), torch.randint(0, ENTRIES, (rows, LENGTH))


CASES = [
    Shared(Positions),
    Shared(RepeatedIds),
    Shared(WithPadding),
    Shared(OneId),
    Shared(Expanded),
    Shared(InPlace),
    Shared(Flat, RowAxis.NONE),
    Shared(Chain, others=("norm", "shift")),
    Shared(FlatChain, RowAxis.NONE, others=("norm", "shift")),
    Shared(Frozen, None, others=("norm", "shift")),
    Shared(FirstOfTheBatch, None, rest=("place.weight",), notes=1),
    Shared(MeanOverTheBatch, None, rest=("place.weight",), notes=1),
    Shared(NewAxis, None, rest=("place.weight",), notes=1),
    Shared(Matrix, None, rest=("place.weight",), notes=1),
    Shared(NewAxisThenNorm, None, others=("norm", "shift"), rest=("place.weight",), notes=1),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_case
@pytest.mark.parametrize("rows", [1, 2, LENGTH, 7])
def test_the_formula_is_taken_where_the_output_is_broadcast(case, rows):
    """Also with one row, and with as many rows as positions: lengths alone would be ambiguous."""
    model, x = case.make(rows)
    capture = prepared(model, x)
    shared = {layer.name: layer.row_axis for layer in capture.layers if layer.repeated}
    assert shared.get("place") == case.place
    assert set(shared) - {"place"} == set(case.others)
    assert tuple(part.name for part in capture.rest) == case.rest
    assert len(capture.notes) == case.notes
    assert_right(capture, x, case.make(rows)[0])


@each_case
@pytest.mark.parametrize("checked", [1, 3])
def test_passes_of_any_length_after_a_check_of_few_rows(case, checked):
    """What was learned from one row must hold for several, and the other way round."""
    model, x = case.make(12)
    capture = prepared(model, x[:checked])
    for rows in (1, 2, LENGTH, 12):
        assert_right(capture, x[:rows])


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_several_combinations_of_the_outputs(case):
    model, x = case.make()
    capture = prepared(model, x)
    U = torch.randn(len(x), 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = torch.cat([block.dense().values for block in capture(x).blocks], dim=2)
    found = torch.cat([block.dense().values for block in capture(x, U=U).blocks], dim=2)
    assert torch.allclose(found, torch.einsum("ncs,ncp->nsp", U, whole), rtol=0, atol=1e-12)


def test_a_shared_table_is_kept_as_tokens_and_gradients():
    model, x = Shared(Positions).make()
    capture = prepared(model, x)
    start = next(part.offset for part in capture.layout.parameters if part.name == "place.weight")
    block = next(block for block in capture(x).blocks if block.start == start)
    assert isinstance(block, EmbeddingBlock)
    assert block.tokens.shape == (len(x), LENGTH)


def test_the_padding_entry_of_a_shared_table_has_no_gradient():
    model, x = Shared(WithPadding).make()
    capture = prepared(model, x)
    part = next(part for part in capture.layout.parameters if part.name == "place.weight")
    J = torch.cat([block.dense().values for block in capture(x).blocks], dim=2)[:, :, part.span]
    J = J.reshape(len(x), 2, LENGTH + 2, WIDTH)
    assert float(J[:, :, 3].abs().max()) == 0.0
    assert float(J[:, :, :3].abs().amin(dim=(0, 1, 3)).min()) > 0.0


def test_the_note_names_the_shared_layer_the_cause_and_the_remedy():
    model, x = Shared(FirstOfTheBatch).make()
    (note,) = prepared(model, x).notes
    assert "layer 'place'" in note
    assert "all rows share its output" in note
    assert "general path" in note
    assert "expand(len(x), -1)" in note


class Branching(NewAxis):
    """Data-dependent control flow, which vmap cannot follow, and a layer that needs it."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) if bool((tokens >= 0).all()) else tokens[:, :2].double()


class BranchingPositions(Positions):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) if bool((tokens >= 0).all()) else tokens[:, :2].double()


def test_the_note_of_rows_one_by_one_names_the_layer_the_cause_and_the_remedy():
    model, x = Shared(Branching).make()
    capture = prepared(model, x)
    assert not capture.batched
    shared, note = capture.notes
    assert "layer 'place'" in shared
    assert "'place' (Embedding)" in note
    assert "row by row" in note
    assert "vmap" in note
    assert "to avoid it" in note
    assert_right(capture, x)


def test_shared_positions_alone_send_no_network_through_vmap():
    model, x = Shared(BranchingPositions).make()
    capture = prepared(model, x)
    assert capture.batched
    assert capture.rest == ()
    assert capture.notes == ()
    assert_right(capture, x)


def test_a_network_that_stops_sharing_is_refused():
    """On the rows that were checked all share the ids; later they do not."""

    class Sometimes(Positions):
        def ids(self, tokens: Tensor) -> Tensor:
            ids = super().ids(tokens)
            return ids if bool((tokens[:, 0] < ENTRIES - 1).all()) else torch.cat([ids, ids])

    model, x = replace(CASES[0], build=Sometimes).make()
    x[:, 0] = 0
    capture = prepared(model, x)
    x[3, 0] = ENTRIES - 1
    with pytest.raises(Exception, match=r"layer 'place' ran|must match the size"):
        capture(map_inputs(lambda t: t[:4], x))
