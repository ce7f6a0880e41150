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
WAYS = [(sums, kind) for kind in (PLAIN, RESCALED) for sums in SKETCHES]
SHARE = 10
CELLS = {"year": ("dataset",), "cifar": ("dataset", "model", "n_train"), "uci": ("dataset", "model")}
OF_PAIRS = (
    "In how many places (a data set and a network, with its mean over replications) the mean W2 of the first is below "
    "/ above that of the second by more than the same."
)
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
            f"{', '.join(f'`{method}`' for method in SIZED)} were run: {counted(some, lines)}. {repeated(some)} "
            f"{overshoot(some)}",
            "How often the mean W2 over replications is below, and above, the better of `gradient` and `greedy` by "
            f"more than {percent(SLACK)}, both plain or both rescaled:",
            by_share(some, ks),
            "At which k it is below, and in parentheses at which it is above:",
            by_place(some, ks),
            folded("one beside another, at every k", OF_PAIRS + "\n\n" + by_k(some, ks)),
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
            place = {"place": place_of(study, key)}
            found += [line | place for line in own if line["method"] in (*SIZED, "norm")]
    return found


def place_of(study: str, key: Sequence[str]) -> str:
    return f"{study}: {', '.join(key[: len(CELLS[study])])}"


def counted(some: Sequence[Line], lines: Mapping[str, Sequence[Line]]) -> str:
    """In how many replications of each place they were run, of those that there are, and where not at all."""
    seeds = {place: len({line["seed"] for line in own}) for (place,), own in grouped(some, "place").items()}
    every = {
        place_of(study, key): len({line["seed"] for line in own})
        for study, cell in CELLS.items()
        for key, own in grouped(lines.get(study, []), *cell).items()
    }
    missing = [place for place in every if place not in seeds]
    return "; ".join(f"{place}: {count} of {every[place]}" for place, count in seeds.items()) + (
        f"; nowhere in {'; '.join(missing)}" if missing else ""
    )


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


Standing = tuple[int, bool, bool]  # k, and whether the sums are closer and further than the better of the two


def standing(means: Means, place: str, sums: Way, ks: Sequence[int]) -> list[Standing]:
    own, rivals = means.over_k((place,), sums), [means.over_k((place,), (m, sums[1])) for m in CHOSEN]
    found = []
    for k in (k for k in ks if str(k) in own):
        value, best = own[str(k)], min(rival[str(k)] for rival in rivals)
        found.append((k, value < best * (1 - SLACK), value * (1 - SLACK) > best))
    return found


def by_share(lines: Sequence[Line], ks: Sequence[int]) -> str:
    """Apart for small k and large ones, beside the number of parameters."""
    means = Means(lines, "place")
    sizes = {place: int(own[0]["n_params"]) for (place,), own in grouped(lines, "place").items()}
    rows = []
    for way in WAYS:
        sides: dict[bool, list[Standing]] = {True: [], False: []}
        for place, size in sizes.items():
            for seen in standing(means, place, way, ks):
                sides[seen[0] <= size / SHARE].append(seen)
        cells = [f"{sum(s[1] for s in side)} / {sum(s[2] for s in side)} of {len(side)}" for side in sides.values()]
        rows.append([f"`{way_name(way)}`", *cells])
    return table(["below / above", f"k up to p/{SHARE}", "larger k"], rows)


def by_place(lines: Sequence[Line], ks: Sequence[int]) -> str:
    means, rows = Means(lines, "place"), []
    for (place,), own in grouped(lines, "place").items():
        cells = []
        for way in WAYS:
            seen = standing(means, place, way, ks)
            closer, further = (runs_of([s[which] for s in seen], [s[0] for s in seen]) for which in (1, 2))
            cells.append(f"{closer} ({further})" if seen else "not run")
        rows.append([place, own[0]["n_params"], *cells])
    return table(["", "p", *(f"`{way_name(way)}`" for way in WAYS)], rows)


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
