"""Pictures and RESULTS.md from the results that are there: `bash examples/paper/run figures`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import Place
from comparing import (
    Claim,
    best_of,
    claims,
    compared,
    coverage_claims,
    kfac_claims,
    magnitude_claim,
    passing_kfac,
    summary,
)
from drawing import LOOK, OF_K, PLAIN, SKETCHES, Line, curves, folded, grouped, mean_and_error, read, shown, table
from report_overview import overview
from report_sketch import ALARM, sketches
from report_theory import path_claim, theory, theory_claims
from report_wheel import wheel, wheel_claims

RESCALED = ("gradient", "greedy", "random")  # the sub-networks that were run with --rescale as well
PLAIN_WAYS = [(method, PLAIN) for method in LOOK]
HEAD = f"""\
# The paper's experiments, with the tool

Made by `bash examples/paper/run figures` from the tables in this folder; each table grows as its study goes on, so the
number of replications stands with every figure. Deviations from the paper are said where the number is; these hold in
several places:

- W2 is the mean of |σ_full − σ| over test rows, with epistemic σ (gᵀΩ⁻¹g, without the noise that both have in common);
  *relative* W2 is W2 divided by the mean of σ_full, so that 1 is a method that sees no uncertainty at all.
- Coverage is the share of the oracle's outputs within 1.96 epistemic σ. The full posterior itself covers all or nearly
  all of them here, far more than 95 %: what comes close to it covers too much.
- `greedy` searches all parameters in Setups A, B and D (`--pool all`); the paper's appendix has 2k + 1,000 candidates,
  as here in Setup C, its Algorithm 2 prints 2k, as here for the wheel and for the cost of Setup A.
- `random` (the same positions in every replication), `sketch`, `gradient+sketch`, `variance`, `scale`, `hybrid`, `norm`
  and `constant` are not in the paper, and `kfac` is in its Setup D alone. `variance` chooses, one after the other, the
  parameter that lowers Dis the most.
- {ALARM}

