"""What the sections of the report share: groups of lines, tables, and curves over k."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
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
    "sketch": ("#A50026", "<"),
    "gradient+sketch": ("#B8A800", ">"),
    "neural-linear": ("#000000", "D"),
    "kfac": ("#E69F00", "P"),
    "norm": ("#56B4E9", "*"),
    "constant": ("#8B5A2B", "+"),
    "ensemble": ("#7F3FBF", "h"),
    "full": ("#444444", "."),
    "map": ("#BBBBBB", "d"),
}
SUBNETS = ("gradient", "greedy", "random", "subnet-diagonal", "last-k")  # to which Theorem 1 applies
SKETCHES = ("sketch", "gradient+sketch")
OF_K = (*SUBNETS, *SKETCHES)


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


def folded(title: str, text: str) -> str:
    """A text that is unfolded by a click on its title, for what few readers need."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


Way = tuple[str, str]  # a method, and how its variances are rescaled
PLAIN = "none"
STYLE = {PLAIN: "-", "scale": "--", "hybrid": ":"}


def way_name(way: Way) -> str:
    return way[0] + ("" if way[1] == PLAIN else f", {way[1]}")


def curves(rows: Sequence[Sequence[tuple[str, Sequence[Line], str]]], path: Path, ways: Sequence[Way]) -> None:
    """A panel for each (title, lines, metric): a curve over k for each way, a horizontal line where it has no k."""
    width = len(rows[0])
    size = (5.2 * width, 3.3 * len(rows))
    figure, axes = plt.subplots(len(rows), width, figsize=size, squeeze=False, layout="constrained")
    for row, line_of_axes in zip(rows, axes, strict=True):
        for (title, lines, metric), axis in zip(row, line_of_axes, strict=True):
            groups = grouped([{"rescale": PLAIN} | line for line in lines if line[metric] != ""], "method", "rescale")
            for way in ways:
                if (way[0], metric) != ("full", "w2"):  # which is 0 but for rounding
                    draw(axis, groups.get(way, []), way, metric)
            axis.set(xscale="log", yscale="log" if metric == "w2" else "linear", title=title)
            axis.set_ylabel({"w2": "mean |σ_full − σ|", "coverage95": "coverage of the oracle (95 %)"}[metric])
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("k")
    figure.legend(*axes[0][-1].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    save(figure, path)


def draw(axis: Any, lines: Sequence[Line], way: Way, metric: str) -> None:
    if not lines:
        return
    method, rescale = way
    (colour, marker), label = LOOK[method], way_name(way)
    if method not in (*OF_K, "neural-linear"):
        axis.axhline(mean_and_error(lines, metric)[0], color=colour, linestyle="-.", linewidth=1, label=label)
        return
    points = sorted((int(k), *mean_and_error(group, metric)) for (k,), group in grouped(lines, "k").items())
    ks, means, errors = zip(*points, strict=True)
    axis.plot(ks, means, STYLE[rescale], color=colour, marker=marker, markersize=4, linewidth=1.2, label=label)
    axis.fill_between(ks, *band(means, errors, 1.0), color=colour, alpha=0.2)


def band(means: Sequence[float], errors: Sequence[float], width: float) -> tuple[list[float], list[float]]:
    """Means less and plus so many errors; where there is one run, the mean itself."""
    known = [0.0 if math.isnan(error) else width * error for error in errors]
    return [m - e for m, e in zip(means, known, strict=True)], [m + e for m, e in zip(means, known, strict=True)]
