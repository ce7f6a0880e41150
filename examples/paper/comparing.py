"""How often one way is closer to the full posterior than another, and what that says about the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from drawing import Line, grouped, mean_and_error, table

Way = tuple[str, str]  # a method, and how its variances are rescaled
PLAIN = "none"
RIVALS = ("subnet-diagonal", "last-k", "neural-linear", "random", "kfac")
ASKED = [
    *((("gradient", PLAIN), (rival, PLAIN)) for rival in RIVALS),
    (("greedy", PLAIN), ("gradient", PLAIN)),
    (("gradient", PLAIN), ("norm", PLAIN)),
    (("gradient", "scale"), ("gradient", PLAIN)),
    (("gradient", "scale"), ("norm", PLAIN)),
    (("gradient", "scale"), ("random", "scale")),
    (("random", "scale"), ("gradient", PLAIN)),
]


class Count(NamedTuple):
    """Cells in which something holds, of those in which it can be seen."""

    holds: int
    of: int

    def __str__(self) -> str:
        return f"{self.holds} of {self.of}"


Which = Callable[[list[int], int], Sequence[int]]  # (the k of a cell, the rival's size where it has one) → some of them


def every(ks: list[int], size: int) -> list[int]:
    return ks


def not_smaller(ks: list[int], size: int) -> list[int]:
    return [k for k in ks if k >= size]


def largest(ks: list[int], size: int) -> list[int]:
    return ks[-1:]


class Means:
    """Mean W2 over seeds, for every cell (values of some columns), method, rescaling and k."""

    def __init__(self, lines: Sequence[Line], *cell: str) -> None:
        self.width = len(cell)
        groups = grouped([{"rescale": PLAIN} | line for line in lines], *cell, "method", "rescale", "k")
        self.means = {key: mean_and_error(group, "w2")[0] for key, group in groups.items()}

    def over_k(self, where: tuple[str, ...], way: Way) -> dict[str, float]:
        return {key[-1]: value for key, value in self.means.items() if key[:-1] == (*where, *way)}

    def below(self, better: Way, worse: Way, which: Which = every) -> Count:
        """In how many cells the first is closer; a method without k has the same W2 at every k."""
        found = []
        for where in {key[: self.width] for key in self.means}:
            ks = sorted(map(int, self.over_k(where, ("gradient", PLAIN))))
            both = [self.over_k(where, way) for way in (better, worse)]
            alone = [next(iter(values)) if len(values) == 1 else None for values in both]
            for k in which(ks, int(alone[1] or 0)):
                pair = [
                    values.get(str(k) if own is None else own, math.nan)
                    for values, own in zip(both, alone, strict=True)
                ]
                if not any(map(math.isnan, pair)):
                    found.append(pair[0] < pair[1])
        return Count(sum(found), len(found))


def compared(lines: Sequence[Line], *cell: str) -> str:
    means = Means(lines, *cell)

    def name(way: Way) -> str:
        return f"`{way[0]}`" + ("" if way[1] == PLAIN else f" with {way[1]}")

    counts = [(f"{name(better)} below {name(worse)}", means.below(better, worse)) for better, worse in ASKED]
    return (
        "How often the mean W2 of one is below that of another, over everything in this section and all k. The first "
        "lines are claims of the paper; those with `norm`, `scale` or `random` ask what a choice of parameters buys: "
        "`norm` makes none, and a rescaled choice at random is the rival of a good one.\n\n"
        + table(["mean W2", "in"], [row for row in counts if row[1].of])
    )


Claim = tuple[str, str, Count]  # what the paper says, where, and how often it holds here


def claims(setup: str, lines: Sequence[Line], *cell: str) -> list[Claim]:
    means = Means(lines, *cell)
    greedy, gradient, head, kfac = ((method, PLAIN) for method in ("greedy", "gradient", "neural-linear", "kfac"))
    above = means.below(gradient, greedy)
    return [
        *(
            (f"`gradient` closer than `{rival}`", setup, means.below(gradient, (rival, PLAIN)))
            for rival in ("subnet-diagonal", "last-k")
        ),
        (
            "`gradient` closer than `neural-linear`, k not below its size",
            setup,
            means.below(gradient, head, not_smaller),
        ),
        ("`greedy` closer than `gradient`, or as close", setup, Count(above.of - above.holds, above.of)),
        ("`gradient` closer than `kfac` at the largest k", setup, means.below(gradient, kfac, largest)),
    ]


def verdict(count: Count) -> str:
    share = count.holds / count.of
    return "agrees" if share >= 0.95 else "agrees mostly" if share >= 0.75 else "mixed" if share > 0.25 else "differs"


def summary(found: Sequence[Claim]) -> str:
    rows = [[claim, setup, count, verdict(count)] for claim, setup, count in found if count.of]
    return (
        "## Where it agrees with the paper\n\n"
        "Counted from the tables: *agrees* from 95 % of the cells, *mostly* from 75 %, *differs* up to 25 %. A cell is "
        "a data set, a network and a k, with its mean over seeds; what its numbers are made of stands in the sections "
        "below.\n\n" + table(["claim", "where", "holds in", ""], rows)
    )