What does a choice of parameters buy? Plain methods and the last four are not equals: those fit one number (`hybrid`:
two) to the full posterior's variance of each training row with that row left out, which plain methods never see. `norm`
and `constant` use no sub-network at all, so `gradient, scale` against `norm`, and against `random, scale`, is the fair
question."""


def run(place: Place) -> None:
    """Everything that there is data for."""
    sections = {"theory": theory, "uci": uci, "year": year, "cifar": cifar, "wheel": wheel}
    lines = {name: found for name in sections if (found := read(place.results / f"{name}.csv"))}
    texts = [sections[name](found, place.results) for name, found in lines.items()]
    text = "\n\n".join([HEAD, overview(lines), summary(all_claims(lines)), sketches(lines), *texts])
    (place.results / "RESULTS.md").write_text(text + "\n")


def all_claims(lines: dict[str, list[Line]]) -> list[Claim]:
    uci_lines, cifar_lines = lines.get("uci", []), lines.get("cifar", [])
    found = [*theory_claims(lines.get("theory", [])), path_claim(uci_lines)]
    for (dataset,), own in grouped((line for line in lines.get("year", []) if line["w2"] != ""), "dataset").items():
        found += claims(f"Setup A, YEAR: {dataset}", own, "dataset")
        found += coverage_claims(f"Setup A, YEAR: {dataset}", own, "dataset")
    cells = ("dataset", "model", "n_train")
    two = [line for line in cifar_lines if line["dataset"] != "ten-class" and line["model"] != "resnet110"]
    found += claims("Setup B, CIFAR-10 in two groups", two, *cells)
    found += coverage_claims("Setup B, CIFAR-10 in two groups", two, *cells)
    found += claims("Setup C, CIFAR-10", [line for line in cifar_lines if line["dataset"] == "ten-class"], *cells)
    found.append(magnitude_claim("Setup B, CIFAR-10 in two groups", two, *cells))
    found += claims("Setup D, UCI", uci_lines, "dataset", "model")
    found += kfac_claims("Setup D, UCI", uci_lines, "dataset", "model")
    return [*found, *wheel_claims(lines.get("wheel", []))]


# --- Setup D ------------------------------------------------------------------------------------------------


def uci(lines: list[Line], folder: Path) -> str:
    plain = [(m, PLAIN) for m in LOOK if m not in ("norm", "constant", "random")]
    rescaled = [(m, r) for m in RESCALED for r in (PLAIN, "scale", "hybrid")] + [(m, "scale") for m in SKETCHES]
    uci_curves(lines, folder / "uci.png", plain)
    uci_curves(lines, folder / "uci-rescaled.png", [*rescaled, ("norm", PLAIN), ("constant", PLAIN), ("kfac", PLAIN)])
    at = [uci_table(lines, model, k) for model, k in (("small", "500"), ("large", "2000"))]
    return "\n\n".join(
        [
            "## Setup D: UCI regressions",
            f"Replications so far: {replications(lines)}; of `sketch`: {replications(lines, 'sketch')}; of "
            f"`gradient+sketch`: {replications(lines, 'gradient+sketch')}. The paper has 50 for each. Training, prior "
            "and noise as in the paper; batch size and which splits go with which seeds are not in it: here every "
            "epoch is one step over all rows, and replication r takes split r mod 20. "
            "`kfac` is curvlinops' type-2 factorisation with the same prior.",
            "![W2 over k](uci.png)",
            "Relative W2 (mean ± standard error over the replications of each method); `scale` and `hybrid` are "
            "`--rescale`, beyond the paper:",
            *(text for text in at if text),
            compared(lines, "dataset", "model"),
            passing_kfac(lines, "dataset", "model"),
            "How often each method is the best of these at a given k, over all replications, by W2 and by the "
            "theory's Dis:",
            best_of(lines),
            "The same picture with `--rescale`, and with what needs no sub-network:",
            "![rescaled](uci-rescaled.png)",
        ]
    )


def replications(lines: list[Line], method: str = "gradient") -> str:
    counts = grouped((line for line in lines if line["method"] == method), "dataset", "model")
    seeds = {key: len({line["seed"] for line in group}) for key, group in sorted(counts.items())}
    return ", ".join(f"{' '.join(key)} {count}" for key, count in seeds.items()) or "none"


def uci_curves(lines: list[Line], path: Path, ways: Sequence[tuple[str, str]]) -> None:
    groups = grouped(lines, "dataset", "model")
    models = [model for model in ("small", "large") if any(model == key[1] for key in groups)]
    panels = [
        [(f"{dataset}, {model} network", groups.get((dataset, model), []), "w2") for model in models]
        for dataset in sorted({key[0] for key in groups})
    ]
    curves(panels, path, ways)


def uci_table(lines: list[Line], model: str, k: str) -> str:
    some = [line for line in lines if line["model"] == model]
    if not some:
        return ""
    sets = sorted({line["dataset"] for line in some})
    ways = [
        *((f"`{m}`, k = {k}", (m, k, "none")) for m in OF_K),
        *((f"`{m}`", (m, None, "none")) for m in ("neural-linear", "kfac", "norm", "constant")),
        *((f"`{m}`, k = {k}, {r}", (m, k, r)) for m in (*RESCALED, *SKETCHES) for r in ("scale", "hybrid")),
    ]
    rows = []
    for name, (method, at, rescale) in ways:
        cells = []
        own = [
            line for line in some if (line["method"], line["rescale"]) == (method, rescale) and at in (None, line["k"])
        ]
        for dataset in sets:
            cells.append(shown(*mean_and_error([line for line in own if line["dataset"] == dataset], "w2_relative"), 3))
        rows.append([name, *cells])
    return table([f"{model} network", *sets], rows)


# --- Setup A ------------------------------------------------------------------------------------------------

YEAR_SETS = {
    "full": "the whole data set, Ω from 2,000 rows drawn for each seed, σ₀² from the training rows",
    "full-test-noise": "the same with σ₀² from the test rows",
    "subset": "1,176 genuine rows, 1,000 of them for training and for Ω; σ₀² from the training rows, which 100 epochs "
    "fit, so it is at its floor of 0.001 or near",
    "subset-test-noise": "the same networks with σ₀² from the test rows, several hundred times as large",
    "made": "made-up rows in the numbers of the full set, for what it costs",
}


def year(lines: list[Line], folder: Path) -> str:
    texts = [
        "## Setup A: YearPredictionMSD",
        "Training and prior as in the paper; it does not say whose residuals σ₀² comes from, so there are both. The "
        "features are standardised as well, where the paper standardises the target and speaks of no further feature "
        "engineering; the oracle's longer schedule has three times the epochs (the paper does not say how many). "
        "`ensemble` is that of all seeds. On the subset network and oracle have seen a 460th part of the paper's rows, "
        "so its distances and coverages stand for themselves, not for the paper's figure.",
    ]
    for (dataset,), own in grouped(lines, "dataset").items():
        seeds = len({line["seed"] for line in own})
        sums = len({line["seed"] for line in own if line["method"] in SKETCHES})
        texts.append(
            f"**{dataset}** ({YEAR_SETS[dataset]}; seeds: {seeds}, of sketches {sums}; p = {own[0]['n_params']})"
        )
        if own[0]["w2_low"] != "":
            texts.append(year_cost(own))
            continue
        picture = folder / f"year-{dataset}.png"
        curves(
            [[(f"{dataset}: distance", own, "w2"), (f"{dataset}: coverage", own, "coverage95")]], picture, PLAIN_WAYS
        )
        numbers = folded(f"{dataset}: every method and k", over_k(own))
        texts += [f"![{dataset}]({picture.name})", numbers, compared(own, "dataset")]
    return "\n\n".join(texts)


def year_cost(own: list[Line]) -> str:
    first = own[0]
    bounds = [
        [
            f"`{line['method']}`",
            line["k"],
            f"{float(line['mean_std']):.4f}",
            f"{float(line['w2_low']):.4f} … {float(line['w2_high']):.4f}",
        ]
        for line in own
    ]
    return (
        f"Ω from {int(first['n_train']):,} rows, {int(first['n_test']):,} test rows, all of the table in one "
        f"`evaluate`: {float(first['run_seconds']):.0f} s with {first['threads']} thread(s), other jobs beside it, and "
        f"{first['peak_gb']} GB at most; one epoch of training {float(first['train_seconds']):.0f} s. "
        "`--full bracket`, because the full posterior would need a matrix of N²; `greedy` among 2k candidates.\n\n"
        + table(["method", "k", "mean σ", "W2 between"], bounds)
    )


def over_k(own: list[Line]) -> str:
    """Relative W2 and coverage of every method over k; means over seeds."""
    ks = sorted({int(line["k"]) for line in own if line["method"] == "gradient"})
    rows = []
    for (method, rescale), group in grouped([{"rescale": PLAIN} | line for line in own], "method", "rescale").items():
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
        plain = [line for line in own if line["rescale"] == PLAIN]
        panels.append([(title, plain, "w2"), (title, plain, "coverage95")])
        seconds = own[0]["run_seconds"]
        cost = f"; {float(seconds):.0f} s with {own[0]['threads']} thread(s), other jobs beside it" if seconds else ""
        rows = f"{own[0]['n_test']} test images, accuracy {float(own[0]['accuracy']):.3f}"
        numbers = [over_k(own)] + ([class_coverage(plain)] if dataset == "ten-class" else [])
        sections.append(folded(f"{title} (p = {own[0]['n_params']}; {rows}{cost})", "\n\n".join(numbers)))
    curves(panels, folder / "cifar.png", PLAIN_WAYS)
    return "\n\n".join(
        [
            "## Setups B and C: CIFAR-10",
            "One training of each network (not the paper's ten). `binary` is the log-odds of classes 5–9 of a given "
            "ten-class network (its `neural-linear` is the whole head of ten outputs); `single-logit` a network with "
            "one output, fine-tuned from that for a few epochs on 10,000 images, not trained from noise for 100 epochs "
            "on 50,000; `ten-class` the given network with the softmax Hessian, its Gram products in float32. The "
            "oracle of coverage is the given ResNet-56, for itself the ResNet-20; the paper's is a WRN-28-10. "
            "Images are normalised as the given networks want it (with ImageNet's means); shortcuts are "
            "of option A, without parameters, so p is a little smaller than the paper's. W2 of ten classes is the mean "
            "over classes. The ten-class ResNet-56 is not in the paper; N = 1,000 is what two cores and 24 GB take in "
            "an afternoon: its Jacobian has 11 GB, the Gram matrix with its checks takes 35 min on one core, the "
            "products with 500 test images as much, and at N = 2,000 these are 23 GB, four times and twice that. "
            "`kfac` leaves the parameters of batch normalisation at their prior. There being no "
            "ResNet-110, one is grown from the ResNet-56, its oracle, by blocks that begin as the identity (the "
            "weights before its head, `last-k`'s, are of such a block): it is here for its cost and not counted among "
            "the claims. Where `sketch` and `gradient+sketch` are not in a table, they have not been run.",
            compared([line for line in lines if line["model"] != "resnet110"], "dataset", "model", "n_train"),
            "![W2 and coverage over k](cifar.png)",
            *sections,
        ]
    )


def class_coverage(lines: list[Line]) -> str:
    """Coverage of each class apart, at the least k and at the middle of their grid."""
    ks = sorted({int(line["k"]) for line in lines if line["method"] == "gradient"})
    some = {str(ks[0]), str(ks[len(ks) // 2])}
    rows = [
        [
            f"`{line['method']}`" + (f", k = {line['k']}" if line["method"] in OF_K else ""),
            *(f"{float(line[f'coverage95_class{c}']):.2f}" for c in range(10)),
        ]
        for line in lines
        if line["method"] not in OF_K or line["k"] in some
    ]
    return table(["coverage of class", *map(str, range(10))], rows)
