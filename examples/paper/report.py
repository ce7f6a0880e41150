"""Pictures and RESULTS.md from the results that are there: `bash examples/paper/run figures`."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from common import Place

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
    "map": ("#BBBBBB", "d"),
}
PAPER_WHEEL = {  # final regret at δ = 0.95, mean and standard error over 25 seeds, as the paper has it
    ("neural-linear", ""): (30266.0, 6572.7),
    ("map", ""): (43298.9, 7146.9),
    ("subnet-diagonal", "100"): (47184.9, 7275.3),
    ("subnet-diagonal", "500"): (33796.4, 7464.6),
    ("last-k", "100"): (35340.1, 7576.7),
    ("last-k", "500"): (30556.2, 7942.9),
    ("gradient", "100"): (38177.4, 6904.8),
    ("gradient", "500"): (8211.9, 355.0),
    ("greedy", "100"): (21568.7, 5895.4),
    ("greedy", "500"): (8616.7, 574.5),
}


def run(place: Place) -> None:
    """Everything that there is data for."""
    sections = [("theory", theory), ("uci", uci), ("cifar", cifar), ("wheel", wheel)]
    texts = [make(lines, place.results) for name, make in sections if (lines := read(place.results / f"{name}.csv"))]
    (place.results / "RESULTS.md").write_text("\n\n".join([HEAD, *texts]) + "\n")


HEAD = """\
# The paper's experiments, with the tool

