"""Pictures and RESULTS.md from the results that are there: `bash examples/paper/run figures`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import Place
from comparing import PLAIN, Claim, Count, claims, compared, summary
from drawing import LOOK, OF_K, Line, curves, grouped, mean_and_error, read, shown, table
from report_wheel import wheel, wheel_claims


def run(place: Place) -> None:
    """Everything that there is data for."""
    sections = {"theory": theory, "uci": uci, "year": year, "cifar": cifar, "wheel": wheel}
    lines = {name: found for name in sections if (found := read(place.results / f"{name}.csv"))}
    texts = [sections[name](found, place.results) for name, found in lines.items()]
    (place.results / "RESULTS.md").write_text("\n\n".join([HEAD, summary(all_claims(lines)), *texts]) + "\n")


def all_claims(lines: dict[str, list[Line]]) -> list[Claim]:
    year_lines = [line for line in lines.get("year", []) if line["w2"] != ""]
    binary, ten = ([q for q in lines.get("cifar", []) if (q["dataset"] == "ten-class") is ten] for ten in (False, True))
    return [
        *theory_claims(lines.get("theory", [])),
        *claims("Setup A, YEAR", year_lines, "dataset"),
        *claims("Setup B, CIFAR-10 in two groups", binary, "dataset", "model", "n_train"),
        *claims("Setup C, CIFAR-10", ten, "dataset", "model", "n_train"),
        *claims("Setup D, UCI", lines.get("uci", []), "dataset", "model"),
        *wheel_claims(lines.get("wheel", [])),
    ]


RESCALED = ("gradient", "greedy", "random")  # the methods that were run with --rescale as well
HEAD = """\
# The paper's experiments, with the tool

