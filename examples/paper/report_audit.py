"""What the paper prints, checked by arithmetic: standard errors of the wheel, sizes of networks, definitions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from drawing import Line, grouped, table
from paper_wheel import GAIN, PAPER, ROUNDS, SEEDS, quadrant

from sublaplace_cli import cifar_resnet

SURE = 4  # standard deviations by which the number of outer contexts may be above its mean in every run
NORMAL = 1.96
# Trainable parameters as printed: (depth, outputs, where) → p. All shortcuts but those of option B are ruled out by
# ResNet-20 and ResNet-110.
SIZES = {
    (20, 1, "Setup B"): 271_889,
    (32, 1, "Setup B"): 466_906,
    (56, 1, "Setup B"): 855_930,
    (110, 1, "Setup B"): 1_730_129,
    (20, 10, "Setup C"): 272_474,
    (32, 10, "Setup C, text"): 466_906,
    (32, 10, "Setup C, caption"): 467_556,
}
WORDS = """\
- *Last k* is two things: the comparison of the methods takes the first k positions of a vector ordered from the first
  layer to the last, the list of benchmark algorithms and Setup A's appendix the last k. Here it is the last k.
- The mean squared gradient is defined as g̃, in the text and in Algorithm 1, but the text ranks the entries of ḡ, which
  is the gradient at the limit of the parameters elsewhere.
