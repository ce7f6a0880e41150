"""Random sums of gradients beside chosen parameters: where they are closer to the full posterior, and where not."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from comparing import SLACK, Means
from drawing import PLAIN, SKETCHES, Line, Way, folded, grouped, mean_and_error, table, way_name

CHOSEN = ("gradient", "greedy")
SIZED = (*CHOSEN, *SKETCHES)
RESCALED = "scale"
ASKED: list[tuple[Way, Way]] = [
    *(((sums, kind), (rival, kind)) for kind in (PLAIN, RESCALED) for sums in SKETCHES for rival in CHOSEN),
    *((("gradient+sketch", kind), ("sketch", kind)) for kind in (PLAIN, RESCALED)),
    *(((sums, RESCALED), ("norm", PLAIN)) for sums in SKETCHES),
]
CELLS = {"year": ("dataset",), "cifar": ("dataset", "model", "n_train"), "uci": ("dataset", "model")}
ROUNDING = 1e-5  # of the digits in the tables
ALARM = """\
A plain sketch is no sub-network: its kernel is that of the full posterior on average over seeds, so its variance may
  exceed the full one at some rows. Theorem 1 and the alarm that checks it in every run apply to sub-networks only."""


def sketches(lines: Mapping[str, Sequence[Line]]) -> str:
    """The section, over the runs of all studies that have every method it compares."""
    some = [line for study in CELLS for line in paired(lines.get(study, []), study)]
    if not some:
        return "## Random sums of gradients\n\nNot run yet."
    ks = sorted({int(line["k"]) for line in some if line["method"] in SIZED})
    return "\n\n".join(
        [
            "## Random sums of gradients",
            "`sketch` adds up all parameters' gradients, each with a random sign, in k sums; `gradient+sketch` keeps "
            "the k/2 parameters that `gradient` chooses, and makes k/2 sums of all others. Neither is in the paper. "
            "Signs and groups are the same in every replication. This section has the replications in which all of "
            f"{', '.join(f'`{method}`' for method in SIZED)} were run: {counted(some)}. {repeated(some)} "
            f"{overshoot(some)}",
            "In how many of these places (a data set and a network, with its mean over replications) the mean W2 of "
            f"one is below / above that of another by more than {percent(SLACK)}:",
            by_k(some, ks),
            "At which k the sums are closer than the better of `gradient` and `greedy`, both plain or both rescaled, "
            f"by more than {percent(SLACK)}, and in parentheses at which they are further by as much:",
            by_place(some, ks),
            folded("relative W2 of all four, the least in bold", numbers(some, ks)),
        ]
    )


def paired(lines: Sequence[Line], study: str) -> list[Line]:
    """The lines of the runs that have all of these methods, with the place that they belong to."""
    cell = CELLS[study]
    known = [{"rescale": PLAIN} | line for line in lines if line["w2_relative"] != "" and float(line["w2"]) > 0]
    found = []
    for key, own in grouped(known, *cell, "seed", "rescale").items():
        if set(SIZED) <= {line["method"] for line in own}:
            place = {"place": ", ".join(key[: len(cell)])}
            found += [line | place for line in own if line["method"] in (*SIZED, "norm")]
    return found


def counted(lines: Sequence[Line]) -> str:
    seeds = {place: len({line["seed"] for line in own}) for (place,), own in grouped(lines, "place").items()}
    return "; ".join(f"{place}: {count}" for place, count in seeds.items())


def full_mean(line: Line) -> float:
    """Mean σ of the full posterior that a line was compared with."""
    return float(line["w2"]) / float(line["w2_relative"])


def repeated(lines: Sequence[Line]) -> str:
    """Whether the rows that were added to a finished run are about the same network."""
    gaps = []
    for own in grouped(lines, "place", "seed").values():
        chosen, sums = (
            [full_mean(line) for line in own if line["method"] in methods and float(line["w2_relative"]) > 0.01]
            for methods in (CHOSEN, SKETCHES)
        )
        if chosen and sums:
            gaps.append(abs(sums[0] / chosen[0] - 1))
    if not gaps or max(gaps) < ROUNDING:
        return ""
    return (
        "Where they were added to finished runs, of the same networks trained again, the other rows are of a version "
        "that did not compare float32 gradients with float64 near the kinks of ReLU: the mean σ of the full posterior "
        f"differs by {percent(max(gaps))} at most between the two, in the median by {percent(statistics.median(gaps))}."
    )


def percent(share: float) -> str:
    return f"{100 * share:.1g} %"


def overshoot(lines: Sequence[Line]) -> str:
    plain = [line for line in lines if line["rescale"] == PLAIN]
    above = {
        method: [float(line["mean_std"]) > full_mean(line) * (1 + ROUNDING) for line in own]
        for (method,), own in grouped(plain, "method").items()
    }
    said = ", ".join(f"`{method}` in {sum(above[method])} of {len(above[method])}" for method in SIZED)
    return f"Mean σ over the test rows, without rescaling, is above that of the full posterior: {said} lines."


def by_k(lines: Sequence[Line], ks: Sequence[int]) -> str:
    means = Means(lines, "place")
    rows = []
    for better, worse in ASKED:
        cells = []
        for asked in ks:
            below, above = (
                means.below(*pair, lambda k, size, asked=asked: k == asked, slack=-SLACK)
                for pair in ((better, worse), (worse, better))
            )
            cells.append(f"{below.holds} / {above.holds} of {below.of}" if below.of else "")
        if any(cells):
            rows.append([f"`{way_name(better)}`, `{way_name(worse)}`", *cells])
    return table(["mean W2", *(f"k = {k}" for k in ks)], rows)


def by_place(lines: Sequence[Line], ks: Sequence[int]) -> str:
    means, rows = Means(lines, "place"), []
    for (place,), own in grouped(lines, "place").items():
        cells = []
        for kind in (PLAIN, RESCALED):
            best = {k: min(means.over_k((place,), (m, kind)).get(str(k), float("nan")) for m in CHOSEN) for k in ks}
            seen = [k for k in ks if best[k] == best[k]]
            for sums in SKETCHES:
                values = means.over_k((place,), (sums, kind))
                closer = runs_of([values[str(k)] < best[k] * (1 - SLACK) for k in seen], seen)
                further = runs_of([values[str(k)] * (1 - SLACK) > best[k] for k in seen], seen)
                cells.append(f"{closer} ({further})" if seen else "not run")
        rows.append([place, own[0]["n_params"], *cells])
    names = [way_name((sums, kind)) for kind in (PLAIN, RESCALED) for sums in SKETCHES]
    return table(["", "p", *(f"`{name}`" for name in names)], rows)


def runs_of(holds: Sequence[bool], ks: Sequence[int]) -> str:
    """The k at which something holds, in words: "500 to 2000, 10000"."""
    found: list[list[int]] = []
    for i, (k, held) in enumerate(zip(ks, holds, strict=True)):
        if held and i and holds[i - 1]:
            found[-1].append(k)
        elif held:
            found.append([k])
    if len(found) == 1 and len(found[0]) == len(ks):
        return "all"
    return ", ".join(str(some[0]) if len(some) == 1 else f"{some[0]} to {some[-1]}" for some in found) or "none"


def numbers(lines: Sequence[Line], ks: Sequence[int]) -> str:
    rows = []
    sized = [line for line in lines if line["method"] in SIZED and line["rescale"] in (PLAIN, RESCALED)]
    for (place, kind), own in grouped(sized, "place", "rescale").items():
        cells = {key: mean_and_error(some, "w2_relative")[0] for key, some in grouped(own, "method", "k").items()}
        least = {k: min(value for (_, at), value in cells.items() if at == k) for k in {key[1] for key in cells}}
        for method in SIZED:
            shown = [bold(cells.get((method, str(k))), least.get(str(k))) for k in ks]
            rows.append([place, f"`{way_name((method, kind))}`", *shown])
    return table(["", "relative W2", *(f"k = {k}" for k in ks)], rows)


def bold(value: float | None, least: float | None) -> str:
    if value is None:
        return ""
    return f"**{value:.3f}**" if value == least else f"{value:.3f}"
