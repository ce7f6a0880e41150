"""What was run, in one table at the head of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drawing import Line, grouped, table

PAPER = {
    "theory": "proofs",
    "uci": "Setup D: 50 replications of each network",
    "year": "Setup A: the whole data set",
    "cifar": "Setups B and C: N = 2,000, ten trainings of each network",
    "wheel": "25 seeds",
}


def overview(lines: Mapping[str, Sequence[Line]]) -> str:
    """A line for each study that has results."""
    told = {"theory": theory_runs, "uci": uci_runs, "year": year_runs, "cifar": cifar_runs, "wheel": wheel_runs}
    rows = [[f"`{name}`", told[name](own), PAPER[name]] for name, own in lines.items()]
    return "## What was run\n\n" + table(["study", "here", "in the paper"], rows)


def theory_runs(lines: Sequence[Line]) -> str:
    checks = sum(line["dataset"] != "best" and line["holds"] != "" for line in lines)
    return f"{checks:,} checks of the theorems, on made matrices and along paths of the quickstart's network"


def uci_runs(lines: Sequence[Line]) -> str:
    sets = sorted({line["dataset"] for line in lines})
    return f"{', '.join(sets)}: " + ", ".join(
        f"{seeds_of(own, 'dataset')} replications of the {model} network"
        for (model,), own in sorted(grouped(lines, "model").items(), reverse=True)
    )


def year_runs(lines: Sequence[Line]) -> str:
    return ", ".join(
        f"{dataset} ({int(own[0]['n_train']):,} rows in Ω): {seeds_of(own, 'dataset')} seed(s)"
        for (dataset,), own in grouped(lines, "dataset").items()
    )


def cifar_runs(lines: Sequence[Line]) -> str:
    return ", ".join(" ".join((*key, f"N = {n}")) for *key, n in grouped(lines, "dataset", "model", "n_train"))


def wheel_runs(lines: Sequence[Line]) -> str:
    kinds = {(line["method"], line["k"]) for line in lines}
    return f"{len(kinds)} methods, {seeds_of(lines, 'delta', 'variant', 'method', 'k')} seeds of each δ and reading"


def seeds_of(lines: Sequence[Line], *cell: str) -> str:
    """How many seeds the cells have, the fewest and the most."""
    counts = sorted(len({line["seed"] for line in own}) for own in grouped(lines, *cell).values())
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