Made by `bash examples/paper/run figures` from the tables in this folder; each table grows as its study goes on, so the
number of replications stands with every figure. Deviations from the paper are said where the number is."""


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


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


# --- theory -------------------------------------------------------------------------------------------------


def theory(lines: list[Line], folder: Path) -> str:
    held = {
        key: [int(q["holds"]) for q in group if q["holds"]]
        for key, group in grouped(lines, "dataset", "method").items()
    }

    def share(dataset: str, method: str) -> str:
        found = held.get((dataset, method), [])
        return f"{sum(found)} of {len(found)}"

    paths = [key[1] for key in held if key[0] == "monotone"]
    steps = [step for q in paths for step in held["monotone", q]]
    over_paths = f"quickstart's network, {len(paths)} methods, {len(steps) // max(1, len(paths))} k each"
    invariant = "Λ = D + aI + b·11ᵀ, p = 10, all subsets of size k"
    disjoint = "3: `gradient` not worse than `subnet-diagonal`, nor than any disjoint subset"
    rows = [
        ["1: IPV grows along a path", over_paths, f"{sum(steps)} of {len(steps)} steps"],
        ["2: `gradient` has the least Dis", invariant, share("optimal", "gradient")],
        ["2: `subnet-diagonal` has the largest", "the same", share("optimal", "subnet-diagonal")],
        [disjoint, "ε = 0.2, p = 10", share("dominant", "gradient")],
    ]
    best = [[f"`{method}`", share("best", method)] for (dataset, method) in held if dataset == "best"]
    return "\n\n".join(
        [
            "## Theory",
            "Exhaustive search over all subsets of a size, with Λ itself as the second moment of the rows (no sampling "
            "error); k runs from 1 to 9 (Theorem 3: to 5).",
            table(["theorem", "problem", "holds"], rows),
            "Without that structure (four common directions and noise, p = 10) the best subset is the one chosen by",
            table(["method", "has the least Dis"], best),
        ]
    )


# --- Setup D ------------------------------------------------------------------------------------------------


def uci(lines: list[Line], folder: Path) -> str:
    curves(lines, folder / "uci.png", "none", [m for m in LOOK if m not in ("norm", "constant", "map", "random")])
    curves(lines, folder / "uci-rescaled.png", "scale", ["gradient", "greedy", "random", "norm", "constant", "kfac"])
    counts = {key: len({q["seed"] for q in group}) for key, group in grouped(lines, "dataset", "model").items()}
    at = [uci_table(lines, model, k) for model, k in (("small", "500"), ("large", "2000"))]
    return "\n\n".join(
        [
            "## Setup D: UCI regressions",
            "Replications so far: " + ", ".join(f"{d} {m} {n}" for (d, m), n in sorted(counts.items())) + ". "
            "The paper has 50 for each. Training, prior and noise as in the paper; batch size and which splits go "
            "with which seeds are not in it: here every epoch is one step over all rows, and replication r takes split "
            "r mod 20. "
            "`kfac` is curvlinops' type-2 factorisation with the same prior.",
            "![W2 over k](uci.png)",
            "Relative W2 (mean ± standard error over replications); `scale` and `hybrid` are `--rescale`, beyond the "
            "paper:",
            *(text for text in at if text),
            comparisons(lines),
            "![rescaled](uci-rescaled.png)",
        ]
    )


def comparisons(lines: list[Line]) -> str:
    """How often the paper's claims hold, counted over sets, networks and k (means over replications)."""
    means = {
        key: mean_and_error(group, "w2")[0]
        for key, group in grouped(lines, "dataset", "model", "method", "k", "rescale").items()
    }
    cells = sorted({(d, m, k) for d, m, method, k, _ in means if method == "gradient"})

    def of(cell: tuple[str, ...], method: str, rescale: str = "none") -> float:
        dataset, model, k = cell
        own = [value for (d, m, q, at, r), value in means.items() if (d, m, q, r) == (dataset, model, method, rescale)]
        return means.get((dataset, model, method, k, rescale), own[0] if len(own) == 1 else math.nan)

    def count(better: tuple[str, str], worse: tuple[str, str]) -> str:
        pairs = [(of(cell, *better), of(cell, *worse)) for cell in cells]
        return f"{sum(a < b for a, b in pairs)} of {len(pairs)}"

    plain = "none"
    rows = [
        [
            f"`{a}`{'' if r == plain else ' with ' + r} below `{b}`{'' if t == plain else ' with ' + t}",
            count((a, r), (b, t)),
        ]
        for a, r, b, t in (
            ("gradient", plain, "subnet-diagonal", plain),
            ("gradient", plain, "last-k", plain),
            ("gradient", plain, "random", plain),
            ("gradient", plain, "neural-linear", plain),
            ("gradient", plain, "kfac", plain),
            ("greedy", plain, "gradient", plain),
            ("gradient", plain, "norm", plain),
            ("gradient", "scale", "gradient", plain),
            ("gradient", "scale", "norm", plain),
            ("gradient", "scale", "random", "scale"),
            ("random", "scale", "gradient", plain),
        )
    ]
    return (
        "Over all sets, networks and k, mean W2 is smaller for\n\n"
        + table(["", "in"], rows)
        + (
            "\n\nThe first six are claims of the paper (for `kfac`: at moderate k). The last five are the honest "
            "question of what a sub-network buys: `norm` uses none, and a rescaled choice at random is the rival of a "
            "good one."
        )
    )


def uci_table(lines: list[Line], model: str, k: str) -> str:
    some = [q for q in lines if q["model"] == model]
    if not some:
        return ""
    sets = sorted({q["dataset"] for q in some})
    ways = [
        *((f"`{m}`, k = {k}", (m, k, "none")) for m in ("gradient", "greedy", "subnet-diagonal", "last-k", "random")),
        *((f"`{m}`", (m, None, "none")) for m in ("neural-linear", "kfac", "norm", "constant")),
        *((f"`{m}`, k = {k}, {r}", (m, k, r)) for m in ("gradient", "greedy", "random") for r in ("scale", "hybrid")),
    ]
    rows = []
    for name, (method, at, rescale) in ways:
        cells = []
        own = [q for q in some if (q["method"], q["rescale"]) == (method, rescale) and at in (None, q["k"])]
        for dataset in sets:
            mean, error = mean_and_error([q for q in own if q["dataset"] == dataset], "w2_relative")
            cells.append("" if math.isnan(mean) else f"{mean:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}"))
        rows.append([name, *cells])
    return table([f"{model} network", *sets], rows)


