"""How often one way is closer to the full posterior than another, and what that says about the paper's claims."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from drawing import PLAIN, SUBNETS, Line, Way, grouped, mean_and_error, table, way_name

SLACK = 0.01  # one is not further away than another if its mean W2 is not larger by more than this share
MODERATE = {"p/3": 1 / 3, "p/5": 1 / 5}  # what the paper's "moderate subset sizes" may be: it gives no number
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


Which = Callable[[int, int], bool]  # (k, the rival's size if it has but one) → whether this k is looked at


def at(values: Mapping[str, float], k: int) -> float:
    """The value at k, or that of a method which has but one."""
    return next(iter(values.values())) if len(values) == 1 else values.get(str(k), math.nan)


class Means:
    """Mean W2 over seeds, for every cell (values of some columns), method, rescaling and k."""

    def __init__(self, lines: Sequence[Line], *cell: str) -> None:
        self.width = len(cell)
        groups = grouped([{"rescale": PLAIN} | line for line in lines], *cell, "method", "rescale", "k")
        self.means = {key: mean_and_error(group, "w2")[0] for key, group in groups.items()}

    def over_k(self, where: tuple[str, ...], way: Way) -> dict[str, float]:
        return {key[-1]: value for key, value in self.means.items() if key[:-1] == (*where, *way)}

    def pairs(self, better: Way, worse: Way, which: Which) -> dict[tuple[str, ...], list[tuple[int, float, float]]]:
        """(k, W2 of the one, W2 of the other) in every cell; a method without k has the same W2 at every k."""
        found = {}
        for where in sorted({key[: self.width] for key in self.means}):
            ks = sorted(map(int, self.over_k(where, ("gradient", PLAIN))))
            own, rival = (self.over_k(where, way) for way in (better, worse))
            size = int(next(iter(rival)) or 0) if len(rival) == 1 else 0
            rows = [(k, at(own, k), at(rival, k)) for k in ks if which(k, size)]
            found[where] = [row for row in rows if not math.isnan(row[1] + row[2])]
        return found

    def below(self, better: Way, worse: Way, which: Which = lambda k, size: True, slack: float = 0.0) -> Count:
        """At how many cells and k the first is closer, or further away by less than the slack."""
        rows = [row for found in self.pairs(better, worse, which).values() for row in found]
        return Count(sum(a < b * (1 + slack) for _, a, b in rows), len(rows))


def compared(lines: Sequence[Line], *cell: str) -> str:
    means = Means(lines, *cell)
    counts = [
        (f"`{way_name(better)}` below `{way_name(worse)}`", means.below(better, worse)) for better, worse in ASKED
    ]
    return "How often the mean W2 of one is below that of another, over all of this and every k:\n\n" + table(
        ["mean W2", "in"], [row for row in counts if row[1].of]
    )


def passing_kfac(lines: Sequence[Line], *cell: str) -> str:
    """From which k on `gradient` is closer than `kfac`."""
    sizes = {tuple(line[name] for name in cell): int(line["n_params"]) for line in lines}
    rows = []
    for where, found in Means(lines, *cell).pairs(("gradient", PLAIN), ("kfac", PLAIN), lambda k, size: True).items():
        closer = [k for k, own, kfac in found if own < kfac]
        share = f"{closer[0]} ({closer[0] / sizes[where]:.1%} of p)" if closer else "none of the grid"
        rows.append([", ".join(where), sizes[where], share])
    return table(["", "p", "`gradient` is closer than `kfac` from k ="], rows)


Claim = tuple[str, str, Count]  # what the paper says, where, and how often it holds here


def claims(setup: str, lines: Sequence[Line], *cell: str) -> list[Claim]:
    """What the paper says about distances to the full posterior in all of its setups."""
    means = Means(lines, *cell)
    greedy, gradient, head = ((method, PLAIN) for method in ("greedy", "gradient", "neural-linear"))
    return [
        *(
            (f"`gradient` closer than `{rival}`{said}", setup, means.below(gradient, (rival, PLAIN), slack=slack))
            for rival in ("subnet-diagonal", "last-k")
            for said, slack in (("", 0.0), (", by more than 1 %", -SLACK))
        ),
        (
            "`gradient` closer than `neural-linear`, k not below its size",
            setup,
            means.below(gradient, head, lambda k, size: k >= size),
        ),
        ("`greedy` as close as `gradient` (to 1 %) or closer", setup, means.below(greedy, gradient, slack=SLACK)),
    ]


def magnitude_claim(setup: str, lines: Sequence[Line], *cell: str) -> Claim:
    """The paper sees roughly an order of magnitude between its methods and the diagonal baselines in Setup B."""
    count = Means(lines, *cell).below(("gradient", PLAIN), ("subnet-diagonal", PLAIN), slack=-0.8)
    return "`gradient` at most a fifth as far as `subnet-diagonal` (paper: about a tenth)", setup, count


def coverage_claims(setup: str, lines: Sequence[Line], *cell: str) -> list[Claim]:
    covered = {
        key: mean_and_error(group, "coverage95")[0]
        for key, group in grouped(
            [{"rescale": PLAIN} | line for line in lines], *cell, "rescale", "k", "method"
        ).items()
    }
    diagonal = [key for key in covered if key[-1] == "subnet-diagonal"]
    under = Count(sum(covered[cell] < 0.95 for cell in diagonal), len(diagonal))
    found = [("`subnet-diagonal` covers less than 95 %", setup, under)]
    for rival in ("subnet-diagonal", "last-k"):
        gaps = [
            (abs(covered[(*key[:-1], "gradient")] - 0.95), abs(covered[key] - 0.95))
            for key in covered
            if key[-1] == rival
        ]
        nearer = Count(sum(own < other for own, other in gaps), len(gaps))
        found.append((f"coverage of `gradient` nearer to 95 % than that of `{rival}`", setup, nearer))
    return found


def kfac_claims(setup: str, lines: Sequence[Line], *cell: str) -> list[Claim]:
    """Cells in which the paper's methods pass `kfac` at a moderate size."""
    sizes = {tuple(line[name] for name in cell): int(line["n_params"]) for line in lines}
    means, found = Means(lines, *cell), []
    for method, (said, share) in itertools.product(("gradient", "greedy"), MODERATE.items()):
        pairs = means.pairs((method, PLAIN), ("kfac", PLAIN), lambda k, size: True)
        passed = [any(a < b for k, a, b in rows if k <= share * sizes[where]) for where, rows in pairs.items() if rows]
        found.append(
            (f"`{method}` closer than `kfac` at a moderate k: up to {said}", setup, Count(sum(passed), len(passed)))
        )
    return found


