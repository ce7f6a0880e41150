"""Pictures of a result: curves over k, calibration, risk by coverage, σ against σ_full, the layers of sub-networks.

To add one: write `name(result, figures) -> Figure` here and add a line to `catalog.PICTURES`.
"""

# ruff: noqa: E402 (imports after `_import_matplotlib`)

import io
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any


def _import_matplotlib() -> None:
    """Import it from the root folder: at import it obeys a file `matplotlibrc` in the working folder."""
    for name in {"MATPLOTLIBRC", "MPLCONFIGDIR"} & set(os.environ):
        os.environ[name] = os.path.abspath(os.environ[name])
    working_folder = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    try:
        os.chdir("/")
        import matplotlib  # noqa: F401
    finally:
        os.fchdir(working_folder)
        os.close(working_folder)


_import_matplotlib()

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from ..catalog import FULL, METHODS, NAMES_PREFIX
from ..plain_text import visible
from ..results.figures import Figures
from ..results.metric_table import METRICS, NOMINAL, Metric
from ..results.result import Result, Row, SweepResult

# Of Okabe and Ito: colour-blind readers can tell them apart. Every line also has its own marker.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<")
DASHES = ("--", "-.", ":", (0, (1, 1, 4, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)))
NARROW = 4  # a log axis up to this ratio of its ends names all its ticks
ROUNDING = 1e-9  # a W2 below this share of the standard deviations is rounding
# Metrics over k: the first two, and the first of the others that is known.
AXIS_LABELS = {
    "w2": "W2 to the full posterior: mean |σ_full − σ|",
    "rank": "rank correlation of σ with σ_full",
    "coverage95": "coverage of the oracle by 95 % intervals",
    "coverage95_total": "coverage of the targets by 95 % intervals",
    "nll": "negative log-likelihood",
}
SMALL_COVERAGE = 0.1  # share of the rows below which a mean over them may leave the picture
MOST_LAYERS = 40  # rows of a map; larger networks are summed by module


def picture(figure: Figure, kind: str) -> bytes:
    """The figure as the bytes of a png, svg or pdf file; the same figure gives the same bytes."""
    out = io.BytesIO()
    stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "sublaplace", "svg.fonttype": "path"}):
        figure.savefig(out, format=kind, dpi=150, metadata=stamp, bbox_inches="tight")
    return out.getvalue()


def curves(result: Result, figures: Figures) -> Figure:
    """W2, rank correlation and coverage over k: one line per method, references as horizontal lines."""
    rows = [row for row in result.compared_rows if row.set == figures.test_set]
    if result.full is not None and not any(row.method == FULL for row in rows):
        rows.append(result.full)
    w2, rank, *others = (METRICS[name] for name in AXIS_LABELS)
    third = next((metric for metric in others if any(row.value(metric.name) is not None for row in rows)), others[-1])
    figure = Figure(figsize=(15, 4.4), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, metric in zip(panels, (w2, rank, third), strict=True):
        _panel(axes, rows, metric, log=metric is w2)
        axes.set_ylabel(AXIS_LABELS[metric.name])
    if third.better == "nominal":
        panels[-1].axhline(NOMINAL, color="0.6", linewidth=1, zorder=0)
        panels[-1].annotate("nominal 0.95", (1, NOMINAL), xycoords=("axes fraction", "data"), xytext=(-3, 3),
                       textcoords="offset points", ha="right", fontsize=8, color="0.4")  # fmt: skip
    entries = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}  # noqa: B905
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside right upper", frameon=False, fontsize=9)
    setup = result.setup
    over = f", mean of {len(result.members)} runs ± standard error" if isinstance(result, SweepResult) else ""
    counts = f"{setup.n_train} training rows, {setup.n_test} test rows{figures.of_set}, {setup.n_params:,} parameters"
    figure.suptitle(f"{setup.task}: {counts}{over}", fontsize=10)
    return figure


def _panel(axes: Axes, rows: Sequence[Row], metric: Metric, log: bool) -> None:
    drawn = False
    methods = list(dict.fromkeys(row.method for row in rows))
    for number, method in enumerate(methods):
        own = [row for row in rows if row.method == method and _is_drawn(row, metric.name, log)]
        own.sort(key=lambda row: _k(row) or 0)
        if own:
            drawn = True
            _method(axes, own, metric.name, number, log)
    if log:
        _bracket(axes, rows, methods)
    axes.set_xlabel("k, number of parameters in the sub-network")
    axes.set_xscale("log")
    _name_ticks(axes, sorted({k for row in rows if (k := _k(row)) is not None and row.method != FULL}))
    if log and drawn:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        low, high = axes.get_ylim()  # in a narrow range few ticks are left, and all of them are named
        named = "246" if high > NARROW * low else "123456789"
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in named else ""))
    if not drawn and not any(row.value("w2_low") is not None for row in rows):
        zero = any(row.value(metric.name) is not None for row in rows)
        words = f"{metric.name} is 0 up to rounding" if zero else f"no {metric.name} in this result"
        axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes, color="0.4")
    axes.grid(visible=True, which="major", color="0.9")


