"""Pictures of results made by hand: what they say, and that no two lines look the same."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from results.made_results import result, row

import sublaplace_cli
from sublaplace_cli.catalog import PICTURES, load
from sublaplace_cli.plain_text import visible
from sublaplace_cli.render.plots import COLOURS, _grouped, _style, curves, picture
from sublaplace_cli.results.figures import CalibrationLine, Figures, LayerShare, OodScore, Series
from sublaplace_cli.results.sweep import combine

AXES = ("nominal coverage of the targets", "empirical coverage", "targets")


def reliability(label: str) -> CalibrationLine:
    return CalibrationLine(label, [0.1, 0.5], [0.2, 0.6], [0.1, 0.5], [0.3, 0.7], [4, 0, 1])


def figures(**more) -> Figures:
    line = Series("gradient (k = 5)", [0.1, 0.5], [0.2, 3.0])
    drawn = {"calibration": [reliability("gradient (k = 5)")], "risk_coverage": [line], "scatter": [line]}
    drawn["layers"] = [LayerShare("0.weight", 4, {"gradient (k = 5)": 3})]
    drawn["ood"] = [OodScore("gradient (k = 5)", "σ", {"test rows": [0.1, 0.2], "far": [0.3, 9.0]}, {"far": 0.75})]
    return Figures(**{"calibration_axes": AXES, "risk_label": "error rate", "missing": {}, **drawn, **more})


def words(figure) -> str:
    """Text is drawn as outlines; matplotlib puts the words into comments."""
    return " ".join(re.findall(r"<!-- (.*?) -->", picture(figure, "svg").decode()))


def labels(axes) -> list[str]:
    return axes.get_legend_handles_labels()[1]


@pytest.mark.parametrize("kind", PICTURES)
def test_the_same_numbers_give_the_same_picture(kind):
    found = result(row(w2=0.5, nll=1.0), row(k=9, w2=0.2, nll=1.0))
    first, second = (picture(load(PICTURES[kind])(found, figures()), "svg") for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG\r\n"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_kinds_of_files(kind, start):
    assert picture(curves(result(row(w2=0.5)), figures()), kind).startswith(start)


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"coverage95": 0.9, "coverage95_total": 0.9, "nll": 1.0}, "coverage of the oracle by 95 % intervals"),
        ({"coverage95": None, "coverage95_total": 0.9, "nll": 1.0}, "coverage of the targets by 95 % intervals"),
        ({"nll": 1.0}, "negative log-likelihood"),
        ({}, "negative log-likelihood"),
    ],
)
def test_the_last_panel_is_the_first_metric_that_is_known(values, label):
    figure = curves(result(row(w2=0.5, **values)), figures())
    left, middle, right = figure.axes
    assert left.get_ylabel() == "W2 to the full posterior: mean |σ_full − σ|"
    assert middle.get_ylabel() == "rank correlation of σ with σ_full"
    assert right.get_ylabel() == label
    assert ("nominal 0.95" in words(figure)) is label.startswith("coverage")


def test_references_are_horizontal_lines_and_fixed_sizes_hollow_markers():
    methods = ["gradient", "neural-linear", "names:0.*", "norm", "full"]
    rows = [row(method, None if method == "norm" else 5, w2=0.5, mean_std=1.0) for method in methods]
    left = curves(result(*rows), figures()).axes[0]
    assert labels(left) == methods
    lines = dict(zip(methods, left.get_lines(), strict=True))
    hollow = {method for method, line in lines.items() if line.get_markerfacecolor() == "none"}
    assert hollow == {"neural-linear", "names:0.*"}
    assert {method for method, line in lines.items() if list(line.get_xdata()) == [0, 1]} == {"norm", "full"}


def test_the_full_posterior_is_drawn_once():
    full = row("full", 9, w2=0.5)
    for found in (result(row(w2=0.5), full=full), result(row(w2=0.5), full, full=full)):
        assert labels(curves(found, figures()).axes[0]) == ["gradient", "full"]


def test_a_panel_without_numbers_says_why():
    assert "no w2 in this result" in words(curves(result(row(nll=1.0)), figures()))
    assert "w2 is 0 up to rounding" in words(curves(result(row(w2=1e-12, mean_std=1.0)), figures()))


def test_one_value_of_k_has_ticks_beside_it():
    axes = curves(result(row(w2=0.1721, w2_se=0.004, mean_std=1.0)), figures()).axes[0]
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(minor=True), axes.get_yticklabels(minor=True), strict=True)
    assert [label.get_text() for value, label in ticks if low <= value <= high and label.get_text()]


def test_a_bracket_is_an_interval():
    figure = curves(result(row(w2_low=0.1, w2_high=0.4, w2=None, nll=1.0)), figures())
    assert labels(figure.axes[0]) == ["gradient (bracket)"]
    (segment,) = figure.axes[0].collections[0].get_segments()
    assert segment.tolist() == [[5.0, 0.1], [5.0, 0.4]]


def test_a_sweep_draws_the_means_at_the_mean_k():
    runs = [result(row(k=k, w2=w2, mean_std=1.0)) for k, w2 in ((4, 0.5), (8, 1.5))]
    sweep = combine([("a", 0), ("b", 0)], runs)
    figure = curves(sweep, figures())
    (line,) = figure.axes[0].get_lines()
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([6], [1.0])
    assert "mean of 2 runs ± standard error" in figure.get_suptitle()


def test_calibration_has_the_axes_of_its_likelihood():
    figure = load(PICTURES["calibration"])(result(row()), figures(calibration_left_out=2))
    axes, below = figure.axes
    assert (below.get_xlabel(), axes.get_ylabel(), below.get_ylabel()) == AXES
    assert labels(axes) == ["perfect", "gradient (k = 5)"]
    assert "2 more not drawn" in words(figure)
    segments = [segment.tolist() for segment in axes.collections[0].get_segments()]
    assert segments == [[[0.1, 0.1], [0.1, 0.3]], [[0.5, 0.5], [0.5, 0.7]]]
    assert below.patches[0].get_data().values.tolist() == [4, 0, 1]


def test_risks_over_coverage_with_that_of_a_random_order():
    few, all_rows = [0.01, 0.05, 0.1, 0.5, 1.0], [9.0, 0.0, 0.2, 0.3, 0.4]
    lines = [Series("a", few, all_rows), Series("b", few, [0.1, 0.1, 0.1, 0.2, 0.401])]
    (axes,) = load(PICTURES["risk-coverage"])(result(row()), figures(risk_coverage=lines)).axes
    assert axes.get_ylabel() == "error rate"
    assert labels(axes) == ["a", "b", "rows in random order"]
    assert list(axes.get_lines()[2].get_ydata()) == [0.4, 0.4]
    assert axes.get_ylim() == (0, pytest.approx(1.08 * 0.401)), (
        "a single bad row among the first does not set the scale"
    )
    lines[1] = Series("b", few, [0.1, 0.1, 0.1, 0.2, 0.5])
    (axes,) = load(PICTURES["risk-coverage"])(result(row()), figures(risk_coverage=lines)).axes
    assert labels(axes) == ["a", "b"], "their errors are not the same ones"


def test_a_risk_of_0_is_drawn():
    flat = Series("a", [0.5, 1.0], [0.0, 0.0])
    (axes,) = load(PICTURES["risk-coverage"])(result(row()), figures(risk_coverage=[flat])).axes
    assert axes.get_ylim() == (0, 1)


def test_a_scatter_counts_what_lies_outside():
    (axes,) = load(PICTURES["scatter"])(result(row()), figures()).axes
    assert axes.get_title() == "Epistemic standard deviations on the test rows (1 points lie above)"
    assert axes.get_xlim() == axes.get_ylim() == (0, pytest.approx(0.525))


def shares(patch, edges: int) -> list[float]:
    """Heights of a histogram's bins from its outline."""
    return [y for _, y in patch.get_xy()][1 : 2 * edges : 2]