def best_of(lines: Sequence[Line]) -> str:
    """How often each plain sub-network of size k is the best of them, over the replications."""
    plain = [line for line in lines if line["rescale"] == PLAIN and line["method"] in SUBNETS]
    ks = sorted({int(line["k"]) for line in plain})
    wins: Counter[tuple[str, int, str]] = Counter()
    runs: Counter[int] = Counter()
    for (_, _, _, k), own in grouped(plain, "dataset", "model", "seed", "k").items():
        runs[int(k)] += 1
        for metric in ("w2", "discrepancy"):
            wins[min(own, key=lambda line: float(line[metric]))["method"], int(k), metric] += 1
    rows = [
        [f"`{method}`", *(f"{wins[method, k, 'w2']} / {wins[method, k, 'discrepancy']}" for k in ks)]
        for method in SUBNETS
    ]
    return table(["least W2 / least Dis", *(f"k = {k} (of {runs[k]})" for k in ks)], rows)


def verdict(count: Count) -> str:
    share = count.holds / count.of
    return "agrees" if share >= 0.95 else "agrees mostly" if share >= 0.75 else "mixed" if share > 0.25 else "differs"


SHARED = ("Setup", "wheel")  # what is claimed in several places, whose names begin so


def summary(found: Sequence[Claim]) -> str:
    """One table of what is claimed in one place, and one for each kind of places that share their claims."""
    seen = [claim for claim in found if claim[2].of]
    single = [[claim, where, count, verdict(count)] for claim, where, count in seen if not where.startswith(SHARED)]
    shared = [[claim for claim in seen if claim[1].startswith(kind)] for kind in SHARED]
    return "\n\n".join(
        [
            "## Where it agrees with the paper",
            "Counted from the tables: *agrees* from 95 % of the cells, *mostly* from 75 %, *differs* up to 25 %. A "
            "cell is a data set, a network and a k, with its mean over seeds, or on the wheel one of the other "
            "methods; what its numbers are made of, and how that differs from the paper, stands in the sections below.",
            table(["claim", "where", "holds in", ""], single),
            *(side_by_side(some) for some in shared if some),
        ]
    )


def side_by_side(found: Sequence[Claim]) -> str:
    """A line for each claim, a column for each place."""
    places = list(dict.fromkeys(where for _, where, _ in found))
    cells = {(claim, where): f"{count}, {verdict(count)}" for claim, where, count in found}
    rows = [
        [claim, *(cells.get((claim, where), "") for where in places)]
        for claim in dict.fromkeys(claim for claim, _, _ in found)
    ]
    return table(["claim", *places], rows)