def _method(axes: Axes, rows: Sequence[Row], metric: str, number: int, log: bool) -> None:
    """All rows of one method: a line over k, a hollow marker if it has no choice of k, or a horizontal line."""
    method, values = rows[0].method, [row.values[metric] or 0.0 for row in rows]
    if method == FULL or _k(rows[0]) is None:
        axes.axhline(
            values[0], color=_colour(number), linestyle=DASHES[number % len(DASHES)], label=plain_label(method)
        )
        return
    ks, known = [_k(row) or 0 for row in rows], METHODS.get(method)
    fixed_k = method.startswith(NAMES_PREFIX) if known is None else known.kind == "selector" and not known.takes_k
    hollow: dict[str, Any] = {"marker": "D", "markerfacecolor": "none", "markersize": 9, "linestyle": "none"}
    plain: dict[str, Any] = {"markersize": 5, "linewidth": 1.6}
    axes.plot(ks, values, label=plain_label(method), **{**_style(number), **(hollow if fixed_k else plain)})
    pairs = [(value, row.error(metric) or 0.0) for value, row in zip(values, rows, strict=True)]
    if not any(error for _, error in pairs):
        return
    # ± one standard error; a vertical bar if there is only one k.
    low = [max(value - error, value / 10) if log else value - error for value, error in pairs]
    high = [value + error for value, error in pairs]
    if len(ks) == 1:
        axes.vlines(ks, low, high, color=_colour(number), linewidth=1.5)
    else:
        axes.fill_between(ks, low, high, color=_colour(number), alpha=0.18, linewidth=0)


def _name_ticks(axes: Axes, ks: list[int]) -> None:
    """Ticks at the values of k, where there is room for their labels."""
    named: list[int] = []
    for k in ks:
        if not named or k >= 1.35 * named[-1]:
            named.append(k)
    if 0 < len(named) <= 12:
        axes.set_xticks(named, [str(k) for k in named])
        axes.xaxis.set_minor_locator(NullLocator())


def _k(row: Row) -> int | None:
    """k of a row; the mean k of a mean over runs that differ in it."""
    return row.k if row.ks is None else round(sum(k or 0 for k in row.ks) / len(row.ks))


def _is_drawn(row: Row, metric: str, log: bool) -> bool:
    """On a log axis rounding noise is left out: a sub-network of all parameters has W2 = 0 up to rounding."""
    value = row.value(metric)
    return value is not None and (not log or value > ROUNDING * (row.value("mean_std") or 0.0))


def _bracket(axes: Axes, rows: Sequence[Row], methods: list[str]) -> None:
    """The interval that holds W2, if only bounds of the full posterior are known."""
    for row in rows:
        low, high = row.value("w2_low"), row.value("w2_high")
        if low is not None and high is not None and row.k is not None:
            colour = _colour(methods.index(row.method))
            axes.vlines(row.k, low, high, color=colour, linewidth=3, label=plain_label(f"{row.method} (bracket)"))


def calibration(_result: Result, figures: Figures) -> Figure:
    """Nominal against empirical coverage, or confidence against accuracy: the likelihood decides which."""
    figure = Figure(figsize=(7.4, 6.6), layout="constrained")
    axes, below = figure.subplots(2, 1, height_ratios=(5, 1), sharex=True)
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="perfect")
    for number, line in enumerate(figures.calibration):
        style = _style(number)
        axes.plot(line.x, line.y, label=plain_label(line.label), markersize=4, linewidth=1.4, **style)
        axes.vlines(line.x, line.low, line.high, color=style["color"], linewidth=1, alpha=0.5)
        parts = [i / len(line.counts) for i in range(len(line.counts) + 1)]
        below.stairs(line.counts, parts, color=style["color"], linewidth=1.2)
    x_label, y_label, counted = figures.calibration_axes
    more = f"; {figures.calibration_left_out} more not drawn" if figures.calibration_left_out else ""
    _finish_square(
        axes, 1.01, f"Calibration on the test rows{figures.of_set}, ± one standard error{more}", ("", y_label)
    )
    axes.set_box_aspect(None)
    below.set(xlabel=x_label, ylabel=counted)
    below.grid(visible=True, color="0.9")
    below.set_axisbelow(True)
    return figure


