"""Pictures of a result: W2 and coverage over k, calibration, σ against σ_full, where the sub-networks sit.

To add one: write `name(result, figures) -> Figure` here and add a line to `catalog.PICTURES`.
Needs matplotlib (extra [plot]), drawn without a screen. Colours are those of Okabe and Ito, which the colour-blind can
tell apart, and every line has a marker of its own besides.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ..results.baseline import NOMINAL
from ..steps.figures import Figures, Series

Row = dict[str, Any]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<")
DASHES = ("--", "-.", ":", (0, (1, 1, 4, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)))
# The second panel of the curves: the first of these that some row has.
SECOND = {
    "coverage95": "coverage of the oracle by 95 % intervals",
    "coverage95_total": "coverage of the targets by 95 % intervals",
    "nll": "negative log-likelihood",
}
NOISE = 1e-9  # of the standard deviations: a smaller W2 is rounding
MOST_LAYERS = 40  # rows of a map; larger networks are added up by module


def picture(figure: Figure, kind: str) -> bytes:
    """The figure as a file of this kind (png, svg or pdf); the same figure gives the same bytes."""
    out = io.BytesIO()
    stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "sublaplace", "svg.fonttype": "path"}):
        figure.savefig(out, format=kind, dpi=150, metadata=stamp, bbox_inches="tight")
    return out.getvalue()


def curves(result: dict[str, Any], _figures: Figures) -> Figure:
    """The paper's two panels: W2 over k and coverage over k, a line a method, references as horizontal lines."""
    rows = list(result.get("mean", result["rows"]))
    full = result.get("full")
    if full and not any(row["method"] == "full" for row in rows):
        rows.append(full)
    second = next((name for name in SECOND if any(row.get(name) is not None for row in rows)), "nll")
    figure = _figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    for axes, metric in ((left, "w2"), (right, second)):
        _panel(axes, rows, metric)
    left.set_ylabel("W2 to the full posterior: mean |σ_full − σ|")
    right.set_ylabel(SECOND[second])
    if second != "nll":
        right.axhline(NOMINAL, color="0.6", linewidth=1, zorder=0)
        right.annotate("nominal 0.95", (1, NOMINAL), xycoords=("axes fraction", "data"), xytext=(-3, 3),
                       textcoords="offset points", ha="right", fontsize=8, color="0.4")  # fmt: skip
    entries = {label: handle for axes in (left, right) for handle, label in zip(*axes.get_legend_handles_labels())}  # noqa: B905
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside right upper", frameon=False, fontsize=9)
    figure.suptitle(_title(result), fontsize=10)
    return figure


def _panel(axes: Axes, rows: Sequence[Row], metric: str) -> None:
    log = metric == "w2"
    methods = list(dict.fromkeys(row["method"] for row in rows))
    drawn = False
    for number, method in enumerate(methods):
        own = sorted((row for row in rows if row["method"] == method and _shown(row, metric, log)),
                     key=lambda row: _k(row) or 0)  # fmt: skip
        if not own:
            continue
        drawn = True
        colour, marker = _colour(number), _marker(number)
        if method == "full" or _k(own[0]) is None:
            axes.axhline(own[0][metric], color=colour, linestyle=DASHES[number % len(DASHES)], label=method)
            continue
        ks, values = [_k(row) or 0 for row in own], [row[metric] for row in own]
        hollow: dict[str, Any] = {"marker": "D", "markerfacecolor": "none", "markersize": 9, "linestyle": "none"}
        plain: dict[str, Any] = {"marker": marker, "markersize": 5, "linewidth": 1.6}
        axes.plot(ks, values, color=colour, label=method, **(hollow if method == "neural-linear" else plain))
        _band(axes, ks, own, metric, colour)
    _bracket(axes, rows, metric, methods)
    axes.set_xlabel("k, number of parameters in the sub-network")
    axes.set_xscale("log")
    _name_ticks(axes, sorted({k for row in rows if (k := _k(row)) is not None and row["method"] != "full"}))
    if log and drawn:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "246" else ""))
    if not drawn and not any(row.get("w2_low") is not None for row in rows):
        zero = any(row.get(metric) is not None for row in rows)
        words = f"{metric} is 0 but for rounding" if zero else f"no {metric} in this result"
        axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes, color="0.4")
    axes.grid(visible=True, which="major", color="0.9")


def _name_ticks(axes: Axes, ks: list[int]) -> None:
    """The k themselves, as far as their names have room."""
    named: list[int] = []
    for k in ks:
        if not named or k >= 1.35 * named[-1]:
            named.append(k)
    if 0 < len(named) <= 12:
        axes.set_xticks(named, [str(k) for k in named])
        axes.xaxis.set_minor_locator(NullLocator())


def _k(row: Row) -> int | None:
    """k of a row; of a mean over runs that differ in it, their mean."""
    return round(sum(row["ks"]) / len(row["ks"])) if "ks" in row else row["k"]


def _shown(row: Row, metric: str, log: bool) -> bool:
    """On a log axis rounding noise is left out: a sub-network of all parameters has W2 = 0 but for that."""
    value = row.get(metric)
    return value is not None and (not log or value > NOISE * (row.get("mean_std") or 0.0))


def _band(axes: Axes, ks: list[int], rows: Sequence[Row], metric: str, colour: str) -> None:
    """± one standard error; a whisker where there is only one k."""
    values, errors = [row[metric] for row in rows], [row.get(f"{metric}_se") or 0.0 for row in rows]
    if not any(errors):
        return
    low = [max(value - error, value / 10) if metric == "w2" else value - error
           for value, error in zip(values, errors, strict=True)]  # fmt: skip
    high = [value + error for value, error in zip(values, errors, strict=True)]
    if len(ks) == 1:
        axes.vlines(ks, low, high, color=colour, linewidth=1.5)
    else:
        axes.fill_between(ks, low, high, color=colour, alpha=0.18, linewidth=0)