- The wheel's traces at δ = 0.95 are means of twenty seeds, its table and its bars of 25.
- Bands of Setups A and B are one standard error in the captions, and 1.96 standard deviations in the appendix."""


class Reading(NamedTuple):
    """What the number after ± may be."""

    name: str
    deviation: float  # the standard deviation over runs, as a multiple of the number


READINGS = (
    Reading(f"the standard error of {SEEDS} runs, as the tables have it", math.sqrt(SEEDS)),
    Reading(f"1.96 standard errors of {SEEDS} runs, as in the bars", math.sqrt(SEEDS) / NORMAL),
    Reading("the standard deviation over runs", 1.0),
)


def most(delta: str, deviations: float = 0.0) -> float:
    """The regret of an agent that never pulls the right outer arm."""
    share = 1 - float(delta) ** 2
    return (ROUNDS * share + deviations * math.sqrt(ROUNDS * share * (1 - share))) * GAIN


def largest_deviation(mean: float, end: float, runs: int) -> float:
    """Of `runs` numbers from 0 to `end` with this mean: all of them at an end."""
    return math.sqrt(mean * (end - mean) * runs / (runs - 1))


def most_runs(mean: float, error: float, end: float) -> int:
    """The number of runs from which on this cannot be their standard error."""
    return math.floor(1 + mean * (end - mean) / error**2)


def impossible(delta: str, reading: Reading, deviations: float = 0.0) -> list[str]:
    """The rows whose ± is larger than runs with their mean can have."""
    end = most(delta, deviations)
    return [
        name_of(method, k)
        for (method, k), (mean, error) in PAPER[delta].items()
        if error * reading.deviation > largest_deviation(mean, end, SEEDS)
    ]


def name_of(method: str, k: str) -> str:
    return f"`{method}`" + (f" {k}" if k else "")


def audit_summary() -> str:
    """What the checks found, in a few lines."""
    caption, bars = READINGS[:2]
    ends = {delta: most(delta) for delta in PAPER}
    counts = {delta: len(impossible(delta, caption)) for delta in PAPER}
    sure = {delta: len(impossible(delta, caption, SURE)) for delta in PAPER}
    at_most = min(most_runs(*row, most("0.9")) for row in PAPER["0.9"].values())
    flat = ends["0.9"] / 2 / math.sqrt(SEEDS - 1)
    beyond = [error for _, error in PAPER["0.9"].values() if error > flat]
    wrong = [row for row in sizes() if row[3] != 0]
    return (
        f"**Audit of the printed figures.** At δ = 0.9 a run loses between 0 and {ROUNDS:,} · {1 - 0.9**2:.2f} · "
        f"{GAIN:.0f} = {ends['0.9']:,.0f}, so the standard error of {SEEDS} runs is at most {ends['0.9']:,.0f} / 2 / "
        f"√{SEEDS - 1} = {flat:,.0f}. The paper prints {min(beyond):,.0f} to {max(beyond):,.0f} in {len(beyond)} rows; "
        f"with the mean of each row taken into account, {counts['0.9']} of {len(PAPER['0.9'])} rows are impossible "
        f"at δ = 0.9 and {counts['0.95']} at δ = 0.95 ({sure['0.9']} and {sure['0.95']} if every run had {SURE} "
        f"standard deviations more outer contexts than expected). As standard errors, they are of at most {at_most} "
        f"runs; as 1.96 standard errors of {SEEDS} runs, or as standard deviations, "
        f"{'all' if not impossible('0.9', bars) + impossible('0.95', bars) else 'not all'} of them are possible. "
        f"Of {len(SIZES)} sizes of ResNets that it prints, {len(wrong)} are not those of the networks described."
    )


def audit(lines: list[Line]) -> str:
    """All checks, with the arithmetic."""
    return "\n\n".join(
        [
            "## Audit of the paper's printed figures",
            "### Standard errors of the wheel's regret",
            f"Only rounds with an outer context can be lost, {GAIN:.0f} each: a run's regret is between 0 and, in the "
            f"mean over contexts, M = T (1 − δ²) · {GAIN:.0f}. The sum of squared deviations of n numbers from 0 to M "
            "with mean m is at most n m (M − m), so their standard error is at most √(m (M − m) / (n − 1)), and at "
            "most M / 2 / √(n − 1) whatever the mean. The last column: as a standard error, the ± is of at most so "
            "many runs.",
            table(["δ", "method", "printed", f"largest possible of {SEEDS}", "", "runs"], error_rows()),
            "What the ± may be, and what follows for `map`, whose runs lose whole quadrants (M / 4 each): the standard "
            "deviation over runs in quadrants, and in parentheses the largest that its mean allows. At that largest "
            "one every run loses all four quadrants or none, though they are found one by one.",
            table(["if ± is", *(head for delta in PAPER for head in heads(delta))], reading_rows()),
            own_deviations(lines),
            "### Sizes of networks",
            "Shortcuts of option B (1×1 convolutions with batch normalisation), trainable parameters.",
            table(["ResNet", "outputs", "printed in", "printed − counted", "printed", "counted", ""], size_rows()),
            "### Definitions",
            WORDS,
        ]
    )


def error_rows() -> Iterator[list[object]]:
    for delta, rows in PAPER.items():
        end = most(delta)
        for (method, k), (mean, error) in rows.items():
            limit = largest_deviation(mean, end, SEEDS) / math.sqrt(SEEDS)
            said = "impossible" if error > limit else ""
            runs = most_runs(mean, error, end)
            yield [delta, name_of(method, k), f"{mean:,.0f} ± {error:,.0f}", f"{limit:,.0f}", said, f"{runs:,}"]


def heads(delta: str) -> tuple[str, str]:
    return f"impossible at δ = {delta}", f"deviation of `map`, δ = {delta}"


def reading_rows() -> Iterator[list[object]]:
    for reading in READINGS:
        cells: list[object] = []
        for delta, rows in PAPER.items():
            mean, error = rows["map", ""]
            worth = quadrant(delta)
            limit = largest_deviation(mean, most(delta), SEEDS) / worth
            cells += [f"{len(impossible(delta, reading))} of {len(rows)}"]
            cells += [f"{error * reading.deviation / worth:.2f} ({limit:.2f})"]
        yield [reading.name, *cells]


def own_deviations(lines: list[Line]) -> str:
    """The paper's ± of `gradient` with k = 500, of which no run fails, beside the standard deviation here."""
    parts = []
    for delta, rows in PAPER.items():
        _, error = rows["gradient", "500"]
        readings = " / ".join(f"{error * reading.deviation:,.0f}" for reading in READINGS)
        own = [line for line in lines if (line["delta"], line["method"], line["k"]) == (delta, "gradient", "500")]
        here = ", ".join(
            f"{variant} {deviation(group):,.0f} ({len(group)} seeds)"
            for (variant,), group in sorted(grouped(own, "variant").items(), reverse=True)
            if len(group) > 1
        )
        parts.append(f"δ = {delta}: {readings}" + (f"; here {here}" if here else ""))
    return (
        "`gradient` with k = 500, the standard deviation over runs under each of the three: " + ". ".join(parts) + "."
    )


def deviation(group: list[Line]) -> float:
    values = [float(line["regret"]) for line in group]
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def counted(depth: int, outputs: int) -> int:
    model = cifar_resnet(depth=depth, out=outputs, shortcut="B")
    return sum(parameter.numel() for parameter in model.parameters())


def sizes() -> Iterator[tuple[int, int, str, int, int, int]]:
    """(depth, outputs, where, printed − counted, printed, counted)."""
    for (depth, outputs, where), printed in SIZES.items():
        own = counted(depth, outputs)
        yield depth, outputs, where, printed - own, printed, own


def size_rows() -> Iterator[list[object]]:
    for depth, outputs, where, difference, printed, own in sizes():
        yield [depth, outputs, where, f"{difference:+,}", f"{printed:,}", f"{own:,}", told(depth, outputs, printed)]


def told(depth: int, outputs: int, printed: int) -> str:
    """How a printed size that is not that of the network may have come about."""
    ten = counted(depth, 10)
    head = 64 * 10 + 10
    if printed == counted(depth, outputs):
        return "the same"
    if printed == ten:
        return "that of the network with ten outputs"
    if printed == ten + head:
        return f"that of the network with ten outputs, its head of {head} twice"
    return f"{printed - ten:+,} from that of the network with ten outputs"
