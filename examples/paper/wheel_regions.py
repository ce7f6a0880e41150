"""Sums of gradients over all rows of the wheel's network, from far fewer: it is linear in each of its regions.

Where an arm and the active units are the same, the network is linear, and its gradient is M u with u = (1, c) for the
context c: a hidden unit's output is its weights times u, and what is passed back to it is constant. So the sum of
J Jᵀ over n rows of a region is M (Σ u uᵀ) Mᵀ: that of three rows √n (1, c̄), (0, l₁₁, l₂₁), (0, 0, l₂₂), where l lᵀ
is the sum of (c − c̄)(c − c̄)ᵀ. Besides, in the rows of one arm the weight of that arm's input has the gradient of the
bias, the weights of the other arms' inputs have none, and many units are never active: these columns are left out of
the products. Everything is in float64, with the units that are active in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

CONTEXT, ARMS, WIDTH = 2, 5, 100
IN = CONTEXT + ARMS
B1, W2 = IN * WIDTH, (IN + 1) * WIDTH  # where b₁ and W₂ begin in the flat vector W₁, b₁, W₂, b₂, w₃, b₃
B2, W3 = W2 + WIDTH**2, W2 + WIDTH * (WIDTH + 1)
B3, SIZE = W3 + WIDTH, W3 + WIDTH + 1
LEAST = 1e-14  # a part of a sum of squares that is only rounding
MIX = 6364136223846793005  # an odd number of 64 bits


@dataclass(frozen=True)
class Network:
    """The weights of 7–100–100–1, as views of the flat vector."""

    theta: Tensor  # (p,)

    @property
    def first(self) -> tuple[Tensor, Tensor]:
        return self.theta[:B1].view(WIDTH, IN), self.theta[B1:W2]

    @property
    def second(self) -> tuple[Tensor, Tensor]:
        return self.theta[W2:B2].view(WIDTH, WIDTH), self.theta[B2:W3]

    @property
    def last(self) -> Tensor:
        return self.theta[W3:B3]

    def active(self, x: Tensor) -> Tensor:
        """Which of the units of both hidden layers are active at these rows (n, 200), as 0 and 1."""
        (weight, bias), (weight2, bias2) = self.first, self.second
        active = x.new_empty(len(x), 2 * WIDTH)
        hidden = torch.addmm(bias, x, weight.T).relu_()
        torch.sign(hidden, out=active[:, :WIDTH])
        torch.sign(torch.addmm(bias2, hidden, weight2.T).relu_(), out=active[:, WIDTH:])
        return active


@dataclass(frozen=True)
class ArmRows:
    """Gradients of some rows of one arm; every matrix has a line for each unit that is active somewhere, or a row."""

    arm: int
    u: Tensor  # (3, m)
    alive: tuple[Tensor, Tensor]  # numbers of the units that are active somewhere, in both layers
    outputs: tuple[Tensor, Tensor]  # of these units (units, m)
    deltas: tuple[Tensor, Tensor]  # derivatives by what comes into them (units, m)

    @classmethod
    def of(cls, network: Network, arm: int, u: Tensor, active: Tensor, alive: tuple[Tensor, Tensor]) -> ArmRows:
        """Of rows u (m, 3) with these active units (m, 200)."""
        one, two = alive
        masks = active.index_select(1, torch.cat([one, two + WIDTH])).double().T.contiguous()
        first, second = masks[: len(one)], masks[len(one) :]
        weight, bias = (t.double()[one] for t in network.first)
        by_u = torch.stack([bias + weight[:, CONTEXT + arm], weight[:, 0], weight[:, 1]], 1)
        hidden = (by_u @ u.T).mul_(first)
        weight2, bias2 = (t.double()[two] for t in network.second)
        weight2 = weight2[:, one]
        outputs = torch.outer(bias2, u[:, 0]).addmm_(weight2, hidden).mul_(second)
        back = second * network.last.double()[two].unsqueeze(1)
        return cls(arm, u.T.contiguous(), alive, (hidden, outputs), ((weight2.T @ back).mul_(first), back))

    @cached_property
    def scores(self) -> Tensor:
        """Σ over the rows of the squared gradient (p,)."""
        (one, two), (hidden, outputs) = self.alive, self.outputs
        squares, first, second = self.u.square(), *(delta.square() for delta in self.deltas)
        scores = self.u.new_zeros(SIZE)
        own = first @ squares.T  # (units, 3)
        for place, column in ((0, 1), (1, 2), (CONTEXT + self.arm, 0)):
            scores.index_copy_(0, one * IN + place, own[:, column])
        scores.index_copy_(0, B1 + one, own[:, 0])
        places = W2 + two.unsqueeze(1) * WIDTH + one
        scores.index_copy_(0, places.flatten(), (second @ hidden.square().T).flatten())
        scores.index_copy_(0, B2 + two, second @ squares[0])
        scores.index_copy_(0, W3 + two, outputs.square().sum(1))
        scores[B3] = squares[0].sum()
        return scores

    def distinct(self, S: Tensor) -> tuple[Tensor, Tensor]:
        """(the parameters whose columns are not 0 here, rising; the place of each of S among them, or behind them).

        The bias stands for the weight of this arm's input.
        """
        into = S % IN
        is_arm = (S < B1) & (into >= CONTEXT)
        same = torch.where(is_arm, B1 + S // IN, S)
        there = (self.scores[same] > 0) & (~is_arm | (into == CONTEXT + self.arm))
        found, place = same[there].unique(return_inverse=True)
        return found, torch.full_like(S, len(found)).masked_scatter_(there, place)

    def columns(self, S: Tensor) -> Tensor:
        """Jᵀ at rising parameters that `distinct` names, and a line of zeros (len(S) + 1, m)."""
        ends = torch.searchsorted(S, torch.tensor([B1, W2, B2, W3, B3])).tolist()
        first, bias, second, bias2, last = (S[a:b] for a, b in zip([0, *ends], ends, strict=False))
        (in1, in2), (hidden, outputs), (back1, back2) = self.places, self.outputs, self.deltas
        J = self.u.new_empty(len(S) + 1, self.u.shape[1])
        parts = J.split([*map(len, (first, bias, second, bias2, last)), len(S) + 1 - ends[-1]])
        for part, delta, unit in (
            (parts[0], back1, in1[first // IN]),
            (parts[1], back1, in1[bias - B1]),
            (parts[2], back2, in2[(second - W2) // WIDTH]),
            (parts[3], back2, in2[bias2 - B2]),
            (parts[4], outputs, in2[last - W3]),
        ):
            torch.index_select(delta, 0, unit, out=part)
        parts[0].mul_(self.u.index_select(0, 1 + first % IN))
        parts[1].mul_(self.u[0])
        parts[2].mul_(hidden.index_select(0, in1[(second - W2) % WIDTH]))
        parts[3].mul_(self.u[0])
        parts[5][:-1] = self.u[0]
        J[-1] = 0.0
        return J

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Of each unit among those that are active somewhere."""
        found = []
        for alive in self.alive:
            place = torch.zeros(WIDTH, dtype=torch.int64)
            place[alive] = torch.arange(len(alive))
            found.append(place)
        return found[0], found[1]