@pytest.mark.parametrize(
    ("test", "far", "scale"),
    [
        ([0.1, 0.2, 0.2, 0.3], [0.2, 0.4], "linear"),
        ([0.1, 0.2, 0.2, 0.3], [50.0, 90.0], "log"),
        ([0.0, 0.2], [50.0, 90.0], "log"),
        ([0.0, 0.0], [0.0], "linear"),
        ([0.3, 0.3], [0.3], "linear"),
        ([1e-300], [1e300], "log"),
    ],
)
def test_histograms_hold_every_row(test, far, scale):
    scores = [OodScore("a", "σ", {"test rows": test, "far": far}, {"far": 0.9}), OodScore("map", "σ", {}, {})]
    first, second = load(PICTURES["ood"])(result(row()), figures(ood=scores)).axes
    assert first.get_xscale() == scale
    assert labels(first) == ["test rows", "far"]
    for patch in first.patches:
        assert sum(shares(patch, 40)) == pytest.approx(1)
    assert "far 0.900" in first.get_title()
    assert [text.get_text() for text in second.texts] == ["it has no variance"]


def test_no_two_lines_look_the_same():
    styles = [tuple(_style(i).values()) for i in range(40)]
    assert len(set(styles)) == 40
    channels = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in COLOURS]
    greys = sorted(0.299 * r + 0.587 * g + 0.114 * b for r, g, b in channels)
    assert len(set(COLOURS)) == len(greys) == 8