def curves(lines: list[Line], path: Path, rescale: str, methods: Sequence[str]) -> None:
    sets, models = (sorted({q[name] for q in lines}) for name in ("dataset", "model"))
    models = [m for m in ("small", "large") if m in models]
    size = (5.2 * len(models), 3.2 * len(sets))
    figure, axes = plt.subplots(len(sets), len(models), figsize=size, squeeze=False, sharex="col")
    for i, dataset in enumerate(sets):
        for j, model in enumerate(models):
            axis = axes[i][j]
            for method in methods:
                own = [q for q in lines if (q["dataset"], q["model"], q["method"]) == (dataset, model, method)]
                has_k = method in ("gradient", "greedy", "random", "subnet-diagonal", "last-k")
                wanted = rescale if method in ("gradient", "greedy", "random") else "none"
                draw(axis, [q for q in own if q["rescale"] == wanted], method, has_k)
            axis.set(xscale="log", yscale="log", title=f"{dataset}, {model} network")
            axis.grid(alpha=0.3)
        axes[i][0].set_ylabel("mean |σ_full − σ|")
    for axis in axes[-1]:
        axis.set_xlabel("k")
    axes[0][-1].legend(fontsize=7)
    save(figure, path)


def draw(axis: Any, lines: list[Line], method: str, has_k: bool) -> None:
    if not lines:
        return
    colour, marker = LOOK[method]
    if not has_k and method != "neural-linear":
        axis.axhline(mean_and_error(lines, "w2")[0], color=colour, linestyle="--", linewidth=1, label=method)
        return
    points = sorted((int(k), *mean_and_error(group, "w2")) for (k,), group in grouped(lines, "k").items())
    ks, means, errors = zip(*points, strict=True)
    axis.plot(ks, means, color=colour, marker=marker, markersize=4, linewidth=1.2, label=method)
    axis.fill_between(ks, *band(means, errors, 1.0), color=colour, alpha=0.2)


def band(means: Sequence[float], errors: Sequence[float], width: float) -> tuple[list[float], list[float]]:
    """Means less and plus so many errors; where there is one run, the mean itself."""
    known = [0.0 if math.isnan(error) else width * error for error in errors]
    return [m - e for m, e in zip(means, known, strict=True)], [m + e for m, e in zip(means, known, strict=True)]


# --- Setups B and C -----------------------------------------------------------------------------------------


def cifar(lines: list[Line], folder: Path) -> str:
    sections = []
    for (dataset, model, n_train), own in grouped(lines, "dataset", "model", "n_train").items():
        ks = sorted({int(q["k"]) for q in own if q["method"] == "gradient"})
        rows = []
        for (method, rescale), group in grouped(own, "method", "rescale").items():
            if method == "full":
                continue
            name = f"`{method}`" + ("" if rescale == "none" else f", {rescale}")
            by_k = {q["k"]: f"{float(q['w2_relative']):.3f} ({float(q['coverage95']):.2f})" for q in group}
            alone = next(iter(by_k.values())) if len(group) == 1 else ""
            size = group[0]["k"] if len(group) == 1 else ""
            rows.append([name, *(by_k.get(str(k), "") if not alone else "" for k in ks), alone, size])
        head = ["relative W2 (coverage)", *(f"k = {k}" for k in ks), "without k", "its size"]
        sections += [f"**{dataset}, {model}, N = {n_train}** (p = {own[0]['n_params']})", table(head, rows)]
    return "\n\n".join(
        [
            "## Setups B and C: CIFAR-10",
            "One training of each network (not the paper's ten), by third parties; binary is the log-odds of classes "
            "5–9 of the ten-class network, not a network trained with one logit; the oracle of coverage is the other "
            "ResNet (56 for 20, 20 for 56), not the paper's WRN-28-10.",
            *sections,
        ]
    )


# --- the wheel ----------------------------------------------------------------------------------------------