def risk_coverage(_result: Result, figures: Figures) -> Figure:
    """The mean risk of the most certain rows by their share: one line per method, lower is better."""
    figure = Figure(figsize=(8.2, 4.6), layout="constrained")
    axes = figure.subplots()
    lines = figures.risk_coverage
    for number, line in enumerate(lines):
        step = max(1, len(line.x) // 8)  # between markers, which start elsewhere on each line
        axes.plot(
            line.x, line.y, label=plain_label(line.label), markersize=4.5, linewidth=1.4, **_style(number),
            markevery=(step * (number + 1) // (len(lines) + 1), step),
        )  # fmt: skip
    ends = [line.y[-1] for line in lines]
    if ends and max(ends) - min(ends) <= 0.02 * max(ends):  # methods with one mean make the same errors
        axes.axhline(ends[0], color="0.3", linewidth=1, linestyle="--", label="rows in random order")
    seen = [y for line in lines for x, y in zip(line.x, line.y, strict=True) if x >= SMALL_COVERAGE]
    axes.set(xlabel="coverage: share of the rows that are kept, the most certain first", ylabel=figures.risk_label)
    axes.set(xlim=(0, 1.01), ylim=(0, 1.08 * max(seen, default=1.0) or 1.0))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(visible=True, color="0.9")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    axes.set_title(f"Risk of the most certain test rows{figures.of_set}", fontsize=10)
    return figure


def scatter(_result: Result, figures: Figures) -> Figure:
    """σ of each method against σ_full, one point per test row and output."""
    figure = Figure(figsize=(7.2, 5), layout="constrained")
    axes = figure.subplots()
    for number, cloud in enumerate(figures.scatter):
        axes.scatter(cloud.x, cloud.y, label=plain_label(cloud.label), s=10, alpha=0.6, linewidths=0, **_style(number))
    # Equal axes up to the largest σ_full, so that outliers do not squeeze the other points.
    top = 1.05 * max((max(cloud.x) for cloud in figures.scatter), default=1.0) or 1.0
    beyond = sum(value > top for cloud in figures.scatter for value in cloud.y)
    axes.plot([0, top], [0, top], color="0.6", linewidth=1, label="σ = σ_full", zorder=0)
    labels = ("σ_full, standard deviation by the full posterior", "σ, standard deviation by the method")
    note = f" ({beyond} points lie above)" if beyond else ""
    _finish_square(axes, top, f"Epistemic standard deviations on the test rows{figures.of_set}{note}", labels)
    return figure


def _finish_square(axes: Axes, top: float, title: str, labels: tuple[str, str]) -> None:
    axes.set(xlabel=labels[0], ylabel=labels[1], xlim=(0, top), ylim=(0, top), box_aspect=1)
    axes.grid(visible=True, color="0.9")
    axes.figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    axes.set_title(title, fontsize=10)


def layer_map(_result: Result, figures: Figures) -> Figure:
    """The share of each layer's parameters that each sub-network holds."""
    labels = list(figures.layers[0].chosen)
    layers = _grouped(figures)
    size = (3.6 + 1.1 * len(labels), min(1.6 + 0.28 * len(layers), 40))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    shares = [[chosen.get(label, 0) / max(size, 1) for label in labels] for _, size, chosen in layers]
    image = axes.imshow(shares, aspect="auto", cmap="cividis", vmin=0, vmax=1)
    for i, (_, _, chosen) in enumerate(layers):
        for j, label in enumerate(labels):
            colour = "white" if shares[i][j] < 0.5 else "black"
            axes.text(j, i, f"{chosen[label]:,}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_yticks(range(len(layers)), [plain_label(f"{name}  ({size:,})") for name, size, _ in layers], fontsize=8)
    axes.set_xticks(range(len(labels)), [plain_label(label).replace(" (", "\n(") for label in labels], fontsize=8)
    figure.colorbar(image, ax=axes, label="share of the layer's parameters")
    axes.set_title("Parameters of each sub-network, by layer", fontsize=10)
    return figure


def _grouped(figures: Figures) -> list[tuple[str, int, Counter[str]]]:
    """The layers, summed by shorter and shorter name prefixes until they fit."""
    depth = max((layer.name.count(".") + 1 for layer in figures.layers), default=1)
    while True:
        sizes, chosen = Counter[str](), defaultdict[str, Counter[str]](Counter)
        for layer in figures.layers:
            name = ".".join(layer.name.split(".")[:depth])
            sizes[name] += layer.size
            chosen[name].update(layer.chosen)
        if len(sizes) <= MOST_LAYERS or depth == 1:
            return [(name, size, chosen[name]) for name, size in sizes.items()]
        depth -= 1


def plain_label(label: str) -> str:
    """A label as text: a pair of `$` would be a formula."""
    return visible(label).replace("$", r"\$")


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _style(number: int) -> dict[str, Any]:
    shift = number // len(COLOURS)  # of the markers, each time the colours repeat
    return {"color": _colour(number), "marker": MARKERS[(number + shift) % len(MARKERS)]}
