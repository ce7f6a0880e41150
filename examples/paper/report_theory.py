"""The theorems' section of the report."""

from __future__ import annotations

import itertools
from pathlib import Path

from comparing import Claim, Count
from drawing import PLAIN, SUBNETS, Line, grouped, table


def held(lines: list[Line]) -> dict[tuple[str, str], Count]:
    found = {
        key: [int(line["holds"]) for line in group if line["holds"]]
        for key, group in grouped(lines, "dataset", "method").items()
    }
    return {(dataset, method): Count(sum(values), len(values)) for (dataset, method), values in found.items()}


def theory_claims(lines: list[Line]) -> list[Claim]:
    found = held(lines)
    paths = [count for (dataset, _), count in found.items() if dataset == "monotone"]
    steps = Count(sum(path.holds for path in paths), sum(path.of for path in paths))
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


def path_claim(uci_lines: list[Line]) -> Claim:
    """Theorem 1 along the paths of the networks of Setup D; not for sketches, which are no sub-networks."""
    plain = [line for line in uci_lines if line["rescale"] == PLAIN and line["method"] in SUBNETS]
    rises = []
    for own in grouped(plain, "dataset", "model", "seed", "method").values():
        ipv = [float(line["ipv"]) for line in sorted(own, key=lambda line: int(line["k"]))]
        rises += [after >= before * (1 - 1e-9) for before, after in itertools.pairwise(ipv)]
    return "Theorem 1: IPV grows along a path", "the networks of Setup D, steps over k", Count(sum(rises), len(rises))


def theory(lines: list[Line], folder: Path) -> str:
    best = [line for line in lines if line["dataset"] == "best"]
    ks = sorted({int(line["k"]) for line in best})
    rows = [
        [
            f"`{method}`",
            *(held(some)["best", method] for k in ks for some in [[line for line in own if line["k"] == str(k)]]),
        ]
        for (method,), own in grouped(best, "method").items()
    ]
    return "\n\n".join(
        [
            "## Theory",
            "Exhaustive search over all subsets of a size, with Λ itself as the second moment of the rows (no sampling "
            "error); k runs from 1 to 9 (Theorem 3: to 5).",
            table(["theorem", "problem", "holds"], theory_claims(lines)),
            "Without that structure (four common directions and noise, p = 10), how often a method chooses a subset "
            "with the least Dis of all:",
            table(["method", *(f"k = {k}" for k in ks)], rows),
        ]
    )