def wheel(lines: list[Line], folder: Path) -> str:
    rows = []
    for (delta, variant, method, k), group in sorted(grouped(lines, "delta", "variant", "method", "k").items()):
        mean, error = mean_and_error(group, "regret")
        values = sorted(float(q["regret"]) for q in group)
        paper = PAPER_WHEEL.get((method, k)) if delta == "0.95" else None
        regret = f"{mean:.0f}" + ("" if math.isnan(error) else f" ± {error:.0f}")
        spread = f"{values[0]:.0f} … {values[-1]:.0f}"
        beside = "" if paper is None else f"{paper[0]:.0f} ± {paper[1]:.0f}"
        seconds = f"{mean_and_error(group, 'seconds')[0]:.0f}"
        rows.append([delta, variant, f"`{method}`", k, len(group), regret, spread, beside, seconds])
    regret_picture(read(folder / "wheel-traces.csv"), folder / "wheel.png")
    bars(lines, folder / "wheel-bars.png")
    head = [
        "δ",
        "sampled variance",
        "method",
        "k",
        "seeds",
        "final regret",
        "range",
        "paper (25 seeds)",
        "seconds a run",
    ]
    return "\n\n".join(
        [
            "## Wheel bandit",
            "`total` samples with σ₀² + gᵀΩ⁻¹g, the formula in the paper's appendix; `epistemic` with gᵀΩ⁻¹g alone. "
            "T = 16,000; σ₀² from the last 200 errors, made when the arm was chosen (the paper does not say which "
            "residuals). Seconds on one busy core.",
            table(head, rows),
            "![cumulative regret](wheel.png)",
            "![final regret of every run, and its mean](wheel-bars.png)",
        ]
    )


def bars(lines: list[Line], path: Path) -> None:
    """Means with ±1.96 standard errors and, because means hide runs that fail altogether, every run as a point."""
    kinds = sorted({(q["delta"], q["variant"]) for q in lines}, reverse=True)
    figure, axes = plt.subplots(1, len(kinds), figsize=(5.2 * len(kinds), 3.8), squeeze=False, sharey=True)
    for axis, kind in zip(axes[0], kinds, strict=True):
        own = [q for q in lines if (q["delta"], q["variant"]) == kind]
        groups = sorted(grouped(own, "method", "k").items())
        for place, ((method, _), group) in enumerate(groups):
            mean, error = mean_and_error(group, "regret")
            half = 0.0 if math.isnan(error) else 1.96 * error
            axis.bar(place, mean, yerr=half, color=LOOK[method][0], alpha=0.6, capsize=3)
            axis.plot([place] * len(group), [float(q["regret"]) for q in group], "k.", markersize=3)
        names = [f"{method}{', ' + k if k else ''}" for (method, k), _ in groups]
        axis.set_xticks(range(len(groups)), names, rotation=40, ha="right", fontsize=7)
        axis.set_title(f"δ = {kind[0]}, {kind[1]}")
        axis.grid(axis="y", alpha=0.3)
    axes[0][0].set_ylabel("final regret")
    save(figure, path)


def regret_picture(lines: list[Line], path: Path) -> None:
    if not lines:
        return
    kinds = sorted({(q["delta"], q["variant"]) for q in lines}, reverse=True)
    figure, axes = plt.subplots(1, len(kinds), figsize=(5.2 * len(kinds), 3.8), squeeze=False, sharey=True)
    for axis, (delta, variant) in zip(axes[0], kinds, strict=True):
        own = [q for q in lines if (q["delta"], q["variant"]) == (delta, variant)]
        for (method, k), group in sorted(grouped(own, "method", "k").items()):
            points = sorted((int(n), *mean_and_error(some, "regret")) for (n,), some in grouped(group, "round").items())
            rounds, means, errors = zip(*points, strict=True)
            style = "--" if k == "100" else "-"
            label = f"{method}{', k = ' + k if k else ''} ({len({q['seed'] for q in group})})"
            axis.plot(rounds, means, style, color=LOOK[method][0], linewidth=1.2, label=label)
            axis.fill_between(rounds, *band(means, errors, 1.96), color=LOOK[method][0], alpha=0.15)
        axis.set(title=f"δ = {delta}, {variant}", xlabel="round")
        axis.legend(fontsize=7)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("cumulative regret (seeds)")
    save(figure, path)