def _bracket(axes: Axes, rows: Sequence[Row], metric: str, methods: list[str]) -> None:
    """`--full bracket`: the interval that W2 certainly lies in."""
    for row in rows if metric == "w2" else ():
        if row.get("w2_low") is not None and row["k"] is not None:
            number = methods.index(row["method"])
            axes.vlines(row["k"], row["w2_low"], row["w2_high"], color=_colour(number), linewidth=3,
                        label=f"{row['method']} (bracket)")  # fmt: skip


def calibration(_result: dict[str, Any], figures: Figures) -> Figure:
    """Reliability for classification; nominal against empirical coverage for regression."""
    figure = _figure(7.2, 5)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="perfect")
    _lines(axes, figures.calibration)
    regression = figures.task == "regression"
    axes.set_xlabel("nominal coverage of the targets" if regression else "mean probability of the top class")
    axes.set_ylabel("empirical coverage" if regression else "accuracy")
    axes.set(xlim=(0, 1.01), ylim=(0, 1.01), box_aspect=1)
    axes.grid(visible=True, color="0.9")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    axes.set_title("Calibration on the test rows", fontsize=10)
    return figure


def _lines(axes: Axes, series: Sequence[Series]) -> None:
    for number, line in enumerate(series):
        style: dict[str, Any] = {"color": _colour(number), "marker": _marker(number)}
        axes.plot(line.x, line.y, label=line.label, markersize=4, linewidth=1.4, **style)


def scatter(_result: dict[str, Any], figures: Figures) -> Figure:
    """σ of each method against σ_full, a point a test row and output."""
    figure = _figure(7.2, 5)
    axes = figure.subplots()
    for number, cloud in enumerate(figures.scatter):
        style: dict[str, Any] = {"color": _colour(number), "marker": _marker(number)}
        axes.scatter(cloud.x, cloud.y, label=cloud.label, s=10, alpha=0.6, linewidths=0, **style)
    # Outliers must not squeeze the others: equal axes up to the largest of σ_full.
    top = 1.05 * max((max(cloud.x) for cloud in figures.scatter), default=1.0) or 1.0
    beyond = sum(value > top for cloud in figures.scatter for value in cloud.y)
    axes.plot([0, top], [0, top], color="0.6", linewidth=1, label="σ = σ_full", zorder=0)
    axes.set(xlim=(0, top), ylim=(0, top), box_aspect=1)
    axes.set_xlabel("σ_full, standard deviation by the full posterior")
    axes.set_ylabel("σ, standard deviation by the method")
    axes.grid(visible=True, color="0.9")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    note = f" ({beyond} points lie above)" if beyond else ""
    axes.set_title(f"Epistemic standard deviations on the test rows{note}", fontsize=10)
    return figure


def layer_map(_result: dict[str, Any], figures: Figures) -> Figure:
    """Where each sub-network sits: the share of every layer's parameters that it holds."""
    labels = list(figures.layers[0].chosen) if figures.layers else []
    layers = _grouped(figures)
    figure = _figure(3.6 + 1.1 * len(labels), 1.6 + 0.28 * len(layers))
    axes = figure.subplots()
    shares = [[chosen.get(label, 0) / max(size, 1) for label in labels] for _, size, chosen in layers]
    image = axes.imshow(shares, aspect="auto", cmap="cividis", vmin=0, vmax=1)
    for i, (_, _, chosen) in enumerate(layers):
        for j, label in enumerate(labels):
            dark = shares[i][j] < 0.5
            axes.text(
                j, i, f"{chosen[label]:,}", ha="center", va="center", fontsize=7, color="white" if dark else "black"
            )
    axes.set_yticks(range(len(layers)), [f"{name}  ({size:,})" for name, size, _ in layers], fontsize=8)
    axes.set_xticks(range(len(labels)), [label.replace(" (", "\n(") for label in labels], fontsize=8)
    figure.colorbar(image, ax=axes, label="share of the layer's parameters")
    axes.set_title("Parameters of each sub-network, by layer", fontsize=10)
    return figure


def _grouped(figures: Figures) -> list[tuple[str, int, dict[str, int]]]:
    """Layers as they are, or added up by fewer and fewer parts of their names until they fit."""
    depth = max((layer.name.count(".") + 1 for layer in figures.layers), default=1)
    while True:
        groups: dict[str, tuple[int, dict[str, int]]] = {}
        for layer in figures.layers:
            name = ".".join(layer.name.split(".")[:depth])
            size, chosen = groups.get(name, (0, {}))
            added = {label: chosen.get(label, 0) + count for label, count in layer.chosen.items()}
            groups[name] = (size + layer.size, added)
        if len(groups) <= MOST_LAYERS or depth == 1:
            return [(name, size, chosen) for name, (size, chosen) in groups.items()]
        depth -= 1


def _title(result: dict[str, Any]) -> str:
    n = len(result["checkpoints"]) if "checkpoints" in result else None
    over = "" if n is None else f", mean of {n} runs ± standard error"
    rows = f"{result['n_train']} training rows, {result['n_test']} test rows"
    return f"{result['task']}: {rows}, {result['n_params']:,} parameters{over}"


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _marker(number: int) -> str:
    """Another one each time that the colours begin again."""
    return MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, min(height, 40)), layout="constrained")
