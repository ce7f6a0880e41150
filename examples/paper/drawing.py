"""What the sections of the report share: groups of lines, tables, and curves over k."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

Line = dict[str, str]
# Okabe and Ito's colours, which can be told apart by everybody, with a marker each.
LOOK = {
    "gradient": ("#0072B2", "o"),
    "greedy": ("#D55E00", "s"),
    "subnet-diagonal": ("#009E73", "v"),
    "last-k": ("#CC79A7", "^"),
    "random": ("#999999", "x"),
    "neural-linear": ("#000000", "D"),
    "kfac": ("#E69F00", "P"),
    "norm": ("#56B4E9", "*"),
    "constant": ("#8B5A2B", "+"),
    "ensemble": ("#7F3FBF", "h"),
    "full": ("#444444", "."),
    "map": ("#BBBBBB", "d"),
}
OF_K = ("gradient", "greedy", "random", "subnet-diagonal", "last-k")


def read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def grouped(lines: Iterable[Line], *names: str) -> dict[tuple[str, ...], list[Line]]:
    groups: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for line in lines:
        groups[tuple(line[name] for name in names)].append(line)
    return groups


def mean_and_error(lines: Sequence[Line], metric: str) -> tuple[float, float]:
    values = [float(line[metric]) for line in lines if line[metric] != ""]
    if not values:
        return math.nan, math.nan
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def shown(mean: float, error: float, digits: int) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.{digits}f}" + ("" if math.isnan(error) else f" ± {error:.{digits}f}")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def curves(
    rows: Sequence[Sequence[tuple[str, Sequence[Line], str]]], path: Path, methods: Sequence[str], logarithmic: set[str]
) -> None:
    """A panel for each (title, lines, metric): a curve over k for each method, a horizontal line where it has no k."""
    width = len(rows[0])
    figure, axes = plt.subplots(
        len(rows), width, figsize=(5.2 * width, 3.3 * len(rows)), squeeze=False, layout="constrained"
    )
    for row, line_of_axes in zip(rows, axes, strict=True):
        for (title, lines, metric), axis in zip(row, line_of_axes, strict=True):
            for method in methods:
                draw(axis, [q for q in lines if q["method"] == method and q[metric] != ""], method, metric)
            axis.set(xscale="log", yscale="log" if metric in logarithmic else "linear", title=title)
            axis.set_ylabel({"w2": "mean |σ_full − σ|", "coverage95": "coverage of the oracle (95 %)"}[metric])
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("k")
    axes[0][-1].legend(fontsize=7)
    save(figure, path)


def draw(axis: Any, lines: Sequence[Line], method: str, metric: str) -> None:
    if not lines:
        return
    colour, marker = LOOK[method]
    if method not in (*OF_K, "neural-linear"):
        axis.axhline(mean_and_error(lines, metric)[0], color=colour, linestyle="--", linewidth=1, label=method)
        return
    points = sorted((int(k), *mean_and_error(group, metric)) for (k,), group in grouped(lines, "k").items())
    ks, means, errors = zip(*points, strict=True)
    axis.plot(ks, means, color=colour, marker=marker, markersize=4, linewidth=1.2, label=method)
    axis.fill_between(ks, *band(means, errors, 1.0), color=colour, alpha=0.2)


def band(means: Sequence[float], errors: Sequence[float], width: float) -> tuple[list[float], list[float]]:
    """Means less and plus so many errors; where there is one run, the mean itself."""
    known = [0.0 if math.isnan(error) else width * error for error in errors]
    return [m - e for m, e in zip(means, known, strict=True)], [m + e for m, e in zip(means, known, strict=True)]


Way = tuple[str, str]  # a method, and how its variances are rescaled
PLAIN = "none"


def counted(lines: Sequence[Line], pairs: Sequence[tuple[Way, Way]], *cell: str) -> str:
    """How often the mean W2 of one way is below that of another, over all cells (of columns `cell`) and k."""
    means: Mapping[tuple[str, ...], float] = {
        key: mean_and_error(group, "w2")[0] for key, group in grouped(lines, *cell, "method", "rescale", "k").items()
    }
    cells = sorted({(key[: len(cell)], key[-1]) for key in means if key[-3] == "gradient"})

    def of(where: tuple[str, ...], k: str, way: Way) -> float:
        own = [value for key, value in means.items() if key[:-1] == (*where, *way)]
        return means.get((*where, *way, k), own[0] if len(own) == 1 else math.nan)

    def name(way: Way) -> str:
        return f"`{way[0]}`" + ("" if way[1] == PLAIN else f" with {way[1]}")

    rows = []
    for better, worse in pairs:
        found = [(of(where, k, better), of(where, k, worse)) for where, k in cells]
        known = [(a, b) for a, b in found if not math.isnan(a + b)]
        if known:
            rows.append([f"{name(better)} below {name(worse)}", f"{sum(a < b for a, b in known)} of {len(known)}"])
    return table(["mean W2", "in"], rows)


CLAIMS = [  # of the paper; for `kfac`: at moderate k
    (("gradient", PLAIN), (rival, PLAIN)) for rival in ("subnet-diagonal", "last-k", "random", "neural-linear", "kfac")
] + [(("greedy", PLAIN), ("gradient", PLAIN))]
WITHOUT_A_CHOICE = [
    (("gradient", PLAIN), ("norm", PLAIN)),
    (("gradient", "scale"), ("gradient", PLAIN)),
    (("gradient", "scale"), ("norm", PLAIN)),
    (("gradient", "scale"), ("random", "scale")),
    (("random", "scale"), ("gradient", PLAIN)),
]