@dataclass(frozen=True)
class Gradients:
    """Gradients of the rows of every arm that has some."""

    arms: tuple[ArmRows, ...]

    @cached_property
    def scores(self) -> Tensor:
        return torch.stack([rows.scores for rows in self.arms]).sum(0)

    def products(self, S: Tensor) -> Tensor:
        """Σ J_Sᵀ J_S over all rows (k, k)."""
        total = torch.zeros(len(S), len(S), dtype=torch.float64)
        for rows in self.arms:
            distinct, place = rows.distinct(S)
            J = rows.columns(distinct).numpy()
            products = torch.from_numpy(J @ J.T)  # numpy computes half of it; it is symmetric
            lines = products.index_select(0, place).T.contiguous()  # lines are chosen faster than columns
            total += lines.index_select(0, place)
        return total

    def columns(self, S: Tensor) -> Tensor:
        """J_Sᵀ of the rows of all arms, one arm after the other (k, m)."""
        found = ((rows, *rows.distinct(S)) for rows in self.arms)
        return torch.cat([rows.columns(distinct).index_select(0, place) for rows, distinct, place in found], 1)


def gradients(network: Network, seen: Tensor, new: Tensor) -> tuple[Gradients, Gradients]:
    """Of the rows seen, as a few for each region, and of new rows, which are sorted by arm."""
    x = torch.cat([seen, new])
    active = network.active(x)
    first, u = _region_rows(seen, active[: len(seen)])
    own = torch.cat([torch.ones(len(new), 1), new[:, :CONTEXT]], 1).double()
    rows, factors = torch.cat([first, torch.arange(len(seen), len(x))]), torch.cat([u, own])
    active, arms = active.index_select(0, rows), x[rows, CONTEXT:].argmax(1)
    one, two = active.amax(0).split(WIDTH)
    alive = one.nonzero().squeeze(1), two.nonzero().squeeze(1)

    def group(part: slice) -> Gradients:
        found = []
        for arm in arms[part].unique().tolist():
            some = (arms[part] == arm).nonzero().squeeze(1) + (part.start or 0)
            found.append(ArmRows.of(network, arm, factors[some], active.index_select(0, some), alive))
        return Gradients(tuple(found))

    return group(slice(0, len(first))), group(slice(len(first), None))


def _region_rows(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """(a row of the region, u) of up to three rows for each region that have the same Σ u uᵀ."""
    region, counts = _regions(x, active)
    row = torch.zeros(len(counts), dtype=torch.int64).scatter_(0, region, torch.arange(len(x)))
    context, n = x[:, :CONTEXT].double(), counts.double().unsqueeze(1)
    mean = torch.zeros(len(counts), CONTEXT, dtype=torch.float64).index_add_(0, region, context) / n
    left = context - mean[region]
    products = torch.stack([left[:, 0].square(), left[:, 0] * left[:, 1], left[:, 1].square()], 1)
    s11, s12, s22 = torch.zeros(len(counts), 3, dtype=torch.float64).index_add_(0, region, products).T
    l11 = s11.sqrt()
    l21 = torch.where(l11 > 0, s12 / l11, 0.0)
    rest = s22 - l21.square()
    some, more = (l11 > 0).nonzero().squeeze(1), (rest > LEAST * s22).nonzero().squeeze(1)
    zero = torch.zeros_like(l11)
    u = [n.sqrt() * torch.cat([torch.ones_like(n), mean], 1)]
    u.append(torch.stack([zero, l11, l21], 1)[some])
    u.append(torch.stack([zero, zero, rest.clamp(min=0).sqrt()], 1)[more])
    return torch.cat([row, row[some], row[more]]), torch.cat(u)


def _regions(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """(the region of each row, rows of each): by sums of random integers, which float32 has without rounding."""
    drawn = torch.randint(2**16, (2 * WIDTH, 4), generator=torch.Generator().manual_seed(0)).to(active)
    parts = (active @ drawn).long()
    key = x[:, CONTEXT:].argmax(1)
    for part in parts.T:
        key = key * MIX + part  # of the 64 bits, which may overflow
    _, region, counts = key.unique(return_inverse=True, return_counts=True)
    return region, counts
