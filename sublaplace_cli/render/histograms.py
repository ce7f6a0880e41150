"""Pictures of how values are distributed: scores of test rows and out-of-distribution rows."""

import math
from collections.abc import Sequence
from typing import Any

from ..results.figures import Figures, OodScore
from ..results.result import Result
from .plots import COLOURS, Axes, Figure, plain_label

BINS, AREAS_PER_LINE = 40, 2
WIDE = 30.0  # ratio of the largest value to one that a tenth are below, from which on the axis is logarithmic
TEST_COLOUR, LEAST_SHOWN = "0.55", 1e-6  # values below this share of the largest are drawn there on a logarithmic axis


def ood(_result: Result, figures: Figures) -> Figure:
    """Histograms of each score: one row of panels per score, one column per method."""
    methods = list(dict.fromkeys(one.method for one in figures.ood))
    labels = list(dict.fromkeys(one.score for one in figures.ood))
    figure = Figure(figsize=(max(3.4 * len(methods), 5), 2.7 * len(labels) + 0.6), layout="constrained")
    panels = figure.subplots(len(labels), len(methods), squeeze=False)
    for one in figures.ood:
        row, column = labels.index(one.score), methods.index(one.method)
        _panel(panels[row][column], one)
        if column == 0:
            panels[row][column].set_ylabel("share of the rows")
    entries = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels())}  # noqa: B905
    figure.legend(entries.values(), entries.keys(), loc="outside right upper", frameon=False, fontsize=9)
    figure.suptitle(f"Test rows{figures.of_set} and out-of-distribution rows", fontsize=10)
    return figure


def _panel(axes: Axes, one: OodScore) -> None:
    areas = [f"{name} {value:.3f}" for name, value in one.auroc.items()]
    lines = [", ".join(areas[i : i + AREAS_PER_LINE]) for i in range(0, len(areas), AREAS_PER_LINE)]
    axes.set_title("\n".join(map(plain_label, [one.method, *(f"AUROC {line}" for line in lines)])), fontsize=8.5)
    axes.set_xlabel(one.score)
    if not one.values:
        axes.text(0.5, 0.5, "it has no variance", ha="center", transform=axes.transAxes, color="0.4")
        axes.set(xticks=[], yticks=[])
        return
    everything = [value for values in one.values.values() for value in values]
    is_log, edges = _edges(everything)
    for number, (name, values) in enumerate(one.values.items()):
        colour = TEST_COLOUR if number == 0 else COLOURS[(number - 1) % len(COLOURS)]
        shown = [min(max(value, edges[0]), edges[-1]) for value in values]
        style: dict[str, Any] = (
            {"histtype": "stepfilled", "alpha": 0.5} if number == 0 else {"histtype": "step", "linewidth": 1.5}
        )
        weights = [1 / len(values)] * len(values)
        axes.hist(shown, edges, weights=weights, color=colour, label=plain_label(name), **style)
    if is_log:
        axes.set_xscale("log")
    axes.grid(visible=True, color="0.9")
    axes.set_axisbelow(True)


def _edges(values: Sequence[float]) -> tuple[bool, list[float]]:
    """Whether the axis is logarithmic, and the edges of the bins."""
    low, high = min(values), max(values)
    if high <= low:
        width = abs(high) or 1.0
        return False, [high + width * (i / BINS - 0.5) for i in range(BINS + 1)]
    small = sorted(values)[len(values) // 10]
    if low < 0 or high < WIDE * small:
        return False, [low + (high - low) * i / BINS for i in range(BINS + 1)]
    least = max(low, high * LEAST_SHOWN)
    return True, [least * math.exp(math.log(high / least) * i / BINS) for i in range(BINS + 1)]