Made by `bash examples/paper/run figures` from the tables in this folder; each table grows as its study goes on, so the
number of replications stands with every figure. Deviations from the paper are said where the number is."""


# --- theory -------------------------------------------------------------------------------------------------


def held(lines: list[Line]) -> dict[tuple[str, str], Count]:
    found = {
        key: [int(q["holds"]) for q in group if q["holds"]]
        for key, group in grouped(lines, "dataset", "method").items()
    }
    return {(dataset, method): Count(sum(values), len(values)) for (dataset, method), values in found.items()}


def theory_claims(lines: list[Line]) -> list[Claim]:
    found = held(lines)
    paths = [count for (dataset, _), count in found.items() if dataset == "monotone"]
    steps = Count(sum(q.holds for q in paths), sum(q.of for q in paths))
    invariant = "Λ = D + aI + b·11ᵀ, p = 10, all subsets of size k"
    disjoint = "Theorem 3: `gradient` not worse than `subnet-diagonal`, nor than any disjoint subset"
    over_paths = f"quickstart's network, steps of {len(paths)} methods over k"
    nothing = Count(0, 0)
    return [
        ("Theorem 1: IPV grows along a path", over_paths, steps),
        ("Theorem 2: `gradient` has the least Dis", invariant, found.get(("optimal", "gradient"), nothing)),
        (
            "Theorem 2: `subnet-diagonal` has the largest",
            "the same",
            found.get(("optimal", "subnet-diagonal"), nothing),
        ),
        (disjoint, "ε = 0.2, p = 10", found.get(("dominant", "gradient"), nothing)),
    ]


def theory(lines: list[Line], folder: Path) -> str:
    best = [[f"`{method}`", count] for (dataset, method), count in held(lines).items() if dataset == "best"]
    return "\n\n".join(
        [
            "## Theory",
            "Exhaustive search over all subsets of a size, with Λ itself as the second moment of the rows (no sampling "
            "error); k runs from 1 to 9 (Theorem 3: to 5).",
            table(["theorem", "problem", "holds"], theory_claims(lines)),
            "Without that structure (four common directions and noise, p = 10) the best subset is the one chosen by",
            table(["method", "has the least Dis"], best),
        ]
    )


# --- Setup D ------------------------------------------------------------------------------------------------


def uci(lines: list[Line], folder: Path) -> str:
    uci_curves(lines, folder / "uci.png", PLAIN, [m for m in LOOK if m not in ("norm", "constant", "random")])
    uci_curves(
        lines, folder / "uci-rescaled.png", "scale", ["gradient", "greedy", "random", "norm", "constant", "kfac"]
    )
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
            compared(lines, "dataset", "model"),
            "![rescaled](uci-rescaled.png)",
        ]
    )


def uci_curves(lines: list[Line], path: Path, rescale: str, methods: Sequence[str]) -> None:
    sets, models = (sorted({q[name] for q in lines}) for name in ("dataset", "model"))
    panels = [
        [
            (
                f"{dataset}, {model} network",
                [
                    q
                    for q in lines
                    if (q["dataset"], q["model"]) == (dataset, model)
                    and q["rescale"] == (rescale if q["method"] in RESCALED else PLAIN)
                ],
                "w2",
            )
            for model in ("small", "large")
            if model in models
        ]
        for dataset in sets
    ]
    curves(panels, path, [m for m in methods if m != "full"], {"w2"})


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
            cells.append(shown(*mean_and_error([q for q in own if q["dataset"] == dataset], "w2_relative"), 3))
        rows.append([name, *cells])
    return table([f"{model} network", *sets], rows)


# --- Setup A ------------------------------------------------------------------------------------------------

YEAR_SETS = {
    "full": "the whole data set, Ω from 2,000 rows drawn for each seed",
    "subset": "1,176 genuine rows, 1,000 for training and for Ω: a hundredth part of what the paper trains on, so the "
    "network fits its rows and σ₀² is at its floor",
    "made": "made-up rows in the numbers of the full set, for what it costs",
}


def year(lines: list[Line], folder: Path) -> str:
    texts = [
        "## Setup A: YearPredictionMSD",
        "Training, prior and noise as in the paper; the features are standardised as well, and the oracle has three "
        "times the epochs (the paper says neither). `ensemble` is that of all seeds.",
    ]
    for (dataset,), own in grouped(lines, "dataset").items():
        seeds = len({q["seed"] for q in own})
        texts.append(f"**{dataset}** ({YEAR_SETS[dataset]}; seeds: {seeds}; p = {own[0]['n_params']})")
        if own[0]["w2_low"] != "":
            texts.append(year_cost(own))
            continue
        picture = folder / f"year-{dataset}.png"
        titles = [("distance to the full posterior", own, "w2"), ("coverage", own, "coverage95")]
        curves([titles], picture, list(LOOK), {"w2"})
        texts += [over_k(own), compared(own, "dataset"), f"![{dataset}]({picture.name})"]
    return "\n\n".join(texts)


def year_cost(own: list[Line]) -> str:
    first = own[0]
    bounds = [
        [
            f"`{q['method']}`",
            q["k"],
            f"{float(q['mean_std']):.4f}",
            f"{float(q['w2_low']):.4f} … {float(q['w2_high']):.4f}",
        ]
        for q in own
    ]
    return (
        f"Ω from {int(first['n_train']):,} rows, {int(first['n_test']):,} test rows, all of the table in one "
        f"`evaluate`: {float(first['run_seconds']):.0f} s on one core and {first['peak_gb']} GB at most; one epoch of "
        f"training {float(first['train_seconds']):.0f} s. `--full bracket`, because the full posterior would need a "
        "matrix of N²; `greedy` among 2k candidates.\n\n" + table(["method", "k", "mean σ", "W2 between"], bounds)
    )


def over_k(own: list[Line]) -> str:
    """Relative W2 and coverage of every method over k; means over seeds."""
    ks = sorted({int(q["k"]) for q in own if q["method"] == "gradient"})
    rows = []
    for (method, rescale), group in grouped([{"rescale": PLAIN} | q for q in own], "method", "rescale").items():
        if method == "full":
            continue
        cells = {
            k: shown(*mean_and_error(some, "w2_relative"), 3) + f" ({mean_and_error(some, 'coverage95')[0]:.2f})"
            for (k,), some in grouped(group, "k").items()
        }
        name = f"`{method}`" + (f", {rescale}" if rescale in ("scale", "hybrid") else "")
        if method in OF_K:
            rows.append([name, *(cells.get(str(k), "") for k in ks), "", ""])
        else:
            rows.append([name, *("" for _ in ks), next(iter(cells.values())), group[0]["k"]])
    return table(["relative W2 (coverage)", *(f"k = {k}" for k in ks), "without k", "its size"], rows)


# --- Setups B and C -----------------------------------------------------------------------------------------


def cifar(lines: list[Line], folder: Path) -> str:
    runs = grouped(lines, "dataset", "model", "n_train")
    sections, panels = [], []
    for (dataset, model, n_train), own in runs.items():
        title = f"{dataset}, {model}, N = {n_train}"
        plain = [q for q in own if q["rescale"] == PLAIN]
        panels.append([(title, plain, "w2"), (title, plain, "coverage95")])
        seconds = f"{float(own[0]['run_seconds']):.0f} s on one core"
        sections += [f"**{title}** (p = {own[0]['n_params']}; {seconds})", over_k(own)]
        if dataset == "ten-class":
            sections.append(class_coverage(plain))
    curves(panels, folder / "cifar.png", [m for m in LOOK if m != "full"], {"w2"})
    return "\n\n".join(
        [
            "## Setups B and C: CIFAR-10",
            "One training of each network (not the paper's ten). `binary` is the log-odds of classes 5–9 of a given "
            "ten-class network; `single-logit` a network with one output, fine-tuned from that for a few epochs on "
            "10,000 images (ResNet-110: grown from the ResNet-56 by blocks that begin as the identity, there "
            "being no other), not trained from noise for 100 epochs on 50,000; `ten-class` the given network with the "
            "softmax Hessian, its Gram products in float32. The oracle of coverage is the given ResNet-56, for itself "
            "the ResNet-20; the paper's is a WRN-28-10. 1,000 test images; shortcuts are of option A, without "
            "parameters, so p is a little smaller than the paper's. W2 of ten classes is the mean over classes.",
            compared(lines, "dataset", "model", "n_train"),
            "![W2 and coverage over k](cifar.png)",
            *sections,
        ]
    )


def class_coverage(lines: list[Line]) -> str:
    """Coverage of each class apart, at the middle of the grid of k."""
    ks = sorted({int(q["k"]) for q in lines if q["method"] == "gradient"})
    k = str(ks[len(ks) // 2])
    rows = [
        [f"`{q['method']}`", *(f"{float(q[f'coverage95_class{c}']):.2f}" for c in range(10))]
        for q in lines
        if q["method"] not in OF_K or q["k"] == k
    ]
    return table([f"coverage of class (k = {k})", *map(str, range(10))], rows)