def test_a_map_of_many_layers_adds_them_up():
    layers = [LayerShare(f"layer{i}.{j}.weight", 10, {"a": j}) for i in range(3) for j in range(50)]
    grouped = _grouped(figures(layers=layers))
    assert [name for name, _, _ in grouped] == ["layer0", "layer1", "layer2"]
    assert all(size == 500 and chosen == {"a": sum(range(50))} for _, size, chosen in grouped)
    few = _grouped(figures(layers=layers[:4]))
    assert [name for name, _, _ in few] == [layer.name for layer in layers[:4]]


HOSTILE_LABELS = [
    "names:$a$",
    "names:$",
    "names:$\\frac{$",
    "names:a\\$b$c",
    "names:\x1b[1m\x00",
    "names:a\n-->b",
    "\udcff",
]


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("label", HOSTILE_LABELS)
def test_labels_are_text(kind, label):
    line = Series(label, [0.1, 0.5], [0.2, 3.0])
    share = LayerShare(f"{label}.weight", 4, {label: 3})
    score = OodScore(label, "σ", {"test rows": [0.1], label: [0.2]}, {label: 1.0})
    drawn = figures(calibration=[reliability(label)], risk_coverage=[line], scatter=[line], layers=[share], ood=[score])
    found = result(row(label, w2=0.5, w2_low=0.1, w2_high=0.4, mean_std=1.0))
    content = picture(load(PICTURES[kind])(found, drawn), "svg").decode()
    ElementTree.fromstring(content)
    assert f"<!-- {visible(label).replace('--', '- -')}" in html.unescape(content)


def test_a_matplotlibrc_in_the_working_folder_is_ignored(tmp_path):
    (tmp_path / "matplotlibrc").write_text("figure.facecolor: red\nno such key: 1\n")
    (tmp_path / "own").write_text("figure.edgecolor: blue\n")
    script = (
        "import os, sublaplace_cli.render.plots, matplotlib\n"
        "print(os.getcwd(), *(matplotlib.rcParams[f'figure.{part}'] for part in ('facecolor', 'edgecolor')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(sublaplace_cli.__file__).parents[1]), "MATPLOTLIBRC": "own"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (f"{tmp_path} white blue\n", "")
