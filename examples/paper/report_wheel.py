"""The wheel bandit's section of the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from comparing import Claim, Count
from drawing import LOOK, SKETCHES, Line, band, grouped, mean_and_error, plt, read, save, shown, table
from paper_wheel import PAPER, SEEDS, quadrant
from report_audit import audit, audit_summary
from report_wheel_why import why, why_summary

LEAST_SEEDS = 5  # for a method to be counted in the claim
SUMS = "The sums of `sketch` and `gradient+sketch`, not in the paper, stay the same through a run; its seed draws them."
NO_SUMS = "`sketch` and `gradient+sketch` have not been run here."
PAGE = "WHEEL.md"
SETTING = (
    "`total` samples with σ₀² + gᵀΩ⁻¹g, the formula in the paper's appendix; `epistemic` with gᵀΩ⁻¹g alone. "
    "T = 16,000, the 15 warm-up pulls among them; σ₀² from the last 200 errors, made when the arm was chosen "
    "(the paper does not say which residuals), and at least 1e-6; Ω from all rows seen so far; the first "
    "updates come before the first 20 rounds, not after them. `map` samples nothing, so it stands under one "
    "reading. A run has failed where it lost more than one quadrant is worth, T (1 − δ²) · 49 / 4. S, Ω and "
    "σ₀² are made anew before each 20 rounds, and stay for these; `greedy` searches 2k candidates. ± is the "
    "standard error; seconds are the fewest of a run on one core while others were busy: rows of one linear region "
    "of the network are summed up together from 1,000 rows on, which the first runs did not do; that alters the last "
    "digits of a variance."
)
CLAIM = (
    "**Does the paper's claim hold, that `gradient` and `greedy` with k = 500 have far less regret than the "
    "rest?** Counted over the others in the paper (`map` and k = 100 among them), with at least five seeds "
    "each: how many have a mean above that of the better and of the worse of the two by more than two "
    "standard errors of the difference, and how many have at least twice the mean of the worse."
)
OURS = (("gradient", "500"), ("greedy", "500"))  # the two that the paper finds far below the rest


def wheel(lines: list[Line], folder: Path) -> str:
    """What is most important; all of it is in WHEEL.md, which is written beside."""
    changed = read(folder / "wheel-why.csv")
    regret_picture(read(folder / "wheel-traces.csv"), folder / "wheel.png")
    bars(lines, folder / "wheel-bars.png")
    (folder / PAGE).write_text(page(lines, changed) + "\n")
    parts = [
        "## Wheel bandit",
        f"Every method, why so few runs fail here, and an audit of the paper's figures: [{PAGE}]({PAGE}).",
        CLAIM,
        claim(lines),
        why_summary(changed, lines),
        audit_summary(),
        "![cumulative regret](wheel.png)",
        "![final regret of every run, and its mean](wheel-bars.png)",
    ]
    return "\n\n".join(part for part in parts if part)


def page(lines: list[Line], changed: list[Line]) -> str:
    head = ["δ", "sampled variance", "method", "k", "seeds", "final regret", "least … median … most", "failed"]
    parts = [
        "# The wheel bandit, with the tool",
        SETTING + " " + (SUMS if any(line["method"] in SKETCHES for line in lines) else NO_SUMS),
        table([*head, f"paper ({SEEDS} seeds)", "seconds a run"], regret_rows(lines)),
        "`last-k` with 100 is `neural-linear`'s head of 101 parameters without its first weight. Half of the "
        "hidden units die early in training; where that weight's unit is among them, the two runs are the same.",
        CLAIM,
        claim(lines),
        why(changed, lines),
        audit(lines),
    ]
    return "\n\n".join(part for part in parts if part)


def regret_rows(lines: list[Line]) -> Iterator[list[Any]]:
    for (delta, variant, method, k), group in sorted(grouped(lines, "delta", "variant", "method", "k").items()):
        values = sorted(float(line["regret"]) for line in group)
        paper = PAPER.get(delta, {}).get((method, k))
        yield [
            *(delta, variant, f"`{method}`", k, len(group), shown(*mean_and_error(group, "regret"), 0)),
            f"{values[0]:.0f} … {median(values):.0f} … {values[-1]:.0f}",
            sum(value > quadrant(delta) for value in values),
            "" if paper is None else f"{paper[0]:.0f} ± {paper[1]:.0f}",
            f"{min(float(line['seconds']) for line in group):.0f}",
        ]


class Standing(NamedTuple):
    """The rest beside the two of the claim, under one δ and reading."""

    delta: str
    variant: str
    above_better: Count  # by more than two standard errors of the difference
    above_worse: Count
    twice: Count  # at least twice the mean of the worse
    below: list[str]  # in the mean


class Regret(NamedTuple):
    """Final regret over seeds."""

    mean: float
    error: float
    median: float


def regrets_of(lines: list[Line]) -> dict[tuple[str, str], dict[tuple[str, str], Regret]]:
    """That of every method of the paper and k with enough seeds, under each δ and reading."""
    found = {}
    for (delta, variant), own in sorted(grouped(lines, "delta", "variant").items(), reverse=True):
        # `map` belongs to both readings: it samples nothing.
        both = own + [line for line in lines if line["method"] == "map" and line["delta"] == delta and line not in own]
        found[delta, variant] = {
            way: Regret(*mean_and_error(group, "regret"), median(float(line["regret"]) for line in group))
            for way, group in grouped(both, "method", "k").items()
            if len(group) >= LEAST_SEEDS and way[0] not in SKETCHES
        }
    return found


def standings(lines: list[Line]) -> Iterator[Standing]:
    for (delta, variant), found in regrets_of(lines).items():
        if not all(way in found for way in OURS):
            continue
        better, worse = sorted(found[way] for way in OURS)
        rest = {way: value for way, value in found.items() if way not in OURS}
        above = [
            Count(
                sum(regret.mean - best.mean > 2 * math.hypot(regret.error, best.error) for regret in rest.values()),
                len(rest),
            )
            for best in (better, worse)
        ]
        twice = Count(sum(regret.mean >= 2 * worse.mean for regret in rest.values()), len(rest))
        below = [f"`{m}`{' ' + k if k else ''}" for (m, k), value in sorted(rest.items()) if value.mean < better.mean]
        yield Standing(delta, variant, *above, twice, below)


def wheel_claims(lines: list[Line]) -> list[Claim]:
    claim = "`gradient` and `greedy` (k = 500) far below the others: at most half of their regret"
    found = [
        (claim, f"wheel, δ = {standing.delta}, {standing.variant}", standing.twice) for standing in standings(lines)
    ]
    for (delta, variant), regrets in regrets_of(lines).items():
        where = f"wheel, δ = {delta}, {variant}"
        unsampled = regrets.pop(("map", ""), None)
        # Both, because one run that fails altogether decides a mean of a few.
        for which in ("mean", "median") if unsampled else ():
            above = Count(
                sum(getattr(regret, which) < getattr(unsampled, which) for regret in regrets.values()), len(regrets)
            )
            said = f"`map` explores too little: more regret than those that sample, in the {which}"
            found.append((said, where, above))
        small = {method: regret.mean for (method, k), regret in regrets.items() if k == "100"}
        if "greedy" in small:
            lowest = Count(sum(small["greedy"] < small[m] for m in small if m != "greedy"), len(small) - 1)
            found.append(("`greedy` has the least regret of those with k = 100", where, lowest))
    return found


def claim(lines: list[Line]) -> str:
    rows = [[*standing[:-1], ", ".join(standing.below) or "none"] for standing in standings(lines)]
    if not rows:
        return "There are not enough runs yet to say."
    head = ["δ", "sampled variance", "above the better", "above the worse", "at least twice", "below both in the mean"]
    return table(head, rows)


def panels(lines: Sequence[Line]) -> tuple[Any, list[tuple[Any, list[Line]]]]:
    """A figure with a panel for each δ and reading, two in a row, and the lines of each."""
    kinds = sorted(grouped(lines, "delta", "variant").items(), reverse=True)
    width = min(2, len(kinds))
    height = -(-len(kinds) // width)
    size = (6.2 * width, 3.9 * height)
    figure, axes = plt.subplots(height, width, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for unused in axes.flat[len(kinds) :]:
        unused.set_axis_off()
    for axis, ((delta, variant), _) in zip(axes.flat, kinds, strict=False):
        axis.set_title(f"δ = {delta}, {variant}")
        axis.grid(alpha=0.3)
    return figure, [(axis, own) for axis, (_, own) in zip(axes.flat, kinds, strict=False)]


def bars(lines: list[Line], path: Path) -> None:
    """Means with ±1.96 standard errors and, because means hide runs that fail altogether, every run as a point."""
    figure, places = panels(lines)
    for axis, own in places:
        groups = sorted(grouped(own, "method", "k").items())
        for place, ((method, _), group) in enumerate(groups):
            mean, error = mean_and_error(group, "regret")
            half = 0.0 if math.isnan(error) else 1.96 * error
            axis.bar(place, mean, yerr=half, color=LOOK[method][0], alpha=0.6, capsize=3)
            axis.plot([place] * len(group), [float(line["regret"]) for line in group], "k.", markersize=3)
        names = [f"{method}{', ' + k if k else ''} ({len(group)})" for (method, k), group in groups]
        axis.set_xticks(range(len(groups)), names, rotation=40, ha="right", fontsize=7)
        axis.set_ylabel("final regret (seeds)")
    save(figure, path)


def regret_picture(lines: list[Line], path: Path) -> None:
    if not lines:
        return
    figure, places = panels(lines)
    for axis, own in places:
        for (method, k), group in sorted(grouped(own, "method", "k").items()):
            points = sorted((int(n), *mean_and_error(some, "regret")) for (n,), some in grouped(group, "round").items())
            rounds, means, errors = zip(*points, strict=True)
            style = "--" if k == "100" else "-"
            label = f"{method}{', k = ' + k if k else ''} ({len({line['seed'] for line in group})})"
            axis.plot(rounds, means, style, color=LOOK[method][0], linewidth=1.2, label=label)
            axis.fill_between(rounds, *band(means, errors, 1.96), color=LOOK[method][0], alpha=0.15)
        axis.set(xlabel="round", ylabel="cumulative regret (seeds)")
        axis.legend(fontsize=6, ncols=2)
    save(figure, path)
